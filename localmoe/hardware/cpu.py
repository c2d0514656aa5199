"""The processors, and which of localmoe's kernel targets run on them."""

from importlib import import_module

from localmoe.hardware import files
from localmoe.hardware.cores import count_cores, count_sockets, online_cpus, processors
from localmoe.hardware.machine import Cpu, Node

# What kernels could use. Linux lists a flag only where it also saves the registers, so the OS state is in it.
KERNEL_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vbmi",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


def read_cpu(root: str) -> Cpu:
    """Model, counts and flags."""
    cpus, found = online_cpus(root), processors(root)
    first = found[0] if found else {}
    flags = set(first.get("flags", "").split())
    return Cpu(
        model=" ".join(first.get("model name", "").split()) or None,
        num_sockets=count_sockets(root, cpus),
        num_cores=count_cores(root, cpus) or None,
        num_threads=len(cpus) or None,
        flags=tuple(flag for flag in KERNEL_FLAGS if flag in flags),
        targets=kernel_targets() if root == "/" else (),
    )


def kernel_targets() -> tuple[str, ...]:
    """The native module's targets that run here, the best one last; empty when it cannot be imported."""
    try:
        return tuple(import_module("localmoe._native").supported_targets())
    except (ImportError, AttributeError):
        return ()


def read_nodes(root: str) -> tuple[Node, ...]:
    """NUMA nodes with CPUs or memory; empty when the kernel does not tell."""
    numbers = files.to_list(files.read(root, "/sys/devices/system/node/online"))
    return tuple(_read_node(root, number) for number in numbers)


def _read_node(root: str, number: int) -> Node:
    folder = f"/sys/devices/system/node/node{number}"
    lines = (files.read(root, f"{folder}/meminfo") or "").replace(f"Node {number} ", "")
    meminfo = files.pairs(lines, ":")
    cpus = files.to_list(files.read(root, f"{folder}/cpulist"))
    return Node(number, cpus, files.kilobytes(meminfo, "MemTotal"), files.kilobytes(meminfo, "MemFree"))
