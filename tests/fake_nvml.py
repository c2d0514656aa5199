# ruff: noqa: N802 - its names are NVML's
"""NVML at its Python interface: pynvml's own constants and exceptions, answers from a table.

    init = "DRIVER_NOT_LOADED"                 the error that nvmlInit raises
    driver = "580.95.05"
    cuda = 13000
    [[gpu]]
    name = "NVIDIA GeForce RTX 5090"
    architecture = "BLACKWELL"
    capability = [12, 0]
    total_mib = 32607
    free_mib = 32120
    pci = "00000000:41:00.0"
    pcie = [1, 16, 5, 16]                      generation and width now, then at most
    nodes = [0]
    cpus = "0-31"
    nvlinks = ["00000000:61:00.0"]             where each active link ends; "switch": at a switch
    [gpu.fails]
    nvmlDeviceGetMemoryInfo = "NOT_SUPPORTED"  the error that a question about this GPU raises
    [[pair]]
    gpus = [0, 1]
    p2p = 1                                    NVML_P2P_STATUS_...
    path = 50                                  NVML_TOPOLOGY_...

What is left out raises NOT_SUPPORTED, as the library does.
"""

from types import SimpleNamespace
from typing import Any

import pynvml


class FakeNvml:
    """Stands for the module pynvml."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.is_open = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML"):
            return getattr(pynvml, name)
        if name.startswith("nvml") and hasattr(pynvml, name):
            return self._unsupported
        raise AttributeError(name)

    def nvmlInit(self):
        if "init" in self.answers:
            raise self._error(self.answers["init"])
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlSystemGetDriverVersion(self):
        return self._of(self.answers, "driver")

    def nvmlSystemGetCudaDriverVersion(self):
        return self._of(self.answers, "cuda")

    def nvmlDeviceGetCount(self):
        return len(self.answers.get("gpu", ()))

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._asked(self.answers["gpu"][index], "nvmlDeviceGetHandleByIndex")

    def nvmlDeviceGetName(self, gpu):
        return self._of(gpu, "name", "nvmlDeviceGetName")

    def nvmlDeviceGetArchitecture(self, gpu):
        return getattr(pynvml, f"NVML_DEVICE_ARCH_{self._of(gpu, 'architecture', 'nvmlDeviceGetArchitecture')}")

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return tuple(self._of(gpu, "capability", "nvmlDeviceGetCudaComputeCapability"))

    def nvmlDeviceGetMemoryInfo(self, gpu):
        total, free = self._of(gpu, "total_mib", "nvmlDeviceGetMemoryInfo") << 20, gpu["free_mib"] << 20
        return SimpleNamespace(total=total, free=free, used=total - free)

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(busId=self._of(gpu, "pci", "nvmlDeviceGetPciInfo"))

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu):
        return self._of(gpu, "pcie", "nvmlDeviceGetCurrPcieLinkGeneration")[0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu):
        return self._of(gpu, "pcie", "nvmlDeviceGetCurrPcieLinkWidth")[1]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu):
        return self._of(gpu, "pcie", "nvmlDeviceGetMaxPcieLinkGeneration")[2]

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu):
        return self._of(gpu, "pcie", "nvmlDeviceGetMaxPcieLinkWidth")[3]

    def nvmlDeviceGetMemoryAffinity(self, gpu, words, scope):
        assert scope == pynvml.NVML_AFFINITY_SCOPE_NODE
        return self._mask(self._of(gpu, "nodes", "nvmlDeviceGetMemoryAffinity"), words)

    def nvmlDeviceGetCpuAffinity(self, gpu, words):
        first, last = map(int, self._of(gpu, "cpus", "nvmlDeviceGetCpuAffinity").split("-"))
        return self._mask(range(first, last + 1), words)

    def nvmlDeviceGetP2PStatus(self, first, second, index):
        if not isinstance(index, int):
            raise TypeError("wrong type")  # as ctypes does: NVML_P2P_CAPS_INDEX_READ is a tuple in nvidia-ml-py
        return self._of(self._pair(first, second), "p2p", "nvmlDeviceGetP2PStatus")

    def nvmlDeviceGetTopologyCommonAncestor(self, first, second):
        return self._of(self._pair(first, second), "path", "nvmlDeviceGetTopologyCommonAncestor")

    def nvmlDeviceGetNvLinkState(self, gpu, link):
        links = self._of(gpu, "nvlinks", "nvmlDeviceGetNvLinkState")
        if link >= gpu.get("most_nvlinks", len(links)):
            raise self._error("INVALID_ARGUMENT")
        return int(link < len(links))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu, link):
        self._asked(gpu, "nvmlDeviceGetNvLinkRemotePciInfo")
        end = gpu["nvlinks"][link]
        return SimpleNamespace(busId="00000000:05:00.0" if end == "switch" else end)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu, link):
        is_switch = gpu["nvlinks"][link] == "switch"
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if is_switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def _pair(self, first, second):
        both = [self.answers["gpu"].index(first), self.answers["gpu"].index(second)]
        return next((pair for pair in self.answers.get("pair", ()) if pair["gpus"] == both), {})

    def _of(self, thing, key, question=""):
        self._asked(thing, question)
        if key not in thing:
            raise self._error("NOT_SUPPORTED")
        return thing[key]

    def _asked(self, thing, question):
        if not self.is_open:
            raise self._error("UNINITIALIZED")
        if question in thing.get("fails", {}):
            raise self._error(thing["fails"][question])
        return thing

    def _unsupported(self, *_):
        raise self._error("NOT_SUPPORTED")

    @staticmethod
    def _mask(numbers, words):
        return [sum(1 << n % 64 for n in numbers if n // 64 == word) for word in range(words)]

    @staticmethod
    def _error(name):
        return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
