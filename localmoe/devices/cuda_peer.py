"""Copies from one GPU to another: by themselves where they reach each other, else through page-locked memory."""

from typing import Any

from localmoe.devices.cuda_runtime import Runtime

CHUNK_BYTES = 4 << 20
NUM_BUFFERS = 2  # one is filled while the other is emptied


class Relay:
    """From GPU `source` to GPU `target`; of one stream of the target's."""

    def __init__(self, target: Runtime, source: Runtime) -> None:
        self._target = target
        self._source = source
        self._reads = source.new_stream()
        self._is_direct = target.reaches(source)
        self._buffers: list[tuple[Any, Any, Any]] = []  # page-locked memory; it is filled; it is empty

    def copy(self, stream: Any, target: Any, source: Any) -> None:
        """Issues it in the order of `stream`; what is behind it there comes when all of it is done."""
        if self._is_direct:
            self._target.copy(stream, target, source)
            return
        self._prepare()
        start = self._target.new_event()
        self._target.record(stream, start)
        self._source.wait(self._reads, start)
        for n, at in enumerate(range(0, len(source), CHUNK_BYTES)):
            end = min(len(source), at + CHUNK_BYTES)
            self._copy_chunk(n, stream, target[at:end], source[at:end])

    def _copy_chunk(self, n: int, stream: Any, target: Any, source: Any) -> None:
        memory, filled, empty = self._buffers[n % NUM_BUFFERS]
        memory = memory[: len(source)]
        self._source.wait(self._reads, empty)
        self._source.copy(self._reads, memory, source)
        self._source.record(self._reads, filled)
        self._target.wait(stream, filled)
        self._target.copy(stream, target, memory)
        self._target.record(stream, empty)

    def _prepare(self) -> None:
        while len(self._buffers) < NUM_BUFFERS:
            memory = self._source.host_alloc(CHUNK_BYTES)
            self._buffers.append((memory, self._source.new_event(), self._target.new_event()))
