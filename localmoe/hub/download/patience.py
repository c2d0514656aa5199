"""How long a silent, busy or broken hub is borne with: waits that grow, and an end to them."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event as Flag
from typing import TypeVar

from localmoe.errors import CancelledError, LocalmoeError

Answer = TypeVar("Answer")
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """Tries are counted since the last byte that came: a slow line is not a broken one."""

    tries: int = 6
    first_wait_s: float = 1.0  # doubled each time
    longest_wait_s: float = 30.0
    longest_asked_s: float = 900.0  # of the waits that a hub may ask for
    connect_s: float = 10.0
    stall_s: float = 30.0  # without a byte, or with less than `stall_bytes` in all
    stall_bytes: int = 16 << 10

    def wait_s(self, failures: int) -> float:
        """Before the next try, after `failures` in a row."""
        return min(self.longest_wait_s, self.first_wait_s * 2 ** (failures - 1))


class TroubleError(Exception):
    """What may pass by itself; `final` is what to say when it does not."""

    def __init__(self, final: LocalmoeError, wait_s: float | None = None) -> None:
        super().__init__(final.message)
        self.final = final
        self.wait_s = wait_s  # as the hub asked


class Retries:
    """The tries of one thing. `notify` hears of every wait."""

    def __init__(self, patience: Patience, cancelled: Flag, notify: Notify = lambda text: None) -> None:
        self._patience = patience
        self._cancelled = cancelled
        self._notify = notify
        self._failures = 0

    def succeeded(self) -> None:
        """Bytes came: what failed before is forgotten."""
        self._failures = 0

    def bear(self, trouble: TroubleError) -> None:
        """Waits, or raises what the trouble is in the end; CancelledError as soon as that is asked for."""
        self._failures += 1
        asked_s = trouble.wait_s or 0.0
        if self._failures >= self._patience.tries or asked_s > self._patience.longest_asked_s:
            raise trouble.final
        wait_s = max(asked_s, self._patience.wait_s(self._failures))
        self._notify(f"{trouble.final.message} Next try in {wait_s:.0f} s.")
        if self._cancelled.wait(wait_s):
            raise CancelledError("stopped while waiting for the hub")


def patiently(ask: Callable[[], Answer], retries: Retries) -> Answer:
    """What `ask` gives, tried again as long as it raises TroubleError and patience lasts."""
    while True:
        try:
            return ask()
        except TroubleError as trouble:
            retries.bear(trouble)
