"""NVIDIA GPUs on the PCI bus: they can be seen there when their driver cannot be asked."""

import re
from collections import Counter
from collections.abc import Sequence

from localmoe.hardware import files
from localmoe.hardware.gpu import PcieLink, PciGpu

DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers: not their sound or USB functions
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GENERATIONS = {
    "2.5": 1,
    "5": 2,
    "5.0": 2,
    "8": 3,
    "8.0": 3,
    "16": 4,
    "16.0": 4,
    "32": 5,
    "32.0": 5,
    "64": 6,
    "64.0": 6,
}
_NAMES = {  # of https://pci-ids.ucw.cz, those that people ask for
    "2204": "NVIDIA GeForce RTX 3090",
    "2203": "NVIDIA GeForce RTX 3090 Ti",
    "2684": "NVIDIA GeForce RTX 4090",
    "2b85": "NVIDIA GeForce RTX 5090",
    "2bb1": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "2bb4": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "2bb5": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}


def read_pci_gpus(root: str) -> tuple[PciGpu, ...]:
    """All of NVIDIA's on the bus, by address."""
    addresses = (name for name in files.names(root, DEVICES) if _ADDRESS.fullmatch(name))
    return tuple(_read(root, address) for address in addresses if _is_gpu(root, f"{DEVICES}/{address}"))


def who_has(gpus: Sequence[PciGpu]) -> str:
    """Which GPUs are there, and which drivers other than NVIDIA's have them."""
    counts = Counter(gpu.name or f"NVIDIA GPU {gpu.device_id}" for gpu in gpus)
    names = ", ".join(f"{count}x {name}" for name, count in counts.items())
    drivers = sorted({gpu.driver or "no driver" for gpu in gpus} - {"nvidia"})
    return f"on the PCI bus: {names}" + (f", with {' and '.join(drivers)}" if drivers else "")


def _is_gpu(root: str, folder: str) -> bool:
    vendor = files.read_line(root, f"{folder}/vendor")
    return vendor == _NVIDIA and (files.read_line(root, f"{folder}/class") or "").startswith(_DISPLAY)


def _read(root: str, address: str) -> PciGpu:
    folder = f"{DEVICES}/{address}"
    device = (files.read_line(root, f"{folder}/device") or "").removeprefix("0x")
    driver = files.pairs(files.read(root, f"/proc/driver/nvidia/gpus/{address}/information"), ":")
    return PciGpu(
        address=address,
        device_id=f"10de:{device or 'unknown'}",
        name=driver.get("Model") or _NAMES.get(device),
        driver=files.link_name(root, f"{folder}/driver"),
        numa_node=node_of(root, address),
        pcie_now=_link(root, folder, "current"),
        pcie_most=_link(root, folder, "max"),
    )


def node_of(root: str, address: str) -> int | None:
    """The NUMA node that a device hangs on; many boards and all virtual machines say -1: unknown."""
    node = files.read_int(root, f"{DEVICES}/{address}/numa_node")
    return node if node is not None and node >= 0 else None


def _link(root: str, folder: str, which: str) -> PcieLink | None:
    """From "16.0 GT/s PCIe" and "16"; a sleeping device says "Unknown" and 63."""
    speed = (files.read_line(root, f"{folder}/{which}_link_speed") or "").partition(" GT/s")[0]
    width, generation = files.read_int(root, f"{folder}/{which}_link_width"), _GENERATIONS.get(speed)
    return PcieLink(generation, width) if generation and width and 0 < width <= 32 else None
