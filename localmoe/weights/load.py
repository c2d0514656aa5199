"""From files to the arena: readers take piece after piece, put its parts into place and check them on the way."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from localmoe.errors import CancelledError, OutOfMemoryError
from localmoe.hardware import available_memory
from localmoe.hub.checkpoint import Checkpoint, TensorSpec
from localmoe.weights.arena import Arena, from_reserved
from localmoe.weights.layout import Layout, plan_layout
from localmoe.weights.numa import memory_nodes
from localmoe.weights.pieces import cut
from localmoe.weights.place import place
from localmoe.weights.readers import Readers
from localmoe.weights.sources import Source
from localmoe.weights.store import Store
from localmoe.weights.straight import Straight

DIRECT_PIECE_BYTES = 4 << 20  # of which sources.READ_BYTES are read at once
CACHED_PIECE_BYTES = 512 << 10  # it stays in L2 on its way from the page cache to its place
NUM_READERS = 12  # 48 MiB of buffers; the disk works while pieces are put into place
SMALL_BYTES = 512 << 20  # twice in memory, once in the page cache, that much still keeps below the weights + 1 GiB
POLL_S = 0.02
RESERVE_BYTES = 128 << 20  # what loading itself takes: buffers, threads, tensor names

Progress = Callable[[int, int], None]


def load(
    checkpoint: Checkpoint,
    specs: Iterable[TensorSpec],
    *,
    on_progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    new_arena: Callable[[int], Arena] | None = None,
    nodes: Sequence[int] | None = None,
) -> Store:
    """Reads the tensors that `specs` name. `on_progress(done_bytes, total_bytes)` and `cancelled()` run in this thread.

    CheckpointError for damage (the tensor, file and byte are named), OutOfMemoryError before anything is allocated,
    CancelledError within 100 ms of `cancelled()` being true. After an error no memory is kept. `new_arena` gives the
    memory, for who wants to use some again. Experts are split over `nodes`: this machine's, or a test's.
    """
    specs = list(specs)
    checkpoint.validate(specs)
    tensors = (checkpoint.tensors[spec.name] for spec in specs)
    layout = plan_layout(tensors, memory_nodes() if nodes is None else nodes)
    _require_memory(layout)
    arena = (new_arena or Arena)(layout.nbytes)
    try:
        arena.bind(layout.regions)
        sources = _read_all(arena, layout, on_progress or (lambda done, total: None), cancelled or (lambda: False))
    except BaseException:  # KeyboardInterrupt too: the traceback holds views that would keep the memory
        arena.discard()
        raise
    is_direct = all(source.is_direct for source in sources)
    return Store(arena, layout, is_direct=is_direct, notes=(_how(sources, layout), *arena.notes))


def _require_memory(layout: Layout) -> None:
    """Fails with every line item when the weights do not fit beside what the machine has in use."""
    items = {"experts": layout.expert_bytes, "other weights": layout.nbytes - layout.expert_bytes}
    items["reserve"] = RESERVE_BYTES
    needed, available = sum(items.values()), available_memory()
    if not available:  # the system does not say, so let it decide when the arena is mapped
        return
    available += from_reserved(layout.nbytes)
    if available < needed:
        listed = ", ".join(f"{name} {nbytes / 1e9:,.1f}" for name, nbytes in items.items())
        raise OutOfMemoryError(
            f"the weights need {needed / 1e9:,.1f} GB of memory; {available / 1e9:,.1f} GB are available ({listed}).",
            "close other programs, raise the memory limit of this container, or choose a smaller model "
            "(`localmoe models` lists sizes).",
        )


def _read_all(arena: Arena, layout: Layout, on_progress: Progress, cancelled: Callable[[], bool]) -> list[Source]:
    """Everything into place; returns what it was read from."""
    total, direct = layout.file_bytes, _is_large(layout)
    piece_bytes = DIRECT_PIECE_BYTES if direct else CACHED_PIECE_BYTES
    sources = _open({tensor.file for tensor in layout.tensors.values()}, direct=direct)
    pieces = cut(layout.tensors.values(), piece_bytes)
    straight = Straight(arena, layout).read
    readers = Readers(pieces, piece_bytes, sources, straight, lambda piece, raw: place(arena, layout, piece, raw))
    try:
        readers.start(num_readers(total))
        while not readers.over.wait(POLL_S):
            if cancelled():
                raise CancelledError("loading was interrupted.", "nothing was kept; run the command again.")
            on_progress(readers.done_bytes, total)
    finally:
        readers.halt()
    if readers.error:
        raise readers.error
    on_progress(readers.done_bytes, total)
    return list(sources.values())


def _open(files: Iterable[Path], *, direct: bool) -> dict[Path, Source]:
    sources: dict[Path, Source] = {}
    with ExitStack() as stack:
        for file in sorted(files):
            sources[file] = Source(file, direct=direct)
            stack.callback(sources[file].close)
        stack.pop_all()  # all are open: the readers close them
    return sources


def num_readers(total_bytes: int) -> int:
    """No more than there are pieces."""
    return max(1, min(NUM_READERS, total_bytes // DIRECT_PIECE_BYTES))


def _is_large(layout: Layout) -> bool:
    return layout.file_bytes > SMALL_BYTES


def _how(sources: list[Source], layout: Layout) -> str:
    """For people."""
    count = num_readers(layout.file_bytes)
    readers = f"{count} reader{'s' * (count > 1)}"
    if not _is_large(layout):
        return f"weights were read through the page cache, where {layout.file_bytes / 1e6:,.0f} MB may stay ({readers})"
    refused = [source.path.name for source in sources if not source.is_direct]
    if refused:
        return f"weights were read through the page cache: direct reads of {refused[0]} were refused ({readers})"
    return f"weights were read directly, past the page cache ({readers}, pieces of {DIRECT_PIECE_BYTES >> 20} MiB)"
