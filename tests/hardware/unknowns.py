"""Every field of a Machine that is None or empty must have its reason, unless None means that there is none."""

from collections.abc import Iterator

from localmoe.hardware import Machine

_CPU = {
    "model": "CPU",
    "num_sockets": "sockets",
    "num_cores": "cores",
    "num_threads": "cores",
    "targets": "ISA",
    "caches": "caches",
}
_MEMORY = {
    "total_bytes": "DRAM",
    "available_bytes": "available DRAM",
    "usable_bytes": "available DRAM",
    "swap_bytes": "swap",
    "huge_pages": "THP",
    "huge_page_defrag": "THP defrag",
    "huge_pools": "huge pages",
    "dimms": "DIMMs",
}
_DIMMS = {"num_slots": "DIMM slots", "num_channels": "DIMM channels", "speed_mt_s": "DIMM speed"}
_LIMITS = {
    "cpus": "affinity",
    "locks_freely": "capabilities",
    "nodes": "memory nodes",
    "max_map_count": "map count",
    "numa_balancing": "NUMA balancing",
}
_GPU = {
    "total_bytes": "VRAM",
    "free_bytes": "VRAM",
    "compute_capability": "compute capability",
    "pcie_now": "PCIe",
    "pcie_most": "PCIe",
    "architecture": "architecture",
    "pci_address": "PCI address",
    "numa_node": "NUMA",
    "cpus": "CPUs",
}
_PAIR = {"peer_to_peer": "P2P", "num_nvlinks": "NVLink", "path": "path"}


def without_reason(machine: Machine) -> list[str]:
    """What is unknown and does not say why."""
    return [word for word in _unknown(machine) if not machine.why_unknown(word)]


def _unknown(machine: Machine) -> Iterator[str]:
    yield from _empty(machine, {"nodes": "NUMA", "gpus": "GPU", "gpu_driver": "GPU driver", "gpu_cuda": "GPU CUDA"})
    yield from _empty(machine.cpu, _CPU)
    yield from _empty(machine.memory, _MEMORY)
    yield from _empty(machine.limits, _LIMITS)
    if machine.memory.dimms is not None:
        yield from _empty(machine.memory.dimms, _DIMMS)
    for node in machine.nodes:
        names = ("total_bytes", "free_bytes", "available_bytes")
        yield from _empty(node, dict.fromkeys(names, f"node {node.number} memory"))
    for disk in machine.disks:
        room, kind = f"disk {disk.purpose} room", f"disk {disk.purpose} kind"
        yield from _empty(disk, {"total_bytes": room, "free_bytes": room})
        if disk.kind == "unknown":
            yield kind
    for gpu in machine.gpus:
        yield from _empty(gpu, {field: f"GPU {gpu.index} {word}" for field, word in _GPU.items()})
    for pair in machine.gpu_pairs:
        yield from _empty(pair, {field: f"GPUs {pair.first}-{pair.second} {word}" for field, word in _PAIR.items()})


def _empty(thing: object, words: dict[str, str]) -> Iterator[str]:
    yield from (word for field, word in words.items() if getattr(thing, field) in (None, ()))
