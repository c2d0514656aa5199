"""Whose turn it is on a device's processors: programs of a prompt stay there until somebody asks for them.

Steps do, and short prompts that are read meanwhile. The stream of such a one writes a request's number before what it
computes and the same number behind it, so the host has no part in it; who computes a prompt waits between the two.
"""

from dataclasses import dataclass
from typing import Self

from localmoe import _native as native
from localmoe.devices.device import Device, Flag, Stream


class Turns:
    """Of one stream. `asked` is at the number of the last request. `finished` is for whoever computes prompts: at the
    number of the last urgent product that they have computed for steps. `has_queue`: they take such products between
    two tiles.
    """

    def __init__(self, device: Device) -> None:
        self.has_queue = False
        self.asked: Flag = device.new_flag()
        self.finished: Flag = device.new_flag()
        self._device = device
        self._given: Flag = device.new_flag()
        self._count = 0

    def take(self, stream: Stream) -> None:
        """Issues a request. What comes behind it on `stream` runs as programs leave; `give` ends it."""
        self._count += 1
        stream.write_flag(self.asked, self._count)

    def give(self, stream: Stream) -> None:
        """Issues the end of the request."""
        stream.write_flag(self._given, self._count)

    def wait_finished(self, number: int) -> None:
        """Called in work that a stream has launched: what it issues from here on begins when that product is done."""
        self._device.wait_here(self.finished, number)

    def settle(self) -> None:
        """For when nothing of the stream runs any more: none of its requests stands."""
        for flag in (self.asked, self._given):
            if flag.value < self._count:
                flag.set(self._count)

    def wait(self, request: int, timeout: float) -> bool:
        """Whether it is given back within `timeout` seconds. Where its stream fails, `settle` gives it back."""
        return native.wait_word(self._given.memory, request, timeout)


@dataclass(frozen=True)
class Askers:
    """All who ask for one device."""

    steps: Turns
    passing: Turns

    @classmethod
    def on(cls, device: Device) -> Self:
        """Nobody has asked yet."""
        return cls(Turns(device), Turns(device))

    @property
    def requests(self) -> tuple[int, int]:
        """The last one of each."""
        return self.steps.asked.value, self.passing.asked.value

    def wait(self, requests: tuple[int, int], timeout: float) -> bool:
        """Whether all are given back within about `timeout` seconds."""
        return self.steps.wait(requests[0], timeout) and self.passing.wait(requests[1], timeout)
