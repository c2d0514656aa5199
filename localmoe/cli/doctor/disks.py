"""Checks of the disks: room and kind."""

from pathlib import Path

from localmoe.cli.doctor.check import Check, Fix
from localmoe.engine.measured import Measured
from localmoe.hardware import Disk, Machine
from localmoe.tui.figures import size

LEAST_BYTES = 1 << 30
_SLOW = {
    "network": "as fast as the network",
    "rotating": "a rotating disk: loading 673 GB takes an hour or more",
    "memory": "in memory: what lies there is missing for weights",
}


def check_disk(machine: Machine, disk: Disk, measured: Measured | None = None) -> Check:
    """The disk of `disk.purpose`: models are loaded from it, or streamed where DRAM is too small."""
    name, place = f"disk-{disk.purpose}", short(disk.path)
    if disk.free_bytes is None:
        why = f"{disk.purpose}: unknown room at {place}: {machine.why_unknown(f'disk {disk.purpose} room')}"
        return Check(name, "disk", "warn", why, Fix("", (f"df -h {place}",)))
    kind = ", ".join(word for word in (disk.filesystem, None if disk.kind == "unknown" else disk.kind) if word)
    detail = f"{disk.purpose}: {size(disk.free_bytes)} free at {place}" + (f" ({kind})" if kind else "")
    if disk.purpose == "models" and measured and measured.disk_bytes_s:
        detail += f"; direct read {size(round(measured.disk_bytes_s))}/s (measured)"
    if disk.free_bytes < LEAST_BYTES:
        return Check(name, "disk", "warn", detail, Fix(f"make room at {place}"))
    if disk.purpose == "models" and disk.kind in _SLOW:
        slow = "Windows' disk, several times slower than WSL's own" if _is_windows(machine, disk) else _SLOW[disk.kind]
        return Check(name, "disk", "warn", f"{detail}: {slow}", _move(machine, disk))
    return Check(name, "disk", "ok", detail)


def short(path: str) -> str:
    """With ~ for the home."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path


def _is_windows(machine: Machine, disk: Disk) -> bool:
    return machine.hypervisor == "WSL" and disk.filesystem == "9p"


def _move(machine: Machine, disk: Disk) -> Fix:
    if _is_windows(machine, disk):
        return Fix("keep models on WSL's own disk, not on Windows':", ("export HF_HOME=/var/lib/huggingface",))
    return Fix("keep models on a local NVMe disk, mounted at /nvme for one:", ("export HF_HOME=/nvme/huggingface",))
