"""GEMV beside torch's, in a process of its own: torch's threads and its import disturb no other measurement."""

import subprocess
import sys
import time
from collections.abc import Iterator

from localmoe.bench.kernel_program import KernelProgram, Workers, codes, scales
from localmoe.bench.pairs import in_turn
from localmoe.bench.rows import Listener, Row
from localmoe.bench.shapes import Shapes
from localmoe.hardware import available_memory

# Runs all matrices once for every line that it is sent, and answers with the seconds.
PEER = """
import sys, time
import torch
dtype, threads, count, rows, cols = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.set_grad_enabled(False)
weights = [(torch.randn(rows, cols) * 0.02).to(getattr(torch, dtype)) for _ in range(count)]
x = torch.randn(1, cols).to(getattr(torch, dtype))
for _ in sys.stdin:
    start_s = time.perf_counter()
    for weight in weights:
        torch.nn.functional.linear(x, weight)
    print(time.perf_counter() - start_s, flush=True)
"""
TORCH_BYTES = 600 << 20  # torch itself
SPIN_S = 0.25  # OpenMP's threads look out for more work that long: they are not to take the cores from ours
DTYPES = {"bf16": ("bfloat16", 2), "fp32": ("float32", 4)}


class NotRunError(Exception):
    """Why torch gave no figure."""


def measure(workers: Workers, shapes: Shapes, listener: Listener) -> Iterator[Row]:
    """`gemv-vs-torch` (its BF16) and `gemv-vs-torch-fp32`: FP8 here, the same shape and threads there."""
    for dtype in DTYPES:
        case = "gemv-vs-torch" if dtype == "bf16" else f"gemv-vs-torch-{dtype}"
        listener.progress(f"{case}: the same shape in torch's {dtype}")
        try:
            yield _row(case, dtype, workers, shapes)
        except NotRunError as reason:
            listener.warn(f"{case} is left out: {reason}")


def _row(case: str, dtype: str, workers: Workers, s: Shapes) -> Row:
    needed = TORCH_BYTES + s.num_torch * s.inter * s.hidden * (1 + DTYPES[dtype][1])
    if available_memory() < needed:
        raise NotRunError(f"torch takes {needed / 1e9:.1f} GB of memory for it")
    program = KernelProgram(workers, 1)
    x, y, scale = program.input(s.hidden), program.rows(s.inter), scales(s.inter, s.hidden)
    for matrix in codes(s.num_torch, s.inter, s.hidden):
        program.recorded.linear(x, matrix, scale, y)
    timed, flops = program.ready(), 2.0 * s.num_torch * s.inter * s.hidden
    with Torch(dtype, workers.pool.num_workers, s) as torch:
        value, peer, ratio = in_turn(lambda _: flops / timed.seconds(), lambda _: flops / torch.seconds(), s.num_pairs)
    against = f"torch {dtype} linear"
    return Row("kernels", case, "gflop_s", value / 1e9, "GFLOP/s", peer / 1e9, ratio, workers.target, against)


class Torch:
    """The process."""

    def __init__(self, dtype: str, num_threads: int, s: Shapes) -> None:
        sizes = (num_threads, s.num_torch, s.inter, s.hidden)
        self._process = subprocess.Popen(
            [sys.executable, "-c", PEER, DTYPES[dtype][0], *map(str, sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Torch":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def seconds(self) -> float:
        """How long one run takes; NotRunError when there is none."""
        assert self._process.stdin and self._process.stdout and self._process.stderr
        try:
            print(file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            said = self._process.stderr.read().strip().splitlines()
            raise NotRunError(said[-1] if said else "torch's process ended")
        time.sleep(SPIN_S)
        return float(answer)
