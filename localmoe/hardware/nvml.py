"""NVIDIA's driver, asked through NVML. The library is imported only here, and only when asked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import combinations
from typing import Any

from localmoe.hardware.gpu import Gpu, GpuPair, PcieLink

_REASONS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated while it was loaded; reboot",
    "NVML_ERROR_NO_PERMISSION": "no permission to ask the NVIDIA driver",
    "NVML_ERROR_OPERATING_SYSTEM": "the system keeps this process from the NVIDIA driver",
    "NVML_ERROR_NOT_SUPPORTED": "this GPU or its driver does not tell",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "this driver is too old to tell",
    "NVML_ERROR_GPU_IS_LOST": "it has fallen off the bus; reboot",
    "NVML_ERROR_RESET_REQUIRED": "it has to be reset; reboot",
    "NVML_ERROR_INSUFFICIENT_POWER": "its power cables are not connected properly",
    "NVML_ERROR_IRQ_ISSUE": "the kernel has a problem with its interrupts",
    "NVML_ERROR_TIMEOUT": "the driver did not answer in time",
    "NVML_ERROR_UNKNOWN": "the driver fails for a reason that it does not know",
}
_GONE = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
_ARCHITECTURES = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Rubin")
# Numbers of nvml.h: nvidia-ml-py has some of them as tuples, by a stray comma.
_P2P_READ, _P2P_WRITE, _NODE_SCOPE, _SWITCH = 0, 1, 0, 2
_P2P = {  # why not
    0: "",
    1: "the chipset does not support it",
    2: "the GPUs do not support it",
    3: "they are on different PCIe roots",
    4: "it is switched off in the driver's settings",
    5: "the driver does not support it",
}
_PATHS = {0: "one board", 10: "one switch", 20: "switches", 30: "host bridge", 40: "node", 50: "sockets"}
_MASK_WORDS = 64  # of 64 bits: 4,096 CPUs or nodes
_MOST_NVLINKS = 18


class NoGpuError(Exception):
    """Why no GPU can be seen."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All that the driver tells; `unknown` says what it does not, and why."""

    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)


