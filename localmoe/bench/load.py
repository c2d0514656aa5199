"""Suite load: weights on their way from the disk into memory, beside the fastest direct reads of the same files.

All is measured in a process of its own, so that its peak of memory is that of loading. After the first time weights go
into the same memory again: what a system takes to find new memory is no matter of the disk, and has a row of its own.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import localmoe
from localmoe.bench.checkpoint import bench_checkpoint
from localmoe.bench.plain_reader import SETTINGS, Setting, read_rate
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.reading import WeightReader
from localmoe.errors import LocalmoeError
from localmoe.hardware import available_memory
from localmoe.hub.catalog import resolve

MOST_BYTES = 5 << 30  # of weights, or their first layer
SCAN_BYTES = 512 << 20  # read with each setting of the plain reader, to find the fastest ones
NUM_CANDIDATES = 2  # of those, the faster one counts in each pair
NUM_PAIRS = 5
PAIRS_S = 200.0  # no further pair is begun after this
MIB = 1 << 20
ALLOWED_BYTES = 1 << 30  # of memory, beside the weights
CHILD = "from localmoe.bench.load import main; main()"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the process found. Rates are in bytes per second; `pairs` have ours first."""

    file_bytes: int
    peak_bytes: int
    note: str
    is_direct: bool
    first_rate: float
    settings: str = ""
    pairs: Sequence[tuple[float, float]] = ()


def measure(model: str | None, listener: Listener) -> Iterator[Row]:
    """Rows `load`, `load-first` and `load-peak`; without a `model`, for the benchmark's own."""
    folder = resolve(model).folder if model else bench_checkpoint(listener)
    listener.progress("load: weights into memory, and direct reads of the same files, in turn")
    measured = _in_a_process(folder, min(MOST_BYTES, available_memory() // 2 or MOST_BYTES))
    listener.progress(measured.note)
    if measured.pairs:
        listener.progress(f"the fastest direct reads: {measured.settings}")
        yield from _rate_rows(measured, listener)
    else:
        listener.warn(f"load is left out: {measured.note}")
    beside = (measured.peak_bytes - measured.file_bytes) / MIB
    yield compared(Row("load", "load-peak", "mib", beside, "MiB"), ALLOWED_BYTES / MIB, "allowed beside the weights")


def _rate_rows(measured: Measured, listener: Listener) -> Iterator[Row]:
    ours, plain = (median(side) / 1e9 for side in zip(*measured.pairs, strict=True))
    ratio, against = median(a / b for a, b in measured.pairs), "the disk's direct reads"
    yield Row("load", "load", "gb_s", ours, "GB/s", plain, ratio, against=against)
    first = measured.first_rate / 1e9
    yield Row("load", "load-first", "gb_s", first, "GB/s", plain, first / plain, against=against)
    if first < 0.8 * ours:
        listener.warn("load-first: this system takes longer to find new memory than the disk to fill it")


def _in_a_process(folder: Path, most_bytes: int) -> Measured:
    command = [sys.executable, "-c", CHILD, str(folder.absolute()), str(most_bytes)]
    home = Path(localmoe.__file__).parent.parent  # the child runs what this process does, wherever it was begun
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=home)
    if done.returncode:
        raise LocalmoeError("the weights could not be loaded", done.stderr.strip()[-400:])
    return Measured(**json.loads(done.stdout))


def main() -> None:
    """Measures, and writes what it found to stdout as JSON."""
    sys.stdout.write(json.dumps(asdict(find(Path(sys.argv[1]), int(sys.argv[2])))))


def find(folder: Path, most_bytes: int) -> Measured:
    """All of it, in this process."""
    weights = WeightReader(folder, most_bytes)
    first_s, store = weights.read()
    size, note = weights.file_bytes, store.notes[0]
    first = Measured(size, peak_bytes(), note, store.is_direct, size / first_s)
    if not store.is_direct:
        return first
    files = sorted(folder.glob("*.safetensors"))
    candidates = sorted(SETTINGS, key=lambda s: read_rate(files, SCAN_BYTES, s))[-NUM_CANDIDATES:]
    pairs: list[tuple[float, float]] = []
    end_s = time.monotonic() + PAIRS_S
    while len(pairs) < NUM_PAIRS and (not pairs or time.monotonic() < end_s):
        pairs.append(_pair(weights, files, candidates, ours_first=len(pairs) % 2 == 0))
    return replace(first, settings=" or ".join(map(str, candidates)), pairs=pairs)


def _pair(
    weights: WeightReader, files: Sequence[Path], candidates: Sequence[Setting], *, ours_first: bool
) -> tuple[float, float]:
    """Rates, ours and the fastest plain reader's. Disks that slow down after a burst do so for both in turn."""
    size = weights.file_bytes
    early = size / weights.read()[0] if ours_first else None
    plain = max(read_rate(files, size, setting) for setting in candidates)
    return early or size / weights.read()[0], plain


def peak_bytes() -> int:
    """The most that this process has had in memory; what it has on reserved pages the kernel counts apart."""
    status = Path("/proc/self/status").read_text()
    return sum(1024 * int(status.partition(f"{name}:")[2].split()[0]) for name in ("VmHWM", "HugetlbPages"))
