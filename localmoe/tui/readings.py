"""What the screen knows of the engine: one frozen value, made anew by each event."""

from dataclasses import dataclass, replace
from typing import Literal

from localmoe.engine.request import EngineInfo
from localmoe.events import (
    Event,
    Failed,
    Finished,
    Heat,
    Lanes,
    Loading,
    Lost,
    PrefillProgress,
    Queued,
    Stats,
    TextDelta,
)
from localmoe.tui.bridge import Opened

Phase = Literal["opening", "closed", "idle", "waiting", "prefill", "thinking", "answering", "stopping"]
NUM_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Readings:
    """The latest figures, each as it was measured. None: not yet."""

    phase: Phase = "opening"
    info: EngineInfo | None = None
    loading: Loading | None = None
    queued: Queued | None = None
    prefill: PrefillProgress | None = None
    stats: Stats | None = None
    lanes: Lanes | None = None
    heat: Heat | None = None
    prefill_tok_s: tuple[float, ...] = ()  # samples of the last prompt
    decode_tok_s: tuple[float, ...] = ()  # samples of this chat
    context_tokens: int = 0  # of the conversation, as it was counted last
    draft_tokens: int = 0  # of what is being written
    unread_turns: int = 0  # that the model does not read any more

    @property
    def is_busy(self) -> bool:
        """Whether an answer is on its way."""
        return self.phase in ("waiting", "prefill", "thinking", "answering", "stopping")

    def asked(self) -> "Readings":
        """A request was sent; figures of the last one stay until new ones come."""
        return replace(self, phase="waiting", queued=None, prefill=None)

    def stopping(self) -> "Readings":
        """The user wants no more of this answer."""
        return replace(self, phase="stopping")

    def emptied(self) -> "Readings":
        """A new chat: nothing measured belongs to it."""
        return Readings(self.phase, self.info)

    def after(self, event: Event) -> "Readings":
        """These readings with what `event` says."""
        match event:
            case Opened():
                return Readings("idle", event.info)
            case Loading():
                return Readings(loading=event) if self.phase == "closed" else replace(self, loading=event)
            case Lost():
                return replace(self, phase="closed")
            case Queued():
                return replace(self, queued=event)
            case PrefillProgress():
                return self._reading(event)
            case TextDelta():
                return replace(self, phase=self._unless_stopping(_DECODING[event.channel]))
            case Stats():
                return self._measured(event)
            case Lanes():
                return replace(self, lanes=event)
            case Heat():
                return replace(self, heat=event)
            case Finished() | Failed():
                is_open = self.info is not None and self.phase != "closed"
                return replace(self, phase="idle" if is_open else "closed", prefill=None, queued=None)
        return self

    def _reading(self, progress: PrefillProgress) -> "Readings":
        phase = self._unless_stopping("prefill")
        return replace(self, prefill=progress, prefill_tok_s=progress.parts_tok_s, phase=phase)

    def _measured(self, stats: Stats) -> "Readings":
        now_tok_s = stats.decode_now_tok_s or stats.decode_tok_s
        fresh = (now_tok_s,) if now_tok_s and self.is_busy else ()
        return replace(
            self,
            stats=stats,
            context_tokens=stats.context_tokens,
            decode_tok_s=(*self.decode_tok_s, *fresh)[-NUM_SAMPLES:],
        )

    def _unless_stopping(self, phase: Phase) -> Phase:
        return "stopping" if self.phase == "stopping" else phase


_DECODING: dict[str, Phase] = {"thought": "thinking", "answer": "answering"}
