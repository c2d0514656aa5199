"""What doctor says of a machine: one check for each part of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localmoe.hardware import Disk, Gpu, Machine
from localmoe.tui.figures import size

Status = Literal["ok", "warn", "fail"]
_SHOWN_FLAGS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f", "avx512bw", "avx512vl"),
    "VBMI": ("avx512vbmi",),
    "BF16": ("avx512_bf16",),
    "AMX": ("amx_tile", "amx_bf16"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `fix` is empty where there is nothing to fix."""

    id: str
    label: str
    status: Status
    detail: str
    fix: str = ""


def check_machine(machine: Machine, isa: str | None = None) -> tuple[Check, ...]:
    """All findings, top to bottom; `isa` is the kernel target that the settings ask for."""
    return (
        _cpu(machine),
        _isa(machine, isa),
        _cores(machine),
        _numa(machine),
        _dram(machine),
        *map(_disk, machine.disks),
        *_gpus(machine),
    )


def _cpu(machine: Machine) -> Check:
    if machine.cpu.model is None:
        return Check("cpu", "CPU", "warn", f"unknown: {machine.why_unknown('CPU')}")
    inside = ", ".join(name for name in (machine.container, machine.hypervisor) if name)
    return Check("cpu", "CPU", "ok", machine.cpu.model + (f" ({inside})" if inside else ""))


def _isa(machine: Machine, isa: str | None) -> Check:
    cpu = machine.cpu
    if not cpu.targets:
        fix = "install localmoe again: pip install . in its folder"
        return Check("isa", "ISA", "fail", f"no kernels: {machine.why_unknown('ISA')}", fix)
    if isa is not None and isa not in cpu.targets:
        fix = "unset LOCALMOE_ISA, or isa in config.toml"
        return Check("isa", "ISA", "fail", f"{isa} is asked for; here run {', '.join(cpu.targets)}", fix)
    target = isa or cpu.targets[-1]
    has = ", ".join(name for name, flags in _SHOWN_FLAGS.items() if set(flags) <= set(cpu.flags))
    detail = f"kernels for {target}" + (" (as asked for)" if isa else "") + (f"; the CPU has {has}" if has else "")
    return Check("isa", "ISA", "warn" if target == "scalar" else "ok", detail + _slow(target))


def _slow(target: str) -> str:
    return "; scalar kernels are many times slower" if target == "scalar" else ""


def _cores(machine: Machine) -> Check:
    cpu, limits = machine.cpu, machine.limits
    sockets = f" in {_many(cpu.num_sockets, 'socket')}" if cpu.num_sockets else ""
    threads = f", {_many(cpu.num_threads, 'thread')}" if cpu.has_smt and cpu.num_threads else ""
    detail = f"{_many(cpu.num_cores or 1, 'core')}{sockets}{threads}"
    if limits.usable_cores < (cpu.num_cores or 1):
        quota = f", CPU quota {limits.cpu_quota:g}" if limits.cpu_quota else ""
        detail += f"; {limits.usable_cores} for this process (affinity{quota})"
    return Check("cores", "cores", "ok", detail)


def _numa(machine: Machine) -> Check:
    nodes = machine.nodes
    if not nodes:
        return Check("numa", "NUMA", "ok", f"unknown: {machine.why_unknown('NUMA')}")
    each = ", ".join(size(node.total_bytes) for node in nodes if node.total_bytes)
    return Check("numa", "NUMA", "ok", _many(len(nodes), "node") + (f" ({each})" if len(nodes) > 1 and each else ""))


def _dram(machine: Machine) -> Check:
    memory = machine.memory
    if memory.total_bytes is None:
        return Check("dram", "DRAM", "warn", f"unknown: {machine.why_unknown('DRAM')}")
    limit = f"; cgroup limit {size(memory.cgroup_limit_bytes)}" if memory.cgroup_limit_bytes else ""
    usable = "unknown" if memory.usable_bytes is None else size(memory.usable_bytes)
    return Check("dram", "DRAM", "ok", f"{size(memory.total_bytes)}, {usable} available{limit}")


def _disk(disk: Disk) -> Check:
    name, place = f"disk-{disk.purpose}", _short(disk.path)
    if disk.free_bytes is None:
        return Check(name, "disk", "warn", f"{disk.purpose}: the room at {place} is unknown")
    kind = ", ".join(word for word in (disk.filesystem, None if disk.kind == "unknown" else disk.kind) if word)
    detail = f"{disk.purpose}: {size(disk.free_bytes)} free at {place}" + (f" ({kind})" if kind else "")
    if disk.free_bytes < 1 << 30:
        return Check(name, "disk", "warn", detail, f"make room at {place}")
    return Check(name, "disk", "ok", detail)


def _gpus(machine: Machine) -> Iterator[Check]:
    if not machine.gpus:
        reason = machine.why_unknown("GPU") or "none found"
        status: Status = "ok" if reason in ("no NVIDIA driver", "none found") else "warn"
        yield Check("gpu", "GPU", status, f"{reason}; localmoe computes on the CPU", _driver_fix(reason))
    for number, gpu in enumerate(machine.gpus):
        yield Check(f"gpu-{number}", f"GPU {number}", "ok", _gpu(gpu))


def _driver_fix(reason: str) -> str:
    return "load it: sudo modprobe nvidia" if "not loaded" in reason else ""


def _gpu(gpu: Gpu) -> str:
    facts = [gpu.name]
    if gpu.total_bytes:
        facts.append(size(gpu.total_bytes))
    if gpu.compute_capability:
        facts.append(f"compute {gpu.compute_capability}")
    if gpu.pcie:
        facts.append(f"PCIe {gpu.pcie}")
    return ", ".join(facts) + "; not used yet: this version computes on the CPU"


def _short(path: str) -> str:
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
