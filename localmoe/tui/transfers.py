"""Downloads and checks of models, each in a thread of its own: they go on whatever screen is shown.

Any thread may look at a transfer; what it did is kept until the next one of that model.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol

from localmoe.errors import CancelledError, LocalmoeError
from localmoe.events import Event
from localmoe.hub.download.patience import Patience
from localmoe.hub.download.progress import Notice, Pulled, Pulling

if TYPE_CHECKING:
    from localmoe.hub.download.plan import DownloadPlan

Kind = Literal["download", "check"]
State = Literal["running", "pausing", "paused", "done", "failed"]
CLOSE_WAIT_S = 5.0  # for bytes that came to be noted; what is not is fetched again

Hear = Callable[[Event], None]


class Runner(Protocol):
    """A pull or a verification."""

    def run(self) -> object: ...

    def cancel(self) -> None: ...


class Transfer:
    """One model's files, fetched or checked. `on_end` is called in its thread."""

    def __init__(
        self, name: str, kind: Kind, make: Callable[[Hear], Runner], on_end: Callable[["Transfer"], None]
    ) -> None:
        self.name, self.kind = name, kind
        self.state: State = "running"
        self.progress: Pulling | None = None
        self.notice = ""  # the last thing a person should know of: a wait, a new try
        self.message, self.hint = "", ""  # how it ended
        self.result: object = None  # what the runner gave: a folder, or a report
        self.fetched_bytes = 0
        self._on_end = on_end
        self._runner = make(self._hear)
        self._thread = Thread(target=self._run, name=f"{kind}-{name}", daemon=True)

    @property
    def is_active(self) -> bool:
        """Whether its thread still works."""
        return self.state in ("running", "pausing")

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Ends it soon; what came stays."""
        if self.state == "running":
            self.state = "pausing"
            self._runner.cancel()

    def join(self, timeout_s: float) -> None:
        """Waits until it has ended, or no longer."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self.result = self._runner.run()
            self.state = "done"
        except CancelledError as error:
            self._end("paused", error.message, error.hint)
        except LocalmoeError as error:
            self._end("failed", error.message, error.hint)
        except Exception as error:  # noqa: BLE001 - a bug below must be seen, and end no screen
            what = f"the {self.kind} broke off: {type(error).__name__}: {error}"
            self._end("failed", what, "this is a fault in localmoe: please report it")
        self._on_end(self)

    def _end(self, state: State, message: str, hint: str) -> None:
        self.message, self.hint = message, hint
        self.state = state

    def _hear(self, event: Event) -> None:
        match event:
            case Pulling():
                self.progress = event
            case Notice():
                self.notice = event.text
            case Pulled():
                self.fetched_bytes = event.fetched_bytes


class Transfers:
    """All of this program; one is active at a time, so that its rate and estimate mean something."""

    def __init__(self, on_end: Callable[[Transfer], None], patience: Patience = Patience()) -> None:  # noqa: B008
        self.patience = patience
        self._on_end = on_end
        self._by_name: dict[str, Transfer] = {}

    def of(self, name: str) -> Transfer | None:
        """The last one of the model `name`."""
        return self._by_name.get(name)

    @property
    def active(self) -> Transfer | None:
        """The one that runs."""
        return next((one for one in self._by_name.values() if one.is_active), None)

    def download(self, plan: "DownloadPlan") -> Transfer:
        """Starts fetching what is missing."""
        from localmoe.engine.arrival import wanted_tensors
        from localmoe.hub.download.pull import Pull

        def make(hear: Hear) -> Runner:
            return Pull(plan, hear, expected=wanted_tensors, patience=self.patience)

        return self._start(Transfer(plan.name, "download", make, self._on_end))

    def check(self, name: str, folder: Path) -> Transfer:
        """Starts checking every file of the model in `folder`."""
        from localmoe.engine.arrival import known_tensors
        from localmoe.hub.verify import Verification

        return self._start(
            Transfer(name, "check", lambda hear: Verification(folder, hear, known_tensors), self._on_end)
        )

    def forget(self, name: str) -> None:
        """What was said of the model `name` is no longer so."""
        if (one := self.of(name)) and not one.is_active:
            del self._by_name[name]

    def close(self) -> tuple[str, ...]:
        """Pauses what runs, in a bounded time; a line for each download that is to be gone on with."""
        paused = [one for one in self._by_name.values() if one.is_active and one.kind == "download"]
        deadline = monotonic() + CLOSE_WAIT_S
        for one in self._by_name.values():
            if one.is_active:
                one.cancel()
                one.join(max(0.0, deadline - monotonic()))
        return tuple(f"{one.message} {one.hint}" for one in paused if one.message)

    def _start(self, transfer: Transfer) -> Transfer:
        assert self.active is None
        self._by_name[transfer.name] = transfer
        transfer.start()
        return transfer
