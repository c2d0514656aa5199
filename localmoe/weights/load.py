"""From files to the arena: several threads read pieces straight into place and check each while it is in the cache."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localmoe.errors import CancelledError, CheckpointError, OutOfMemoryError
from localmoe.hardware import available_memory
from localmoe.hub.checkpoint import Checkpoint, TensorInfo, TensorSpec
from localmoe.hub.json_file import fetch_hint, unreadable
from localmoe.weights import checks
from localmoe.weights.arena import Arena
from localmoe.weights.layout import SCALE_SUFFIX, Layout, is_vector, plan_layout, resting_bytes
from localmoe.weights.store import Store

PIECE_BYTES = 4 << 20  # 40 ms of a disk that does 100 MB/s: what a cancel waits for
POLL_S = 0.02
MAX_THREADS = 16
RESERVE_BYTES = 64 << 20  # what loading itself takes: threads, checks, tensor names

Progress = Callable[[int, int], None]


def load(
    checkpoint: Checkpoint,
    specs: Iterable[TensorSpec],
    *,
    on_progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Store:
    """Reads the tensors that `specs` name. `on_progress(done_bytes, total_bytes)` and `cancelled()` run in this thread.

    CheckpointError for damage (the tensor, file and byte are named), OutOfMemoryError before anything is allocated,
    CancelledError within 100 ms of `cancelled()` being true. After an error no memory is kept.
    """
    specs = list(specs)
    checkpoint.validate(specs)
    layout = plan_layout(checkpoint.tensors[spec.name] for spec in specs)
    _require_memory(layout)
    arena = Arena(layout.nbytes)
    try:
        _read_all(arena, layout, on_progress or (lambda done, total: None), cancelled or (lambda: False))
    except BaseException:  # KeyboardInterrupt too: the traceback holds views that would keep the memory
        arena.discard()
        raise
    return Store(arena, layout)


def _require_memory(layout: Layout) -> None:
    """Fails with every line item when the weights do not fit beside what the machine has in use."""
    items = {"experts": layout.expert_bytes, "other weights": layout.nbytes - layout.expert_bytes}
    items["reserve"] = RESERVE_BYTES
    needed, available = sum(items.values()), available_memory()
    if 0 < available < needed:  # 0: the system does not say, so let it decide when the arena is mapped
        listed = ", ".join(f"{name} {nbytes / 1e9:,.1f}" for name, nbytes in items.items())
        raise OutOfMemoryError(
            f"the weights need {needed / 1e9:,.1f} GB of memory; {available / 1e9:,.1f} GB are available ({listed}).",
            "close other programs, raise the memory limit of this container, or choose a smaller model "
            "(`localmoe models` lists sizes).",
        )


def _read_all(arena: Arena, layout: Layout, on_progress: Progress, cancelled: Callable[[], bool]) -> None:
    total = sum(tensor.nbytes for tensor in layout.tensors.values())
    with ExitStack() as stack:
        files = {tensor.file: tensor.file for tensor in layout.tensors.values()}
        reader = _Reader(arena, layout, {file: _open(file, stack) for file in files})
        pool = stack.enter_context(ThreadPoolExecutor(_num_threads(), "localmoe-load"))
        stack.callback(reader.stop.set)  # before the pool waits for its threads
        pending = {pool.submit(reader.run) for _ in range(_num_threads())}
        while pending:
            if cancelled():
                raise CancelledError("loading was interrupted.", "nothing was kept; run the command again.")
            done, pending = wait(pending, POLL_S, FIRST_COMPLETED)
            for future in done:
                future.result()
            on_progress(reader.done_bytes, total)


def _open(file: Path, stack: ExitStack) -> int:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(file, error) from error
    stack.callback(os.close, fd)
    return fd


def _num_threads() -> int:
    return max(2, min(MAX_THREADS, len(os.sched_getaffinity(0))))


@dataclass(frozen=True)
class _Piece:
    """Bytes of one tensor, from `start` in its file."""

    tensor: TensorInfo
    start: int
    target: NDArray[np.uint8]
    check: checks.Check


class _Reader:
    """What the threads share: the next piece, the count of bytes done, the order to stop."""

    def __init__(self, arena: Arena, layout: Layout, fds: dict[Path, int]) -> None:
        self.stop = threading.Event()
        self.done_bytes = 0
        self._fds = fds
        self._pieces = _pieces(arena, layout)
        self._lock = threading.Lock()

    def run(self) -> None:
        """One thread's work: pieces until there are none, or until someone says stop."""
        done = 0
        while not self.stop.is_set():
            with self._lock:
                self.done_bytes += done
                piece = next(self._pieces, None)
            if piece is None:
                return
            done = self._read(piece)

    def _read(self, piece: _Piece) -> int:
        tensor = piece.tensor
        if is_vector(tensor):
            raw = np.empty(tensor.nbytes, np.uint8)
            self._fill(piece, raw)
            piece.target.view(np.float32)[:] = _as_float32(raw, tensor.dtype)
        else:
            raw = piece.target
            self._fill(piece, raw)
        bad = piece.check(raw)
        if bad is not None:
            raise _bad_value(piece, raw, bad)
        return raw.nbytes

    def _fill(self, piece: _Piece, raw: NDArray[np.uint8]) -> None:
        done = 0
        while done < raw.nbytes:
            try:
                count = os.preadv(self._fds[piece.tensor.file], [raw[done:].data], piece.start + done)
            except OSError as error:
                raise unreadable(piece.tensor.file, error) from error
            if count == 0:
                file = piece.tensor.file
                raise CheckpointError(
                    f"shard {file.name} ended at byte {piece.start + done:,} while it was read; "
                    f"tensor {piece.tensor.name} needs it up to {piece.tensor.stop:,}.",
                    fetch_hint(file),
                )
            done += count


def _pieces(arena: Arena, layout: Layout) -> Iterator[_Piece]:
    """Every tensor in file order, large ones in pieces."""
    for tensor in sorted(layout.tensors.values(), key=lambda t: (str(t.file), t.start)):
        target = arena.view(layout.places[tensor.name], resting_bytes(tensor))
        check = _check_for(tensor)
        step = max(1, target.nbytes) if is_vector(tensor) else PIECE_BYTES
        for offset in range(0, target.nbytes, step):
            yield _Piece(tensor, tensor.start + offset, target[offset : offset + step], check)


def _check_for(tensor: TensorInfo) -> checks.Check:
    if tensor.name.endswith(SCALE_SUFFIX):
        return checks.scales
    return {"F8_E4M3": checks.fp8, "BF16": checks.bf16, "F32": checks.fp32}[tensor.dtype]


def _as_float32(raw: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    if dtype == "F32":
        return raw.view(np.float32)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _bad_value(piece: _Piece, raw: NDArray[np.uint8], index: int) -> CheckpointError:
    tensor = piece.tensor
    if tensor.name.endswith(SCALE_SUFFIX):
        what = f"the scale {raw[index : index + 4].view(np.float32)[0]:g}, which is not finite and positive,"
    elif tensor.dtype == "F8_E4M3":
        what = f"the FP8 code 0x{raw[index]:02X}, which is not a number,"
    else:
        what = "a value that is not a finite number"
    return CheckpointError(
        f"tensor {tensor.name} has {what} at byte {piece.start + index:,} of shard {tensor.file.name}.",
        fetch_hint(tensor.file),
    )
