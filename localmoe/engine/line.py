"""The line of requests that wait to be read, visible to those who wait in it."""

from threading import RLock

from localmoe.engine.job import Job
from localmoe.events import Queued


class Line:
    """First come, first served. Any thread may join or leave."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lock = RLock()  # a signal handler may cancel while its thread is in here

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, job: Job) -> None:
        """Takes the last place."""
        with self._lock:
            self._jobs.append(job)

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
        """All that wait, first come first."""
        with self._lock:
            return list(self._jobs)

    def tell_positions(self, num_leaving: int = 0) -> None:
        """Tells each its position if it has changed. The first `num_leaving` are about to be read.

        An answer that has begun is not told: it goes on soon.
        """
        with self._lock:
            for position, job in enumerate(self._jobs[num_leaving:]):
                if job.position != position and not job.output:
                    job.position = position
                    job.stream.put(Queued(position))