def ask_driver(nvml: Any = None) -> Survey:
    """Everything; NoGpuError with the reason when there is no driver to ask. `nvml` stands for the module pynvml."""
    try:
        nvml = nvml or import_module("pynvml")
    except ImportError as error:
        raise NoGpuError("nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoGpuError(_reason(nvml, error)) from error
    try:
        return _survey(_Driver(nvml))
    except nvml.NVMLError as error:
        raise NoGpuError(f"the NVIDIA driver does not answer: {_reason(nvml, error)}") from error
    finally:
        _shut_down(nvml)


def _shut_down(nvml: Any) -> None:
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return  # a broken driver is left as it is: there is nothing to give back


class _Driver:
    """Asks one question at a time, and keeps the reasons why some have no answer."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.unknown: dict[str, str] = {}

    def ask(self, what: str, question: str, *about: Any, read: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """The answer as `read` understands it, or None."""
        try:
            return read(getattr(self.nvml, question)(*about))
        except self.nvml.NVMLError as error:
            self.unknown[what] = _reason(self.nvml, error)
        except AttributeError:
            self.unknown[what] = "this nvidia-ml-py is too old to ask"
        except (TypeError, ValueError, LookupError) as error:
            self.unknown[what] = f"the driver's answer is not understood: {error}"
        return None


def _survey(driver: _Driver) -> Survey:
    handles = _handles(driver)
    gpus = tuple(_read_gpu(driver, index, handle) for index, handle in handles.items())
    addresses = {gpu.index: gpu.pci_address for gpu in gpus}
    pairs = tuple(_read_pair(driver, handles, addresses, a, b) for a, b in combinations(handles, 2))
    version = driver.ask("GPU driver", "nvmlSystemGetDriverVersion", read=_text)
    cuda = driver.ask("GPU CUDA", "nvmlSystemGetCudaDriverVersion", read=lambda n: f"{n // 1000}.{n % 1000 // 10}")
    return Survey(gpus, pairs, version, cuda, driver.unknown)


def _handles(driver: _Driver) -> dict[int, Any]:
    """Those of the GPUs that answer, by index; each other one gets its reason."""
    nvml, handles = driver.nvml, {}
    gone = [getattr(nvml, name, None) for name in _GONE]
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            driver.unknown[f"GPU {index}"] = _reason(nvml, error)
            continue
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if error.value in gone:
                driver.unknown[f"GPU {index}"] = _reason(nvml, error)
                continue
        handles[index] = handle
    return handles


def _read_gpu(driver: _Driver, index: int, handle: Any) -> Gpu:
    def ask(what: str, question: str, *about: Any, read: Callable[[Any], Any] = lambda answer: answer) -> Any:
        return driver.ask(f"GPU {index} {what}", question, handle, *about, read=read)

    memory = ask("VRAM", "nvmlDeviceGetMemoryInfo", read=lambda m: (int(m.total), int(m.free)))
    nodes: Sequence[int] = ask("NUMA", "nvmlDeviceGetMemoryAffinity", _MASK_WORDS, _NODE_SCOPE, read=_numbers_in) or ()
    return Gpu(
        name=ask("name", "nvmlDeviceGetName", read=_text) or "unknown",
        total_bytes=memory and memory[0],
        free_bytes=memory and memory[1],
        compute_capability=ask(
            "compute capability", "nvmlDeviceGetCudaComputeCapability", read=lambda c: f"{c[0]}.{c[1]}"
        ),
        pcie_now=_link(ask, "Curr"),
        pcie_most=_link(ask, "Max"),
        architecture=ask("architecture", "nvmlDeviceGetArchitecture", read=lambda n: _architecture(driver.nvml, n)),
        index=index,
        pci_address=ask("PCI address", "nvmlDeviceGetPciInfo", read=_address),
        numa_node=nodes[0] if len(nodes) == 1 else None,
        cpus=ask("CPUs", "nvmlDeviceGetCpuAffinity", _MASK_WORDS, read=_numbers_in) or (),
    )


def _link(ask: Callable[..., Any], which: str) -> PcieLink | None:
    generation = ask("PCIe", f"nvmlDeviceGet{which}PcieLinkGeneration", read=int)
    width = ask("PCIe", f"nvmlDeviceGet{which}PcieLinkWidth", read=int)
    return PcieLink(generation, width) if generation and width else None


def _read_pair(
    driver: _Driver, handles: dict[int, Any], addresses: dict[int, str | None], first: int, second: int
) -> GpuPair:
    what, both = f"GPUs {first}-{second}", (handles[first], handles[second])
    states = [
        driver.ask(f"{what} P2P", "nvmlDeviceGetP2PStatus", *both, index, read=_P2P.__getitem__)
        for index in (_P2P_READ, _P2P_WRITE)
    ]
    refused = next(filter(None, states), None)
    return GpuPair(
        first,
        second,
        peer_to_peer=False if refused else None if None in states else True,
        why_not=refused,
        num_nvlinks=_count_nvlinks(driver, what, both[0], addresses[second]),
        path=driver.ask(f"{what} path", "nvmlDeviceGetTopologyCommonAncestor", *both, read=_PATHS.__getitem__),
    )


def _count_nvlinks(driver: _Driver, what: str, handle: Any, other: str | None) -> int | None:
    """Active links that end at the other GPU, or at a switch: behind that are all of them."""
    nvml, count = driver.nvml, 0
    for link in range(_MOST_NVLINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                return count  # it has no such link
            driver.unknown[f"{what} NVLink"] = _reason(nvml, error)
            return None
        if active:
            end = driver.ask(f"{what} NVLink", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link, read=_address)
            kind = driver.ask(f"{what} NVLink", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, read=int)
            if end is None or kind is None:
                return None
            count += end == other or kind == _SWITCH
    return count


def _reason(nvml: Any, error: Any) -> str:
    code = getattr(error, "value", None)
    known = (reason for name, reason in _REASONS.items() if getattr(nvml, name, None) == code)
    return next(known, f"the NVIDIA driver says: {error}")


def _architecture(nvml: Any, number: int) -> str:
    numbers = {getattr(nvml, f"NVML_DEVICE_ARCH_{name.upper()}", None): name for name in _ARCHITECTURES}
    return numbers[number]


def _numbers_in(words: Iterable[int]) -> tuple[int, ...]:
    """The bits that are set in a mask of 64-bit words."""
    return tuple(64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _address(pci: Any) -> str:
    """NVML writes "00000000:41:00.0", /sys "0000:41:00.0"."""
    domain, _, rest = _text(pci.busId).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
