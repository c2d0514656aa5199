"""cuda_runtime.Runtime on torch.cuda, for one GPU.

Not proven on hardware: it was written without a GPU. What is behind it runs in tests on a stand-in made of threads.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from localmoe.devices.cuda_driver import Driver, DriverError
from localmoe.devices.cuda_runtime import Runtime, Word
from localmoe.devices.device import Urgency
from localmoe.errors import NotReadyError

PRIORITIES: dict[Urgency, int] = {"urgent": -2, "early": -1, "bulk": 0}  # of streams: torch has four
WORD_BYTES = 64  # a cache line for each flag: nothing else is written there


def why_no_cuda() -> str:
    """Why torch sees no GPU; empty where it sees one."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built for CPUs only: install one for CUDA"
    return f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no GPU that it can use"


def cuda_numbers(gpus: Sequence[tuple[str | None, str]]) -> list[int]:
    """CUDA's number of each GPU, given as (PCI address, name): CUDA counts in another order than the driver.

    NotReadyError for one that torch does not see.
    """
    left = {n: torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())}
    numbers: list[int] = []
    for address, name in gpus:
        same = [n for n, found in left.items() if address is not None and _address(found) == address]
        alike = [n for n, found in left.items() if found.name == name and None in (address, _address(found))]
        number = next(iter(same or alike), None)
        if number is None:
            raise NotReadyError(
                f"torch does not see {name} at {address or 'an unknown address'}",
                "look at CUDA_VISIBLE_DEVICES; --plan cpu needs no GPU",
            )
        left.pop(number)
        numbers.append(number)
    return numbers


def _address(properties: Any) -> str | None:
    """As the driver writes it; None where this torch does not tell."""
    domain, bus, device = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return None if None in (domain, bus, device) else f"{domain:04x}:{bus:02x}:{device:02x}.0"


class PinnedWord:
    """cuda_runtime.Word: the first of a cache line of its own."""

    def __init__(self) -> None:
        self._line = torch.zeros(WORD_BYTES, dtype=torch.uint8, pin_memory=True)
        self.memory = self._line.numpy().view("int32")[:1]
        self.address = int(self._line.data_ptr())

    @property
    def value(self) -> int:
        """What is there now."""
        return int(self.memory[0])

    @value.setter
    def value(self, value: int) -> None:
        self.memory[0] = value


class TorchRuntime:
    """GPU `index`, as CUDA counts them."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._device = torch.device("cuda", index)
        torch.cuda.init()
        self.name = torch.cuda.get_device_name(index)

    @property
    def torch_name(self) -> str:
        """As torch's devices are named."""
        return str(self._device)

    @cached_property
    def _driver(self) -> Driver:
        torch.cuda.synchronize(self.index)  # makes torch's context, if it has none yet
        return Driver(self.index)

    @property
    def free_bytes(self) -> int:
        """As Runtime says."""
        return int(torch.cuda.mem_get_info(self.index)[0])

    def alloc(self, nbytes: int) -> Any:
        """As Runtime says. Zeros are written on the default stream, which ours do not wait for."""
        try:
            memory = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).splitlines()[0]) from error
        torch.cuda.synchronize(self.index)
        return memory

    def trim(self) -> None:
        """As Runtime says."""
        torch.cuda.empty_cache()

    def host_alloc(self, nbytes: int) -> Any:
        """As Runtime says."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def lock(self, address: int, nbytes: int) -> None:
        """As Runtime says."""
        self._driver.lock(address, nbytes)

    def unlock(self, address: int) -> None:
        """As Runtime says."""
        self._driver.unlock(address)

    def new_stream(self, *, urgency: Urgency = "bulk") -> Any:
        """As Runtime says."""
        return torch.cuda.Stream(self.index, priority=PRIORITIES[urgency])

    def new_event(self) -> Any:
        """As Runtime says."""
        return torch.cuda.Event(enable_timing=True)

    def issue(self, stream: Any, work: Callable[[], None]) -> None:
        """As Runtime says."""
        with torch.cuda.stream(stream):
            work()

    def current_stream(self) -> Any:
        """As Runtime says."""
        return torch.cuda.current_stream(self.index)

    def copy(self, stream: Any, target: Any, source: Any) -> None:
        """As Runtime says. Between GPUs torch has the source's default stream wait for ours, and ours for the copy."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def record(self, stream: Any, event: Any) -> None:
        """As Runtime says."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """As Runtime says."""
        stream.wait_event(event)

    def reached(self, event: Any) -> bool:
        """As Runtime says."""
        return bool(event.query())

    def seconds(self, first: Any, last: Any) -> float:
        """As Runtime says."""
        return float(first.elapsed_time(last)) / 1e3

    def synchronize(self, stream: Any) -> None:
        """As Runtime says."""
        stream.synchronize()

    def check(self) -> None:
        """As Runtime says: every call returns a failure that lasts."""
        torch.cuda.default_stream(self.index).query()

    def new_word(self) -> Word:
        """As Runtime says."""
        return PinnedWord()

    def write_word(self, stream: Any, word: Word, value: int) -> None:
        """As Runtime says."""
        assert isinstance(word, PinnedWord)
        self._driver.write_word(stream.cuda_stream, word.address, value)

    def wait_word(self, stream: Any, word: Word, value: int) -> None:
        """As Runtime says."""
        assert isinstance(word, PinnedWord)
        self._driver.wait_word(stream.cuda_stream, word.address, value)

    def owns(self, tensor: Any) -> bool:
        """As Runtime says."""
        return bool(tensor.device == self._device)

    def reaches(self, other: Runtime) -> bool:
        """As Runtime says."""
        assert isinstance(other, TorchRuntime)
        return bool(torch.cuda.can_device_access_peer(self.index, other.index))

    def why_lost(self, error: BaseException) -> str:
        """As Runtime says. Running out of memory is no such failure."""
        if isinstance(error, (torch.AcceleratorError, DriverError)):
            return str(error).splitlines()[0]
        return ""
