"""Single kernels as step programs: recorded on random weights, timed by the call."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.bench.shard import BLOCK, normal_codes

PAGE_TOKENS = 64  # tokens in a page of the latent cache
LINE_BYTES = 64
SCALE = 1e-4  # keeps sums of a few thousand products near 1


def aligned(values: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins where a line of the caches does, as latents and weights do."""
    raw = np.empty(values.nbytes + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    copy = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


@dataclass(frozen=True, slots=True)
class Workers:
    """The pool and the target that everything is timed on."""

    pool: native.Pool
    target: str


class KernelProgram:
    """Ops on `num_tokens` rows. Buffers of inputs and outputs lie one after the other in the program's arena."""

    def __init__(self, workers: Workers, num_tokens: int) -> None:
        self.recorded = native.Program(num_tokens, workers.target)
        self._workers = workers
        self._num_tokens = num_tokens
        self._floats = 0

    def rows(self, width: int) -> native.Rows:
        """A new buffer, one row of `width` for each token."""
        return native.Rows(self.place(width), width, width, False)

    def place(self, width: int) -> int:
        """Where a new buffer of such rows begins, in floats."""
        offset, self._floats = self._floats, self._floats + -(-width * self._num_tokens // 16) * 16
        return offset

    def input(self, width: int) -> native.Rows:
        """Random rows."""
        out = self.rows(width)
        random = np.random.default_rng(width)
        self.recorded.input(random.standard_normal((self._num_tokens, width), np.float32), out)
        return out

    def ready(self, num_cached: int = 0) -> "Timed":
        """Ends recording. Tokens follow `num_cached` ones of the latent cache."""
        self.recorded.plan(self._floats, self._workers.pool.num_workers)
        return Timed(self, self._workers, self._num_tokens, num_cached)


class Timed:
    """A recorded program and what each run of it is given."""

    def __init__(self, program: KernelProgram, workers: Workers, num_tokens: int, num_cached: int) -> None:
        self._program = program.recorded
        self._pool = workers.pool
        self._ids = np.zeros(num_tokens, np.int32)
        self._start = np.array([num_cached], np.int32)
        self._count = np.array([num_tokens], np.int32)
        self._pages = np.arange(-(-(num_cached + num_tokens) // PAGE_TOKENS), dtype=np.int32)
        self._logits = np.empty((num_tokens, 1), np.float32)  # asked for by every run, written by none of these

    def seconds(self, forced_experts: NDArray[np.int32] | None = None) -> float:
        """How long one run takes."""
        start_s = time.perf_counter()
        self.run(forced_experts)
        return time.perf_counter() - start_s

    def run(
        self,
        forced_experts: NDArray[np.int32] | None = None,
        *,
        urgent: bool = True,
        cancel: native.Flag | None = None,
    ) -> bool:
        """One run as urgent or bulk work; false when `cancel` was set."""
        zero, all_logits = np.zeros(1, np.int32), True
        complete: bool = self._program.forward(
            self._pool,
            self._ids,
            self._start,
            self._count,
            self._pages,
            zero,
            self._logits,
            all_logits,
            urgent,
            cancel,
            forced_experts,
        )
        return complete


def codes(*shape: int) -> NDArray[np.uint8]:
    """FP8 codes of normal numbers: a few MB of them again and again, each page in memory of its own."""
    total = int(np.prod(shape))
    piece = normal_codes(np.random.default_rng(total), min(total, 1 << 22))
    return np.resize(piece, total).reshape(shape)


def scales(rows: int, cols: int) -> NDArray[np.float32]:
    """One for each block of a matrix."""
    return np.full((-(-rows // BLOCK), -(-cols // BLOCK)), SCALE, np.float32)


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """`array` as it lies in memory."""
    return array.reshape(-1).view(np.uint8)
