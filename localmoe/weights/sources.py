"""Files as bytes come out of them: past the page cache where their filesystem allows it."""

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localmoe.errors import CheckpointError
from localmoe.hub.json_file import fetch_hint, shown, unreadable
from localmoe.weights.pieces import BLOCK_BYTES

READ_BYTES = 512 << 10  # directly at once: disks and their drivers are quicker with little memory in use
NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)  # what filesystems say that do not read directly


class Source:
    """One file. `is_direct` tells how it is read; it turns false, once, when the filesystem refuses.

    A direct source that had to give in keeps no copy of what it read in the page cache.
    """

    def __init__(self, path: Path, *, direct: bool) -> None:
        self.path = path
        self.is_direct = self._drops = direct
        self.fd = self._open(os.O_DIRECT if direct else 0)

    def read(self, buffer: NDArray[np.uint8], start: int, stop: int) -> None:
        """[start, stop) of the file into `buffer`. Both begin on a block, and the buffer has room for whole ones."""
        at = start
        while at < stop:
            at += self._read_some(buffer[at - start :], at, stop)
        if self._drops and not self.is_direct:
            os.posix_fadvise(self.fd, start, stop - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Nothing is read any more."""
        os.close(self.fd)

    def _open(self, flag: int) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | flag)
        except OSError as error:
            if flag and error.errno in NOT_DIRECT:
                self.is_direct = False
                return self._open(0)
            raise unreadable(self.path, error) from error

    def _read_some(self, buffer: NDArray[np.uint8], at: int, stop: int) -> int:
        direct = self.is_direct
        nbytes = min(READ_BYTES, -(-(stop - at) // BLOCK_BYTES) * BLOCK_BYTES) if direct else stop - at
        try:
            count = os.preadv(self.fd, [buffer[:nbytes].data], at)
        except OSError as error:
            if direct and error.errno in NOT_DIRECT:
                self._give_in()
                return 0
            raise _failed(self.path, at, error) from error
        if count == 0:
            raise _ended(self.path, at, stop)
        if direct and count < stop - at and count % BLOCK_BYTES:  # the next read could not begin on a block
            self._give_in()
        return count

    def _give_in(self) -> None:
        """From now on through the page cache."""
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.is_direct = False


def _failed(path: Path, at: int, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{shown(path)} cannot be read at byte {at:,}: {error.strerror}.",
        "check the disk: the system's log may say more.",
    )


def _ended(path: Path, at: int, stop: int) -> CheckpointError:
    return CheckpointError(
        f"shard {shown(path.name)} ended at byte {at:,} while it was read; it is needed up to {stop:,}.",
        fetch_hint(path),
    )
