"""`bench --device cuda`: kernels beside what the chip reaches, prompts that are streamed to it, answers made beside it.

Not proven on hardware: it was written without a GPU.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from localmoe.bench import slp
from localmoe.bench.checkpoint import bench_checkpoint, large_checkpoint
from localmoe.bench.machine.gpu import measure_gpus
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.gpu_trials import GpuModel, kernel_times, locked_copy_rate, preempted
from localmoe.errors import LocalmoeError, UsageError
from localmoe.hardware import Gpu, Machine
from localmoe.hub.catalog import resolve
from localmoe.settings import Settings

SUITES = ("kernels", "decode", "slp")
MAX_TOKENS = 8192  # of a streamed prompt
STREAMED = "v3-shaped"  # the checkpoint, where memory and disk hold it


def check_suites(suites: tuple[str, ...]) -> None:
    """UsageError for one that says nothing of a GPU."""
    if others := [suite for suite in suites if suite not in SUITES]:
        raise UsageError(f"there is no suite {others[0]} for --device cuda", f"known: {', '.join(SUITES)}")


def on_gpu(settings: Settings) -> Settings:
    """With a plan that attends on a GPU, whatever is predicted to be faster."""
    if settings.plan in ("slp", "dslp"):
        return settings
    return replace(settings, plan="slp", origins={**settings.origins, "plan": "flag"})


def kernels(machine: Machine, listener: Listener) -> Iterator[Row]:
    """Each kernel twice: its rate beside the chip's own, and its time beside the floor at the data sheet's rates."""
    gpu = machine.gpus[0]
    measured, _ = measure_gpus(replace(machine, gpus=(gpu,)), listener)
    listener.progress(f"kernels: a copy to {gpu.name} from memory that is locked as weights are")
    rate, note = locked_copy_rate(gpu)
    if note:
        listener.progress(note)
    row = Row("kernels", "gpu-locked-copy", "gb_s", rate / 1e9, "GB/s", isa=gpu.name)
    link = measured[0].h2d_bytes_s if measured else None
    yield compared(row, link / 1e9, "the link, from torch's own page-locked memory") if link else row
    listener.progress("kernels: each is compiled, then run")
    for time in kernel_times(gpu):
        case = f"gpu-{time.case}"
        if time.is_memory_bound:
            row = Row("kernels", case, "gb_s", time.rate / 1e9, "GB/s", isa=gpu.name)
            yield compared(row, time.peak / 1e9, "a copy within the GPU's memory")
        else:
            row = Row("kernels", case, "tflop_s", time.rate / 1e12, "TFLOP/s", isa=gpu.name)
            yield compared(row, time.peak / 1e12, "torch's matrix product on this GPU")
        us = Row("kernels", case, "us", 1e6 * time.seconds, "us", isa=gpu.name)
        yield compared(us, 1e6 * time.floor_s, "the floor at the data sheet's rates")
    yield from _preempted(gpu, listener)


def _preempted(gpu: Gpu, listener: Listener) -> Iterator[Row]:
    """What a step's layer waits for beside a prompt's product that leaves between tiles."""
    listener.progress("kernels: a step's kernels beside a prompt's product, which leaves, or comes second")
    found = preempted(gpu)
    middle = Row("kernels", "gpu-preempt", "us", 1e6 * found.leaving.median_s, "us", isa=gpu.name)
    yield compared(middle, 1e6 * max(found.priorities.median_s, 1e-9), "the same by priorities of streams")
    most = Row("kernels", "gpu-preempt-most", "us", 1e6 * found.leaving.most_s, "us", isa=gpu.name)
    yield compared(most, 1e6 * max(found.priorities.most_s, 1e-9), "the same by priorities of streams")
    whole = Row("kernels", "gpu-resident", "us", 1e6 * found.resident_s, "us", isa=gpu.name)
    yield compared(whole, 1e6 * found.plain_s, "the prompt's product with one program for each tile")
    bound = Row("kernels", "gpu-preempt-bound", "us", 1e6 * found.leaving.most_s, "us", isa=gpu.name)
    yield compared(bound, 1e6 * found.tile_s, "a tile at the data sheet's rates")


def streamed(machine: Machine, model: str | None, listener: Listener) -> Iterator[Row]:
    """Suite slp's cases, with experts from memory."""
    folder = resolve(model).folder if model else _checkpoint(listener)
    listener.progress("slp: opening the model in memory, and on the GPU")
    with closing(GpuModel(folder, machine.gpus, MAX_TOKENS)) as opened:
        for note in opened.notes:
            listener.progress(f"slp: {note}")
        yield from slp.measure_model(opened, listener, max_tokens=MAX_TOKENS, num_links=opened.num_gpus)


def _checkpoint(listener: Listener) -> Path:
    """The larger one, where this machine holds it."""
    try:
        return large_checkpoint(STREAMED, listener)
    except LocalmoeError as error:
        listener.warn(f"slp: a smaller model is streamed: {error.message}")
        return bench_checkpoint(listener)
