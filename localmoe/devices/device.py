"""The protocol of devices: streams of work in order, events between them, memory, and copies into it.

It follows CUDA's streams and events, so that torch's fit it. What a stream is given is *issued*: the call returns, the
work is done later, in the stream's order. An event is recorded before others wait for it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Urgency = Literal["urgent", "early", "bulk"]  # answers; short prompts that pass others; all else


class Step(Protocol):
    """A piece of a copy from a file range: it is fetched into a bounce buffer, then put where it belongs.

    `fetch` may take long, or hang, and writes to the buffer only; or, `in_place`, to the copy's target too, and then a
    cancel waits for it. `place` is quick, and writes to the target.
    """

    @property
    def in_place(self) -> bool: ...

    @property
    def nbytes(self) -> int:
        """Bytes that are wanted of it."""
        ...

    @property
    def buffer_bytes(self) -> int:
        """Room that `fetch` needs, aligned for direct reads."""
        ...

    def fetch(self, buffer: Bytes) -> None: ...

    def place(self, buffer: Bytes) -> None: ...


class Event(Protocol):
    """A point in a stream's work. Recorded again, it stands for the later point."""

    def query(self) -> bool:
        """Whether the point is reached; raises what the work before it failed with."""
        ...

    def wait(self, timeout: float) -> bool:
        """Blocks up to `timeout` seconds; as `query`."""
        ...

    @property
    def reached_s(self) -> float | None:
        """When it was reached, in seconds of time.perf_counter(); None before, or where it never was recorded."""
        ...


class Flag(Protocol):
    """A word that the host and streams write and wait for: how they hand over to each other within a step.

    Its values rise, from 0 to at most 2**31 - 1, and whoever waits for one is content with any higher one.
    """

    @property
    def memory(self) -> NDArray[np.int32]:
        """[1]: the word itself, for native code of the host."""
        ...

    @property
    def value(self) -> int:
        """What was written last."""
        ...

    def set(self, value: int) -> None:
        """Written by the host, at once."""
        ...

    def wait(self, value: int, timeout: float) -> bool:
        """Whether it is at `value` within `timeout` seconds; raises what the stream that is to write it failed with."""
        ...


class Stream(Protocol):
    """Work in order. After a failure it does nothing more until it is reset."""

    def launch(self, work: Callable[[], None]) -> None:
        """Issues `work`: computes on the device."""
        ...

    def copy_async(self, target: Bytes, source: Bytes | Sequence[Step]) -> None:
        """Issues a copy to `target` from memory of the same length, or of the steps of file ranges."""
        ...

    def peer_copy(self, target: NDArray[Any], source: NDArray[Any]) -> None:
        """Issues a copy from another device's memory; arrays of one shape."""
        ...

    def wait(self, event: Event) -> None:
        """What is issued from now on begins when `event`, as recorded so far, is reached."""
        ...

    def record(self, event: Event) -> None:
        """`event` is reached when all that was issued so far is done."""
        ...

    def write_flag(self, flag: Flag, value: int) -> None:
        """`flag` is at `value` when all that was issued so far is done, and the host sees what that has written."""
        ...

    def wait_flag(self, flag: Flag, value: int) -> None:
        """What is issued from now on begins when `flag` is at `value`. `reset` may set it, to end the wait."""
        ...

    def reset(self) -> None:
        """Drops what has not begun, ends what has, forgets a failure. Returns once nothing writes any more."""
        ...


class Memory(Protocol):
    """Some of a device's memory, until it is freed."""

    @property
    def view(self) -> Bytes:
        """On a host device the bytes themselves."""
        ...

    def free(self) -> None: ...


class Device(Protocol):
    """Where work runs."""

    @property
    def name(self) -> str: ...

    @property
    def capacity(self) -> int:
        """Bytes that may be allocated in all."""
        ...

    @property
    def free_bytes(self) -> int:
        """Bytes that still may."""
        ...

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of the copies so far, while any was under way; None before the first."""
        ...

    @property
    def failure(self) -> Exception | None:
        """Why the device is lost, for good; None while it works."""
        ...

    def new_stream(self, name: str, *, urgency: Urgency = "bulk") -> Stream:
        """What more urgent ones are given to compute begins before what waits on others, where the device can."""
        ...

    def new_event(self) -> Event: ...

    def new_flag(self) -> Flag:
        """A flag at 0, for this device's streams and the host."""
        ...

    def wait_here(self, flag: Flag, value: int) -> None:
        """In work that a stream has launched: what that issues from here on begins when `flag` is at `value`."""
        ...

    def alloc(self, nbytes: int) -> Memory:
        """Raises OutOfMemoryError when the device has less."""
        ...

    def register(self, memory: Bytes, *, pinned: bool, portable: bool) -> None:
        """Makes memory of the system ready for copies: page-locked, and for other devices too."""
        ...

    def close(self) -> None:
        """Ends its streams."""
        ...
