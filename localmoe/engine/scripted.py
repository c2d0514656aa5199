"""A fake engine with the same face: it says what a script says, when the script says it.

Its figures come from the script's nominal times, never from a clock, so that two runs send equal events.
`time_scale=0` makes it as fast as it can be; `pause_*` and `resume()` hold it still for a picture.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread

from localmoe.chat.message import Conversation
from localmoe.engine.checks import check_fits, check_request
from localmoe.engine.request import EngineInfo, Request, Sampling
from localmoe.engine.script import Clock, Run, Script, StoppedError, words
from localmoe.engine.stream import EventStream
from localmoe.errors import LocalmoeError
from localmoe.events import Event, Failed, Loading, Queued, Stats

DEMO_INFO = EngineInfo(
    model="scripted",
    description="a scripted engine (no model)",
    is_demo=True,
    isa="none",
    num_threads=1,
    context_limit=4096,
    weight_bytes=0,
    cache_bytes=0,
    load_s=0.0,
    plan=("answers come from a script: nothing is computed",),
    sampling=Sampling(),
)


Scripts = Sequence[Script | str] | Callable[[Request], Script | str]


class ScriptedEngine:
    """Answers one request at a time; a list of scripts starts again at its end."""

    def __init__(
        self,
        scripts: Scripts = ("Hello from a script.",),
        *,
        info: EngineInfo = DEMO_INFO,
        time_scale: float = 0.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.info = info
        self.requests: list[Request] = []  # all that were submitted, for tests
        self._scripts = scripts
        self._clock = Clock(time_scale)
        self._turns = count()
        self._cached: dict[str, int] = {}  # session -> tokens in its imaginary cache
        self._waiting: list[Run] = []
        self._lock = Lock()
        self._jobs: SimpleQueue[Run | None] = SimpleQueue()
        self._current: Run | None = None
        self._closed = False
        if on_event:
            on_event(Loading("reading", info.weight_bytes, info.weight_bytes))
        self._thread = Thread(target=self._work, name="scripted-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> EventStream:
        """Queues the script's next answer."""
        check_request(request)
        script = self._script_for(request)
        num_prompt = self.count_tokens(request.conversation) if script.prompt_tokens is None else script.prompt_tokens
        check_fits(num_prompt, self.info.context_limit)
        with self._lock:
            if self._closed:
                raise LocalmoeError("the engine is closed", "open it again")
            self.requests.append(request)
            run = Run(request, script, num_prompt, limit=self.info.context_limit)
            run.stream = EventStream(lambda: self._cancel(run))
            if self._current:
                self._waiting.append(run)
                run.stream.put(Queued(len(self._waiting) - 1))
            else:
                self._current = run
            self._jobs.put(run)
        return run.stream

    def count_tokens(self, conversation: Conversation) -> int:
        """Words, and three more for each turn."""
        return sum(3 + len(words(m.text)) for m in conversation.messages)

    def resume(self) -> None:
        """Lets a paused answer go on; a pause that has not come yet is skipped."""
        self._clock.resumed.set()

    def close(self) -> None:
        """Cancels what runs and ends every stream."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            running = [run for run in (self._current, *self._waiting) if run]
            self._jobs.put(None)
        for run in running:
            self._cancel(run)
        self._thread.join()

    def _script_for(self, request: Request) -> Script:
        chosen = (
            self._scripts(request) if callable(self._scripts) else self._scripts[next(self._turns) % len(self._scripts)]
        )
        return Script(chosen) if isinstance(chosen, str) else chosen

    def _work(self) -> None:
        while run := self._jobs.get():
            if run.stream.ended:  # cancelled while it waited
                continue
            try:
                for event in self._answer(run):
                    run.stream.put(event)
            except Exception as error:  # noqa: BLE001 - whatever a script does, its stream must end
                run.stream.put(Failed(f"the script failed: {error!r}"))
            self._take_next()

    def _take_next(self) -> None:
        with self._lock:
            self._current = self._waiting.pop(0) if self._waiting else None
            self._announce()

    def _cancel(self, run: Run) -> None:
        run.cancelled.set()
        with self._lock:
            if run in self._waiting:
                self._waiting.remove(run)
                run.stream.put(run.stats(len(self._waiting)))
                run.stream.put(run.finished("cancelled"))
                self._announce()

    def _announce(self) -> None:
        for position, run in enumerate(self._waiting):
            run.stream.put(Queued(position))

    def _answer(self, run: Run) -> Iterator[Event]:
        session = run.request.session
        run.cached = max(0, min(self._cached.get(session, 0), run.num_prompt - 1))
        reason = None
        try:
            for event in run.play(self._clock):
                yield replace(event, num_queued=len(self._waiting)) if isinstance(event, Stats) else event
        except StoppedError as stopped:
            reason = stopped.reason
        except LocalmoeError as error:
            yield Failed.of(error)
            return
        self._cached[session] = run.num_prompt + max(0, run.num_made - 1)
        yield run.stats(len(self._waiting))
        yield run.finished(reason or run.script.reason)
