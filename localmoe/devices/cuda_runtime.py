"""What cuda.py asks of CUDA: a dozen calls, so that a stand-in made of threads runs the rest of it in tests.

Handles of streams and events are the runtime's own. Everything is issued and nothing waits, but where it says so.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localmoe.devices.device import Urgency


class Word(Protocol):
    """32 bits of page-locked memory that the host reads and writes at once, and streams in their order."""

    value: int

    @property
    def memory(self) -> NDArray[np.int32]:
        """[1]: itself, for native code of the host."""
        ...


class Runtime(Protocol):
    """One GPU."""

    @property
    def name(self) -> str:
        """The chip's: "NVIDIA H200"."""
        ...

    @property
    def torch_name(self) -> str:
        """What torch calls it: "cuda:0"."""
        ...

    @property
    def free_bytes(self) -> int:
        """Of its memory, as the driver sees it."""
        ...

    def alloc(self, nbytes: int) -> Any:
        """A uint8 tensor of zeros on the GPU, once they are there; MemoryError where it has less."""
        ...

    def trim(self) -> None:
        """Gives back to the driver what nobody uses any more."""
        ...

    def host_alloc(self, nbytes: int) -> Any:
        """A page-locked uint8 tensor of the system's memory."""
        ...

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks memory for this GPU and all others; OSError when that is refused."""
        ...

    def unlock(self, address: int) -> None:
        """Lets go of what was locked from `address` on."""
        ...

    def new_stream(self, *, urgency: Urgency = "bulk") -> Any:
        """Blocks of more urgent ones' kernels come before those of others that have not begun."""
        ...

    def new_event(self) -> Any: ...

    def issue(self, stream: Any, work: Callable[[], None]) -> None:
        """Calls `work`, which issues to the current stream, with `stream` as that."""
        ...

    def current_stream(self) -> Any:
        """In work that `issue` calls: its stream."""
        ...

    def copy(self, stream: Any, target: Any, source: Any) -> None:
        """Between uint8 tensors of one length, on this GPU, on one that it reaches, or in the system's memory."""
        ...

    def record(self, stream: Any, event: Any) -> None: ...

    def wait(self, stream: Any, event: Any) -> None:
        """`stream` waits; `event` may be another GPU's."""
        ...

    def reached(self, event: Any) -> bool:
        """Whether all that was recorded before is done."""
        ...

    def seconds(self, first: Any, last: Any) -> float:
        """Between two events that are reached, by the GPU's clock."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Waits until all that `stream` was given is done."""
        ...

    def check(self) -> None:
        """Raises what the GPU has failed with, if it has."""
        ...

    def new_word(self) -> Word: ...

    def write_word(self, stream: Any, word: Word, value: int) -> None:
        """Written once all before is done and seen by the host."""
        ...

    def wait_word(self, stream: Any, word: Word, value: int) -> None:
        """`stream` waits until `word` is at least `value`."""
        ...

    def owns(self, tensor: Any) -> bool:
        """Whether it lies in this GPU's memory."""
        ...

    def reaches(self, other: "Runtime") -> bool:
        """Whether this GPU reads and writes the other's memory by itself."""
        ...

    def why_lost(self, error: BaseException) -> str:
        """The driver's words, where `error` means that the GPU takes no more work; else empty."""
        ...
