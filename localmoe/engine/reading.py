"""Weights on their way into memory and nothing else, for those who measure it."""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localmoe.hub.checkpoint import Checkpoint, TensorSpec
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.tensors import expected_tensors
from localmoe.weights.arena import Arena
from localmoe.weights.layout import Region
from localmoe.weights.load import load
from localmoe.weights.numa import memory_nodes
from localmoe.weights.store import Store


def weight_memory(nbytes: int) -> NDArray[np.uint8]:
    """[nbytes] bytes of memory as a model's weights have it: large pages, spread over the NUMA nodes."""
    arena, nodes = Arena(nbytes), memory_nodes()
    if nodes:
        arena.bind((Region(0, arena.page_bytes, tuple(nodes)),))
    return arena.view(0, nbytes)


def weight_memory_on(node: int, nbytes: int) -> NDArray[np.uint8]:
    """[nbytes] bytes as above, on one NUMA node as far as that has room."""
    arena = Arena(nbytes)
    arena.bind((Region(0, arena.page_bytes, (node,)),))
    return arena.view(0, nbytes)


class WeightReader:
    """As many of a model's first layers as `most_bytes` allow, one at least, read as often as is wanted.

    The first time they go into new memory, as when a model opens; then into the same memory again.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._checkpoint = Checkpoint.open(folder)
        self._specs = _first_layers(self._checkpoint, read_config(self._checkpoint.config), most_bytes)
        self.file_bytes = _size(self._checkpoint, self._specs)
        self._arena: Arena | None = None

    def read(self) -> tuple[float, Store]:
        """Seconds that it took, and what says how it was done."""
        start_s = time.perf_counter()
        store = load(self._checkpoint, self._specs, new_arena=self._memory)
        return time.perf_counter() - start_s, store

    def _memory(self, nbytes: int) -> Arena:
        self._arena = self._arena or Arena(nbytes)
        return self._arena


def _first_layers(checkpoint: Checkpoint, config: ModelConfig, most_bytes: int) -> list[TensorSpec]:
    checkpoint.validate(expected_tensors(config))
    for num_layers in range(config.num_layers, 1, -1):
        specs = expected_tensors(replace(config, num_layers=num_layers))
        if _size(checkpoint, specs) <= most_bytes:
            return specs
    return expected_tensors(replace(config, num_layers=1))


def _size(checkpoint: Checkpoint, specs: Iterable[TensorSpec]) -> int:
    return sum(checkpoint.tensors[spec.name].nbytes for spec in specs)
