"""Checks of the GPUs: driver, memory, and what `links` says of the ways to them."""

from collections.abc import Iterator

from localmoe.cli.doctor.check import NO_FIX, Check, Fix, Status, container_option, many
from localmoe.cli.doctor.links import check_link, check_pair
from localmoe.engine.measured import Measured
from localmoe.engine.plan.gpus import LEAST_CAPABILITY
from localmoe.hardware import Gpu, Machine
from localmoe.tui.figures import size

BLACKWELL_CONSUMER, ITS_CUDA = (12, 0), (12, 8)
FREE_SHARE = 0.85  # of its memory, that a GPU should have free


def check_gpus(machine: Machine, measured: Measured | None = None) -> Iterator[Check]:
    """The driver, then each GPU with its link, then each pair."""
    yield _driver(machine)
    speeds = [one.h2d_bytes_s for one in measured.gpus] if measured else []
    for position, gpu in enumerate(machine.gpus):
        yield _gpu(machine, gpu)
        yield check_link(machine, gpu, speeds[position] if position < len(speeds) else None)
    for what, why in machine.unknown:
        if what.startswith("GPU ") and what[4:].isdigit():
            yield Check(f"gpu-{what[4:]}", what, "warn", why, Fix("", ("sudo reboot",)) if "reboot" in why else NO_FIX)
    for pair in machine.gpu_pairs:
        yield check_pair(machine, pair)


def _driver(machine: Machine) -> Check:
    if not machine.gpus:
        return _no_gpu(machine)
    cuda = f", CUDA up to {machine.gpu_cuda}" if machine.gpu_cuda else ""
    detail = f"NVIDIA {machine.gpu_driver or 'of unknown version'}{cuda}"
    newest = max(_numbers(gpu.compute_capability) for gpu in machine.gpus)
    if newest >= BLACKWELL_CONSUMER and machine.gpu_cuda and _numbers(machine.gpu_cuda) < ITS_CUDA:
        why = f"{detail}; Blackwell needs {_dotted(ITS_CUDA)}"
        return Check("gpu-driver", "driver", "warn", why, _install(machine))
    if machine.container and (hidden := _num_hidden(machine)):
        why = f"{detail}; {many(hidden, 'GPU')} more on the PCI bus that this container is not given"
        return Check("gpu-driver", "driver", "warn", why, _all_gpus(machine))
    return Check("gpu-driver", "driver", "ok", detail)


def _num_hidden(machine: Machine) -> int:
    silent = sum(what.startswith("GPU ") and what[4:].isdigit() for what, _ in machine.unknown)
    driven = sum(gpu.driver == "nvidia" for gpu in machine.pci_gpus)
    return max(0, driven - len(machine.gpus) - silent)


def _all_gpus(machine: Machine) -> Fix:
    return Fix(container_option(machine, "--gpus all", "ask for more GPUs: nvidia.com/gpu in the pod's limits"))


def _no_gpu(machine: Machine) -> Check:
    """Nothing to use is no fault; a GPU that is there and cannot be used is worth a word."""
    reason = machine.why_unknown("GPU") or "none found"
    detail = f"{reason}; localmoe computes on the CPU"
    is_fault = bool(machine.pci_gpus) and any(gpu.name for gpu in machine.pci_gpus)
    is_quiet = reason.startswith(("no NVIDIA driver", "none found", "not asked")) and not is_fault
    status: Status = "ok" if is_quiet and "/dev/dxg" not in reason else "warn"
    return Check("gpu", "GPU", status, detail, NO_FIX if status == "ok" else _driver_fix(machine, reason))


def _driver_fix(machine: Machine, reason: str) -> Fix:
    if "reboot" in reason:
        return Fix("", ("sudo reboot",))
    if machine.hypervisor == "WSL":
        return Fix("install NVIDIA's driver on Windows, none inside WSL, then: wsl --shutdown")
    if machine.container:
        return _all_gpus(machine)
    if "not loaded" in reason:
        return Fix("", ("sudo modprobe nvidia",))
    if "hangs" in reason:
        return Fix("look for Xid in the kernel's log, then reboot:", ("sudo dmesg | grep -i xid", "sudo reboot"))
    if "nvidia-ml-py" in reason:
        return Fix("", ("pip install nvidia-ml-py",))
    return _install(machine)


def _install(machine: Machine) -> Fix:
    if machine.hypervisor == "WSL":
        return Fix("update NVIDIA's driver on Windows, then: wsl --shutdown")
    if machine.container:
        return Fix("update NVIDIA's driver on the host")
    return Fix(
        "install NVIDIA's driver (Ubuntu; else https://www.nvidia.com/drivers):", ("sudo ubuntu-drivers install",)
    )


def _gpu(machine: Machine, gpu: Gpu) -> Check:
    what = f"GPU {gpu.index}"
    facts = [gpu.name.removeprefix("NVIDIA ")]
    facts.append(size(gpu.total_bytes) if gpu.total_bytes else f"memory unknown: {machine.why_unknown(f'{what} VRAM')}")
    if gpu.compute_capability:
        facts.append(f"compute {gpu.compute_capability}")
    if gpu.numa_node is not None and len(machine.nodes) > 1:
        facts.append(f"on node {gpu.numa_node}")
    detail, name = ", ".join(facts), f"gpu-{gpu.index}"
    if gpu.compute_capability and _numbers(gpu.compute_capability) < LEAST_CAPABILITY:
        why = f"{detail}: older than Ampere, it is not used"
        return Check(name, what, "warn", why, Fix("use a GPU of compute capability 8.0 or newer"))
    if gpu.total_bytes and gpu.free_bytes is not None and gpu.free_bytes < FREE_SHARE * gpu.total_bytes:
        why = f"{detail}; other programs use {size(gpu.total_bytes - gpu.free_bytes)} of it"
        return Check(name, what, "warn", why, Fix("close them; these are they:", ("nvidia-smi",)))
    return Check(name, what, "ok", detail)


def _numbers(version: str | None) -> tuple[int, ...]:
    """12.0 -> (12, 0); () where it is unknown."""
    parts = (version or "").split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return "CUDA " + ".".join(map(str, version))
