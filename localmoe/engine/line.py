"""The line of requests that wait to be read, visible to those who wait in it."""

from collections.abc import Callable
from threading import RLock

from localmoe.engine.job import Job
from localmoe.engine.metrics import estimate_s
from localmoe.events import Queued

NOTICED_S = 1.0


class Line:
    """Those who wait, in the order in which they came, or were sorted. Any thread may join or leave."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lock = RLock()  # a signal handler may cancel while its thread is in here

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, job: Job) -> None:
        """Takes the last place."""
        with self._lock:
            self._jobs.append(job)

    def sort(self, key: Callable[[Job], float]) -> None:
        """Orders it by `key`, the smallest first; those of one key stay as they are."""
        with self._lock:
            self._jobs.sort(key=key)

    def return_first(self, job: Job) -> None:
        """Takes the first place again, after its pages were needed by an older request."""
        with self._lock:
            self._jobs.insert(0, job)

    def leave(self, job: Job) -> bool:
        """Gives up the place; False when it is not in the line."""
        with self._lock:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
        return True

    def jobs(self) -> list[Job]:
        """All that wait, in order."""
        with self._lock:
            return list(self._jobs)

    def tell_positions(self, num_leaving: int = 0, num_unread: int = 0, tok_s: float | None = None) -> None:
        """Tells each its position and an estimate where they have changed. The first `num_leaving` are read at once.

        `num_unread` tokens are being read before them, at `tok_s`. An answer that has begun is not told: it goes on
        soon.
        """
        with self._lock:
            for place, job in enumerate(self._jobs):
                queued = Queued(place - num_leaving, estimate_s(num_unread, tok_s))
                if place >= num_leaving and not job.output and _is_news(queued, job.queued):
                    job.queued = queued
                    job.stream.put(queued)
                num_unread += job.num_new


def _is_news(queued: Queued, told: Queued | None) -> bool:
    """Another place, or an estimate that differs by what a reader would notice."""
    if told is None or queued.position != told.position or (queued.eta_s is None) != (told.eta_s is None):
        return True
    return abs((queued.eta_s or 0.0) - (told.eta_s or 0.0)) >= NOTICED_S
