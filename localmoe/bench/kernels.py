"""Suite kernels: each kernel at DeepSeek-V3's shapes, beside what the same cores can do at best.

Where memory is the limit that is the fastest streaming read of the same bytes, where arithmetic is it is a chain of
FMAs in registers. Both are measured in turn with the kernel, and the ratio is the median of the pairs.
"""

from collections.abc import Iterator

from localmoe import _native as native
from localmoe.bench import arithmetic, torch_linear
from localmoe.bench.bandwidth import Bandwidth
from localmoe.bench.kernel_program import Workers
from localmoe.bench.rows import Listener, Row
from localmoe.bench.shapes import V3, Shapes
from localmoe.bench.table import ExpertTable, nbytes_of
from localmoe.errors import UsageError
from localmoe.hardware import available_memory, physical_cores
from localmoe.hardware.placement import worker_cpus
from localmoe.settings import Settings

SPARE_BYTES = 100 << 20  # beside the table


def measure(settings: Settings, listener: Listener, shapes: Shapes = V3) -> Iterator[Row]:
    """All rows that memory allows."""
    workers = make_workers(settings)
    yield from arithmetic.measure(workers, shapes, listener)
    needed = nbytes_of(shapes) + SPARE_BYTES
    if available_memory() < needed:
        listener.warn(f"gemv and moe are left out: they take {needed / 1e9:.1f} GB of memory")
    else:
        yield from Bandwidth(workers, shapes, ExpertTable(shapes, listener), listener).fp8_rows()
        yield from Bandwidth(workers, shapes, ExpertTable(shapes, listener, is_bf16=True), listener).bf16_rows()
    yield from torch_linear.measure(workers, shapes, listener)


def num_workers(settings: Settings) -> int:
    """As many as an answer would have."""
    cores = physical_cores()
    return settings.threads or (cores - 1 if cores > 2 else cores)


def make_workers(settings: Settings) -> Workers:
    """The pool, on the target that was asked for or the best; UsageError where this machine lacks it."""
    try:
        target = str(native.check_target(settings.isa or ""))
    except ValueError as error:
        raise UsageError(f"{error}", f"this machine runs: {', '.join(native.supported_targets())}") from error
    return Workers(native.Pool(worker_cpus(num_workers(settings))), target)
