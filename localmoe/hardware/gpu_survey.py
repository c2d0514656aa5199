"""GPUs as their driver and the PCI bus show them: either may know what the other does not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localmoe.hardware import files, pci
from localmoe.hardware.deadline import answer_within
from localmoe.hardware.gpu import Gpu, PciGpu
from localmoe.hardware.nodes import Node
from localmoe.hardware.nvml import NoGpuError, Survey, ask_driver

PATIENCE_S = 10.0  # a driver whose GPU hangs may never answer


def survey_gpus(
    root: str, nvml: Any, on_bus: Sequence[PciGpu], nodes: Sequence[Node], *, asks_driver: bool = True
) -> Survey:
    """All of them; without a driver none, and the reason. Of a recorded machine only a given `nvml` is asked."""
    try:
        if not asks_driver:
            raise NoGpuError("the driver was not asked")
        if nvml is None and root != "/":
            raise NoGpuError("not asked: this is a recorded machine")
        found = answer_within(PATIENCE_S, lambda: ask_driver(nvml))
    except TimeoutError as error:
        return _none(root, f"the NVIDIA driver hangs: {error}", on_bus)
    except NoGpuError as error:
        return _none(root, str(error), on_bus)
    if not found.gpus:
        silent = any(what.startswith("GPU ") and what[4:].isdigit() for what in found.unknown)
        return _none(root, "none that answers" if silent else "none found", on_bus, found)
    by_address = {gpu.address: gpu for gpu in on_bus}
    gpus = tuple(_with_bus(gpu, by_address.get(gpu.pci_address or ""), nodes) for gpu in found.gpus)
    return replace(found, gpus=gpus, unknown=_still_unknown(found.unknown, gpus))


def _with_bus(gpu: Gpu, seen: PciGpu | None, nodes: Sequence[Node]) -> Gpu:
    """Node and link from the bus where the driver leaves them out; where there is one node, it hangs on that."""
    node = gpu.numa_node if seen is None or seen.numa_node is None else seen.numa_node
    return replace(
        gpu,
        numa_node=nodes[0].number if node is None and len(nodes) == 1 else node,
        pcie_now=gpu.pcie_now or (seen.pcie_now if seen else None),
        pcie_most=gpu.pcie_most or (seen.pcie_most if seen else None),
    )


def _still_unknown(unknown: dict[str, str], gpus: Sequence[Gpu]) -> dict[str, str]:
    left = dict(unknown)
    for gpu in gpus:
        for what, known in (("PCIe", gpu.pcie), ("NUMA", gpu.numa_node)):
            if known is not None:
                left.pop(f"GPU {gpu.index} {what}", None)
            else:
                left.setdefault(f"GPU {gpu.index} {what}", "neither the driver nor the firmware tells")
    return left


def _none(root: str, reason: str, on_bus: Sequence[PciGpu], found: Survey | None = None) -> Survey:
    """The driver's reason, and what the bus shows nevertheless."""
    found, reasons = found or Survey(), [reason]
    if "reboot" in reason and (loaded := loaded_driver(root)):
        reasons.append(f"loaded is {loaded}")
    if on_bus:
        reasons.append(pci.who_has(on_bus))
    elif reason == "no NVIDIA driver" and files.exists(root, "/dev/dxg"):
        reasons.append("but WSL has a GPU (/dev/dxg)")
    told = {"GPU driver": reason, "GPU CUDA": reason} if found.driver is None else {}
    return replace(found, unknown=found.unknown | told | {"GPU": "; ".join(reasons)})


def loaded_driver(root: str) -> str | None:
    """The version of NVIDIA's kernel module, which may differ from the library's; None when none is loaded."""
    text = (files.read(root, "/proc/driver/nvidia/version") or "").partition("Kernel Module")[2]
    return next((word for word in text.split() if word[0].isdigit()), None)
