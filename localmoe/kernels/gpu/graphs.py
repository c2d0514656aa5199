"""CUDA graphs of a program's pieces: what was launched kernel by kernel is launched again by one call.

A piece is captured when it comes for the second time: by then its kernels are compiled. Shapes that have not come for
long are forgotten.

Not proven on hardware: written without a GPU. Which piece is captured and replayed when is tested.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

MOST_SHAPES = 8  # of runs, whose graphs are kept


class Graph(Protocol):
    """One captured piece."""

    def capture(self, issue: Callable[[], None]) -> None:
        """Notes what `issue` launches on the current stream, and launches nothing."""
        ...

    def replay(self) -> None:
        """Launches it on the current stream."""
        ...


class CudaGraph:
    """Graphs of one `pool` share what kernels allocate meanwhile, so they are replayed in one stream's order only."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, issue: Callable[[], None]) -> None:
        """As Graph says; other threads may use the GPU meanwhile."""
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            issue()
        finally:
            self._graph.capture_end()

    def replay(self) -> None:
        """As Graph says."""
        self._graph.replay()


def cuda_graphs() -> "Graphs":
    """Graphs of the current GPU."""
    pool = torch.cuda.graph_pool_handle()
    return Graphs(lambda: CudaGraph(pool))


@dataclass
class _Piece:
    """`reads` is kept alive: its identity is part of the key, and the graph reads its memory."""

    reads: object
    graph: Graph | None = None  # None: it came once


@dataclass
class Graphs:
    """By the shape of a run, and in it by piece."""

    new_graph: Callable[[], Graph]
    _shapes: "OrderedDict[Hashable, dict[Hashable, _Piece]]" = field(default_factory=OrderedDict)

    def run(self, shape: Hashable, piece: Hashable, issue: Callable[[], None], reads: object = None) -> None:
        """Issues the piece: as `issue` does, or as it did when it was captured. `reads`: what else it depends on."""
        pieces = self._of(shape)
        found = pieces.get((piece, id(reads)))
        if found is None:
            issue()
            pieces[piece, id(reads)] = _Piece(reads)
            return
        if found.graph is None:
            graph = self.new_graph()
            graph.capture(issue)
            found.graph = graph
        found.graph.replay()

    def forget(self) -> None:
        """Memory that pieces wrote lies elsewhere now."""
        self._shapes.clear()

    def _of(self, shape: Hashable) -> dict[Hashable, _Piece]:
        pieces = self._shapes.setdefault(shape, {})
        self._shapes.move_to_end(shape)
        while len(self._shapes) > MOST_SHAPES:
            self._shapes.popitem(last=False)
        return pieces
