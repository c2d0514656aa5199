"""The processors, and which of localmoe's kernel targets run on them."""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module

from localmoe.hardware import files
from localmoe.hardware.cores import (
    CPUS,
    Processor,
    cores_of,
    count_sockets,
    cpu_folders,
    offline_cpus,
    online_cpus,
)
from localmoe.hardware.machine import Cache, Cpu

# What kernels could use. Linux lists a flag only where it also saves the registers, so the OS state is in it.
KERNEL_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512vbmi",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)
_AVX2 = {"avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_AVX512_BF16 = _AVX512 | {"avx512vbmi", "avx512_bf16"}
_AMX_BF16 = _AVX512 | {"amx_tile", "amx_bf16"}
_MOST_CACHES = 8  # index folders of one CPU


def read_cpu(root: str, found: Sequence[Processor]) -> Cpu:
    """Model, counts, flags and caches; `found` is what /proc/cpuinfo says."""
    cpus = online_cpus(root)
    cores = cores_of(root, cpus)
    flags = common_flags(found)
    return Cpu(
        model=next((name for p in found if (name := " ".join(p.get("model name", "").split()))), None),
        num_sockets=count_sockets(root, cpus, found),
        num_cores=len(set(cores.values())) if cores.keys() == set(cpus) and cpus else None,
        num_threads=len(cpus) or None,
        flags=tuple(flag for flag in KERNEL_FLAGS if flag in flags),
        targets=kernel_targets() if root == "/" else targets_for(flags, found),
        caches=read_caches(root, cpus),
        offline=offline_cpus(root),
    )


def common_flags(found: Sequence[Processor]) -> set[str]:
    """Flags that all CPUs have; empty when there are none."""
    lines = {p.get("flags", "") for p in found}
    return set.intersection(*(set(line.split()) for line in lines)) if lines else set()


def kernel_targets() -> tuple[str, ...]:
    """The native module's targets that run here, the best one last; empty when it cannot be imported."""
    try:
        return tuple(import_module("localmoe._native").supported_targets())
    except (ImportError, AttributeError):
        return ()


def targets_for(flags: set[str], found: Sequence[Processor]) -> tuple[str, ...]:
    """Those that would run on a recorded machine, as native/isa.cpp chooses; empty when it shows no flags."""
    amd = any(p.get("vendor_id") == "AuthenticAMD" for p in found)
    half, wide_shift = (flags >= _AVX512, ("avx512",)), (flags >= _AVX512, ("avx512_zen",))
    steps = (
        (bool(flags), ("scalar",)),
        (flags >= _AVX2, ("avx2", "avx2_zen") if amd else ("avx2_zen", "avx2")),
        half if amd else wide_shift,
        (flags >= _AVX512_BF16, ("avx512_bf16",)),
        wide_shift if amd else half,
        (flags >= _AMX_BF16, ("amx_bf16",)),
    )
    return tuple(target for runs, targets in steps if runs for target in targets)


def read_caches(root: str, cpus: Sequence[int]) -> tuple[Cache, ...]:
    """Data caches; empty when the kernel does not tell. Each cache is asked once, at its first CPU."""
    there = sorted(cpu_folders(root) & set(cpus))
    kinds: Counter[tuple[int, str, int]] = Counter()
    for index in range(_MOST_CACHES):
        level, kind = _level_and_kind(root, there, index)
        if level is not None and kind != "Instruction":
            kinds.update((level, kind, size) for size in _sizes(root, there, index))
    return tuple(Cache(*key, num) for key, num in sorted(kinds.items()))


def _level_and_kind(root: str, cpus: Sequence[int], index: int) -> tuple[int | None, str]:
    """Of the caches with this index: the same ones on all CPUs."""
    folder = f"{CPUS}/cpu{cpus[0]}/cache/index{index}" if cpus else ""
    return files.read_int(root, f"{folder}/level"), files.read_line(root, f"{folder}/type") or "Unified"


def _sizes(root: str, cpus: Sequence[int], index: int) -> list[int]:
    sizes, seen = list[int](), set[int]()
    for cpu in cpus:
        if cpu in seen:
            continue
        folder = f"{CPUS}/cpu{cpu}/cache/index{index}"
        seen.update(files.to_list(files.read(root, f"{folder}/shared_cpu_list")) or (cpu,))
        if size := files.to_int((files.read_line(root, f"{folder}/size") or "").removesuffix("K")):
            sizes.append(size * 1024)
    return sizes
