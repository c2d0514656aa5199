"""Threads that read pieces and put them into place, each with a buffer of its own."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localmoe import _native as native
from localmoe.errors import OutOfMemoryError
from localmoe.weights.arena import bounce_buffer
from localmoe.weights.pieces import BLOCK_BYTES, Piece
from localmoe.weights.sources import Source

GRACE_S = 0.05  # what a cancel waits for reads that are under way

Bytes = NDArray[np.uint8]
Place = Callable[[Piece, Bytes], None]
Straight = Callable[[Source, Piece, Bytes, native.Gate], bool]


class Readers:
    """Threads at work on `pieces`, from `start` to `halt`.

    A read that hangs holds up nobody: `halt` leaves its thread behind, and that one touches nothing any more when the
    read returns. Whoever leaves last closes the files.
    """

    def __init__(
        self,
        pieces: Iterator[Piece],
        piece_bytes: int,
        sources: Mapping[Path, Source],
        straight: Straight,
        place: Place,
    ) -> None:
        """`straight` may do all of a piece; where it has not, that is read and given to `place`."""
        self.done_bytes = 0
        self.over = threading.Event()  # everything is in place, or something has failed
        self.error: BaseException | None = None
        self._pieces = pieces
        self._buffer_bytes = piece_bytes + BLOCK_BYTES
        self._sources = sources
        self._straight = straight
        self._place = place
        self._gate = native.Gate()
        self._num_present = 1  # whoever made this, until it halts
        self._change = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Sets `count` threads to work."""
        for _ in range(count):
            thread = threading.Thread(target=self._run, name="localmoe-load", daemon=True)
            with self._change:
                self._num_present += 1
            try:
                thread.start()
            except RuntimeError as error:
                self._leave()
                raise OutOfMemoryError(f"no thread can be started: {error}.", "raise `ulimit -u`.") from error
            self._threads.append(thread)

    def halt(self) -> None:
        """Returns when none of them touches the arena any more; those that a disk holds up may still be there."""
        self._pieces = iter(())
        self._gate.shut()
        deadline_s = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._leave()

    def _run(self) -> None:
        try:
            buffer = bounce_buffer(self._buffer_bytes)
            while piece := self._next():
                source = self._sources[piece.file]
                if not self._straight(source, piece, buffer, self._gate):
                    source.read(buffer, piece.start, piece.stop)
                    if not self._put(piece, buffer):
                        break
                with self._change:
                    self.done_bytes += piece.wanted_bytes
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self.error = self.error or error
            self.over.set()
        self._leave()

    def _next(self) -> Piece | None:
        with self._change:
            return next(self._pieces, None)

    def _put(self, piece: Piece, buffer: Bytes) -> bool:
        """Whether the memory may still be touched."""
        if not self._gate.enter():
            return False
        try:
            self._place(piece, buffer)
        finally:
            self._gate.leave()
        return True

    def _leave(self) -> None:
        with self._change:
            self._num_present -= 1
            num_present = self._num_present
        if num_present <= 1:  # nobody leaves while there are pieces
            self.over.set()
        if num_present == 0:
            for source in self._sources.values():
                source.close()
