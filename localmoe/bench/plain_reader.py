"""What the disk can do: direct reads of files, from the first byte on, by threads that do nothing else with them."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from localmoe.engine.reading import weight_memory


@dataclass(frozen=True, slots=True)
class Setting:
    """How many threads, and how much each of them reads at once."""

    num_threads: int
    piece_bytes: int

    def __str__(self) -> str:
        return f"{self.num_threads} thread{'s' * (self.num_threads > 1)}, {self.piece_bytes >> 20} MiB at once"


SETTINGS = tuple(Setting(threads, mib << 20) for threads in (1, 2, 4, 8) for mib in (1, 4))


def read_rate(files: Sequence[Path], most_bytes: int, setting: Setting) -> float:
    """Bytes per second; OSError where the filesystem does not read directly."""
    with ExitStack() as stack, ThreadPoolExecutor(setting.num_threads) as pool:
        jobs = iter(_jobs(files, most_bytes, setting.piece_bytes, stack))  # one for all of them
        start_s = time.perf_counter()
        counts = [pool.submit(_read, jobs, setting.piece_bytes) for _ in range(setting.num_threads)]
        return sum(count.result() for count in counts) / (time.perf_counter() - start_s)


def _jobs(files: Sequence[Path], most_bytes: int, piece_bytes: int, stack: ExitStack) -> list[tuple[int, int]]:
    """Descriptor and place of each piece."""
    jobs: list[tuple[int, int]] = []
    for file in files:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        jobs += [(fd, start) for start in range(0, os.fstat(fd).st_size, piece_bytes)]
    return jobs[: max(1, most_bytes // piece_bytes)]


def _read(jobs: Iterator[tuple[int, int]], piece_bytes: int) -> int:
    # Pages of 2 MB, as for weights: disks fill few and large pages faster than many small ones.
    buffer = weight_memory(piece_bytes)
    return sum(os.preadv(fd, [buffer.data], start) for fd, start in jobs)
