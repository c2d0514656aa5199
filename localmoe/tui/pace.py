"""How often the screen is drawn: for its share of a core, since what draws takes it from what answers."""

from time import thread_time

from localmoe.hardware import physical_cores

EVERY_S = 1 / 12  # at most
UNSEEN_EVERY_S = 1 / 3  # in a tab that is not shown: what came is kept, and its end is told
LEAST_OFTEN_S = 0.4  # even where that takes more than its share
SHARE = 1 / 16  # of a core that is left for it
FIGURES_EVERY_S = 1.0  # of the engine panel, while text comes: they take as much as the text
BUSY_SHARE = 1 / 80  # of one that a worker computes on: a step of all workers waits for the one that was interrupted


def share_beside(num_threads: int) -> float:
    """Of a core, beside so many workers."""
    return SHARE if num_threads < physical_cores() else BUSY_SHARE


class Pace:
    """Of one screen. What the thread does between two draws counts: there it puts the first one on the terminal."""

    def __init__(self) -> None:
        self.share = SHARE
        self._begun_s = thread_time()
        self._last_s = 0.0  # of the thread's time, from the draw before to this one

    def begin(self) -> None:
        """A draw begins."""
        now_s = thread_time()
        self._last_s, self._begun_s = now_s - self._begun_s, now_s

    def wait_s(self, *, is_seen: bool) -> float:
        """Seconds from the end of this draw to the next one."""
        took_s = max(self._last_s, thread_time() - self._begun_s)
        return max(EVERY_S if is_seen else UNSEEN_EVERY_S, min(LEAST_OFTEN_S, took_s / self.share))
