"""Checks of the ways to GPUs: PCIe from DRAM, and from one GPU to another."""

from localmoe.cli.doctor.check import Check, Fix
from localmoe.hardware import Gpu, GpuPair, Machine
from localmoe.tui.figures import percent

TRAINED = 3  # an idle link drops below this generation; one that stays between it and its best was trained so
FULL_LANES = 16
LEAST_SHARE = 0.65  # of a link's bytes, that copies from pinned memory reach where nothing is wrong


def check_link(machine: Machine, gpu: Gpu, measured_bytes_s: float | None = None) -> Check:
    """As trained now. An idle link shows no more than its lanes, so a measured speed counts for more."""
    now, most = gpu.pcie_now, gpu.pcie_most
    if now is None or most is None:
        return _ok(gpu, f"unknown: {machine.why_unknown(f'GPU {gpu.index} PCIe')}")
    if now.width < most.width:
        share = percent(now.width / most.width)
        why = f"{now.width} of {most.width} lanes: experts come at {share} of the full speed"
        return _warn(gpu, why, "reseat the card, or use a slot with all lanes (see the board's manual)")
    retrain = f"reseat card and riser, or set the slot to Gen{most.generation} in the BIOS"
    if measured_bytes_s and most.bytes_s:
        speed = f"{most}; {measured_bytes_s / 1e9:,.1f} GB/s (measured)"
        if measured_bytes_s < LEAST_SHARE * most.bytes_s:
            return _warn(gpu, f"{speed} of {most.bytes_s / 1e9:,.0f}", retrain)
        return _ok(gpu, speed)
    if TRAINED <= now.generation < most.generation:
        return _warn(gpu, f"{now}; its slot and card do gen {most.generation}", retrain)
    best = f", {most.bytes_s / 1e9:,.0f} GB/s at most" if most.bytes_s else ""
    idle = f"; now gen {now.generation}, as idle GPUs are" if now.generation < most.generation else ""
    few = f"; {FULL_LANES} would be twice as fast" if most.width == FULL_LANES // 2 else ""
    return _ok(gpu, f"{most}{best}{idle}{few}")


def check_pair(machine: Machine, pair: GpuPair) -> Check:
    """NVLink or P2P; without either partial sums pass through DRAM, which costs little."""
    name, both = f"p2p-{pair.first}-{pair.second}", f"GPUs {pair.first}, {pair.second}"
    if pair.num_nvlinks:
        return Check(name, "P2P", "ok", f"{both}: {pair.num_nvlinks} NVLinks")
    path = f", over {pair.path}" if pair.path else ""
    if pair.peer_to_peer:
        return Check(name, "P2P", "ok", f"{both}: direct{path}")
    if pair.peer_to_peer is None:
        why = machine.why_unknown(f"GPUs {pair.first}-{pair.second} P2P")
        return Check(name, "P2P", "ok", f"{both}: unknown: {why}; they exchange through DRAM")
    detail = f"{both}: none ({pair.why_not}); they exchange through DRAM"
    if pair.why_not and "switched off" in pair.why_not:
        return Check(name, "P2P", "warn", detail, Fix("switch it on in the driver's module options, then reboot"))
    return Check(name, "P2P", "ok", detail)


def _ok(gpu: Gpu, detail: str) -> Check:
    return Check(f"pcie-{gpu.index}", "PCIe", "ok", f"GPU {gpu.index}: {detail}")


def _warn(gpu: Gpu, detail: str, fix: str) -> Check:
    return Check(f"pcie-{gpu.index}", "PCIe", "warn", f"GPU {gpu.index}: {detail}", Fix(fix))
