"""Placing memory on NUMA nodes by the raw system call: no library is needed, and none has to be right."""

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Sequence

from localmoe.hardware import files
from localmoe.hardware.nodes import read_nodes
from localmoe.weights.layout import Region

MPOL_PREFERRED, MPOL_INTERLEAVE = 1, 3
MBIND = {"x86_64": 237, "aarch64": 235}  # the call's number
LONG_BITS = 64

Mbind = Callable[[int, int, int, Sequence[int]], None]


def memory_nodes(root: str = "/") -> list[int]:
    """Nodes with memory that this process may use; empty where there is no choice."""
    if len(files.to_list(files.read(root, "/sys/devices/system/node/online"))) < 2:
        return []
    status = files.pairs(files.read(root, "/proc/self/status"), ":")
    allowed = files.to_list(status.get("Mems_allowed_list"))
    return [node.number for node in read_nodes(root) if node.total_bytes and (not allowed or node.number in allowed)]


def bind(address: int, regions: Sequence[Region], call: Mbind | None = None) -> str | None:
    """Places memory at `address` that nobody has touched; says what came of it, None where there is no choice.

    A region for one node prefers it, and spills over where the node is full: a full node must not end the process.
    """
    if not regions:
        return None
    try:
        for region in regions:
            policy = MPOL_PREFERRED if len(region.nodes) == 1 else MPOL_INTERLEAVE
            (call or mbind)(address + region.start, region.stop - region.start, policy, region.nodes)
    except OSError as error:
        return (
            f"NUMA: the weights lie wherever the kernel puts them, because mbind was refused ({_name(error)}: "
            f"{error.strerror}); decoding may run at the speed of one node"
        )
    nodes = sorted({node for region in regions for node in region.nodes})
    return (
        f"NUMA: each of nodes {', '.join(map(str, nodes))} has its rows of all experts, other weights are interleaved"
    )


def mbind(address: int, nbytes: int, policy: int, nodes: Sequence[int]) -> None:
    """The system call; OSError as the kernel says it, ENOSYS where its number is not known."""
    number = MBIND.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    libc = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_ulong * (max(nodes) // LONG_BITS + 1))()
    for node in nodes:
        words[node // LONG_BITS] |= 1 << node % LONG_BITS
    max_node = len(words) * LONG_BITS + 1  # the kernel looks at one bit less than it is told
    arguments = (address, nbytes, policy, ctypes.addressof(words), max_node, 0)
    if libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(value) for value in arguments)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))
