"""What the screen knows of the engine: one frozen value, made anew by each event."""

from dataclasses import dataclass, replace
from typing import Literal

from localmoe.engine.request import EngineInfo
from localmoe.events import Event, Failed, Finished, Loading, PrefillProgress, Queued, Stats, TextDelta
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
    decode_tok_s: tuple[float, ...] = ()  # samples of this chat

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
                return replace(self, loading=event)
            case Queued():
                return replace(self, queued=event)
            case PrefillProgress():
                return replace(self, prefill=event, phase=self._unless_stopping("prefill"))
            case TextDelta():
                return replace(self, phase=self._unless_stopping(_DECODING[event.channel]))
            case Stats():
                return self._measured(event)
            case Finished() | Failed():
                return replace(self, phase="idle" if self.info else "closed", prefill=None, queued=None)
        return self

    def _measured(self, stats: Stats) -> "Readings":
        fresh = (stats.decode_tok_s,) if stats.decode_tok_s and self.is_busy else ()
        return replace(self, stats=stats, decode_tok_s=(*self.decode_tok_s, *fresh)[-NUM_SAMPLES:])

    def _unless_stopping(self, phase: Phase) -> Phase:
        return "stopping" if self.phase == "stopping" else phase


_DECODING: dict[str, Phase] = {"thought": "thinking", "answer": "answering"}
