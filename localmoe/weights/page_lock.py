"""Holding the weights' pages in place, so that a GPU can copy from them by itself, at the bus's full speed."""

import errno
import resource
from collections.abc import Callable
from contextlib import suppress

from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES

SLICE_BYTES = 512 * HUGE_PAGE_BYTES  # 1 GiB: what one call holds the kernel up for

Register = Callable[[int, int], None]  # (address, bytes); OSError when the system or the driver refuses
Unregister = Callable[[int], None]  # (address that was registered)


class PageLock:
    """Memory registered slice by slice, in the caller's thread: several threads only wait for each other in the kernel.

    All of it or nothing: where a slice is refused, those before it are let go, because a copy must not run from memory
    that is locked into memory that is not. `note` says what came of it. To be made after the memory was filled: pages
    that are touched while they are locked come one by one.
    """

    def __init__(self, address: int, nbytes: int, register: Register, unregister: Unregister) -> None:
        assert address % HUGE_PAGE_BYTES == 0, "pages of 2 MB are locked as wholes"
        self._unregister = unregister
        self._slices: list[int] = []
        self.note = f"all {nbytes / 1e9:,.1f} GB of weights are page-locked for the GPU"
        try:
            for start in range(address, address + nbytes, SLICE_BYTES):
                register(start, min(SLICE_BYTES, address + nbytes - start))
                self._slices.append(start)
        except OSError as error:
            self.note = _refused(error, len(self._slices) * SLICE_BYTES, nbytes)
            self.release()
        except BaseException:
            self.release()
            raise

    @property
    def is_locked(self) -> bool:
        """Whether a GPU may copy from all of it."""
        return bool(self._slices)

    def release(self) -> None:
        """Lets go of every slice, the last one first; a second call does nothing."""
        while self._slices:
            with suppress(OSError):  # a driver that has already shut down has let go of it
                self._unregister(self._slices.pop())


def _refused(error: OSError, locked_bytes: int, nbytes: int) -> str:
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        why = "the limit on locked memory (`ulimit -l`) is not the reason: there is none. Look at the kernel's log"
    else:
        why = (
            f"this process may lock {limit / 1e9:,.1f} GB: set `ulimit -l unlimited` (in a container: "
            "`--ulimit memlock=-1`)"
        )
    return (
        f"the weights are not page-locked, so copies to the GPU take two to three times as long: locking was refused "
        f"after {locked_bytes / 1e9:,.1f} of {nbytes / 1e9:,.1f} GB ({name}: {error.strerror}), and those were let go. "
        f"{why}"
    )
