"""The engine: a model that answers in this process."""

import atexit
import weakref
from collections.abc import Callable

from localmoe.chat.message import Conversation
from localmoe.chat.stream import Splitter
from localmoe.engine.checks import check_fits, check_request, check_vocabulary
from localmoe.engine.gpu_devices import CudaGpus, Gpus
from localmoe.engine.inside import Inside
from localmoe.engine.job import Job, Targets
from localmoe.engine.loop import Loop
from localmoe.engine.metrics import Meter
from localmoe.engine.opening import Backend, Cancelled, CpuBackend, Opened, open_model
from localmoe.engine.request import EngineInfo, Request
from localmoe.engine.scheduler import MAX_BATCH, Limits
from localmoe.engine.shares import ShareControl
from localmoe.engine.stream import EventStream
from localmoe.events import Event
from localmoe.settings import Settings


class Engine:
    """The face of engine.request, over a network, a tokenizer and a template."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        network, plan = opened.network, opened.plan
        pool = getattr(network, "pool", None)
        self._loop = Loop.over(
            network.cache,
            network.program(plan.read_tokens),
            network.program(MAX_BATCH),
            opened.new_flag,
            plan.context_limit,
            network.passing(plan.passing_tokens) if plan.passing_tokens else None,
            inside=Inside(network.config, pool),
            together=network.runs_together,
            limits=Limits(plan.read_tokens, plan.batch, plan.beside_chunk),
            shares=ShareControl(pool, network.config, plan.urgent_share) if pool and network.runs_together else None,
        )
        self._closed = False
        # The thread must not be in native code when the interpreter goes away.
        self._at_exit = _close_at_exit(self)

    @classmethod
    def open(
        cls,
        model: str,
        settings: Settings,
        on_event: Callable[[Event], None] | None = None,
        *,
        cancelled: Cancelled = lambda: False,
        backend: Backend | None = None,
        gpus: Gpus | None = None,
    ) -> "Engine":
        """Loads `model`, a catalogue name or a folder; `on_event` hears Loading events, in this thread.

        Raises what localmoe.errors has: ModelError, OutOfMemoryError, VerificationError; CancelledError soon after
        `cancelled()` is true.
        """
        listener = on_event or (lambda event: None)
        return cls(open_model(model, settings, listener, cancelled, backend or CpuBackend(), gpus or CudaGpus()))

    @property
    def info(self) -> EngineInfo:
        """What runs."""
        return self._opened.info

    def submit(self, request: Request) -> EventStream:
        """Checks `request` (UsageError) and returns at once; the answer comes as events."""
        meter = Meter()  # the time to the first token counts from here
        check_request(request)
        opened, think = self._opened, self._think(request)
        prompt = self._encode(request.conversation, think)
        check_fits(len(prompt), self.info.context_limit)
        job = Job(
            request,
            prompt,
            Splitter(opened.tokenizer, opened.template.starts_in_thought(think)),
            max_tokens=opened.settings.max_tokens if request.max_tokens is None else request.max_tokens,
            stop_ids=opened.stop_ids,
            on_cancel=self._loop.cancel,
            meter=meter,
            targets=Targets(opened.settings.ttft_target_s, 1e-3 * opened.settings.tpot_target_ms),
        )
        self._loop.submit(job)
        return job.stream

    def count_tokens(self, conversation: Conversation) -> int:
        """Prompt tokens of `conversation`, its generation prompt included."""
        return len(self._encode(conversation, self._opened.settings.think))

    def close(self) -> None:
        """Cancels what runs, frees everything; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._loop.close()
        self._opened.network.close()

    def _think(self, request: Request) -> bool | None:
        return self._opened.settings.think if request.think is None else request.think

    def _encode(self, conversation: Conversation, think: bool | None) -> list[int]:
        ids = self._opened.template.encode(conversation, think)
        check_vocabulary(max(ids, default=0), self._opened.network.config.vocab)
        return ids


def _close_at_exit(engine: Engine) -> Callable[[], None]:
    """Closes `engine` when the interpreter exits, without keeping it alive until then."""
    alive = weakref.ref(engine)

    def close() -> None:
        if found := alive():
            found.close()

    return atexit.register(close)
