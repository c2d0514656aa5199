"""Checks of the CPU: what it is, which kernels run on it, how many of its cores are to be had."""

from localmoe.cli.doctor.check import NO_FIX, Check, Fix, container_option, many
from localmoe.hardware import Machine

_AVX512 = (
    ("F", "avx512f"),
    ("BW", "avx512bw"),
    ("VL", "avx512vl"),
    ("VBMI", "avx512vbmi"),
    ("BF16", "avx512_bf16"),
)
_RANKS = {"scalar": 0, "avx2": 1, "avx2_zen": 1, "avx512": 2, "avx512_bf16": 2, "avx512_zen": 3, "amx_bf16": 4}


def check_cpu(machine: Machine) -> Check:
    """Its name, and what is around this system."""
    if machine.cpu.model is None:
        return Check("cpu", "CPU", "warn", f"unknown: {machine.why_unknown('CPU')}", Fix("look at: lscpu"))
    inside = ", ".join(name for name in (machine.container, machine.hypervisor) if name)
    return Check("cpu", "CPU", "ok", machine.cpu.model + (f" ({inside})" if inside else ""))


def check_isa(machine: Machine, isa: str | None) -> Check:
    """Which kernels run; `isa` is what the settings ask for."""
    targets = machine.cpu.targets
    if not targets:
        fix = Fix("install localmoe again, in its folder:", ("pip install --force-reinstall .",))
        return Check("isa", "ISA", "fail", f"no kernels: {machine.why_unknown('ISA')}", fix)
    if isa is not None and isa not in targets:
        return Check("isa", "ISA", "fail", f"{isa} is asked for; here run {', '.join(targets)}", _unset())
    target, best = isa or targets[-1], targets[-1]
    detail = f"kernels for {target}{' (as asked for)' if isa else ''}; {_vectors(machine)}"
    if _RANKS.get(target, 0) < _RANKS.get(best, 0):
        return Check("isa", "ISA", "warn", f"{detail}; {best} is faster", _unset())
    if target == "scalar":
        return Check("isa", "ISA", "warn", f"{detail}: many times slower than AVX2", _for_vectors(machine))
    if _has_avx512_off(machine):
        fix = Fix(
            "remove clearcpuid=, or noxsave, from the kernel's command line; in a VM, pass the host's CPU through"
        )
        return Check("isa", "ISA", "warn", f"{detail}, which the system does not let programs use", fix)
    return Check("isa", "ISA", "ok", detail)


def check_cores(machine: Machine) -> Check:
    """Physical cores, and how many of them this process may use."""
    cpu, limits = machine.cpu, machine.limits
    if cpu.num_cores is None:
        return Check("cores", "cores", "warn", f"unknown: {machine.why_unknown('cores')}", Fix("look at: lscpu -e"))
    sockets = f" in {many(cpu.num_sockets, 'socket')}" if cpu.num_sockets else ""
    threads = f", {many(cpu.num_threads, 'thread')}" if cpu.has_smt and cpu.num_threads else ""
    offline = f"; {many(len(cpu.offline), 'CPU')} switched off" if cpu.offline else ""
    detail = f"{many(cpu.num_cores, 'core')}{sockets}{threads}{offline}"
    if limits.usable_cores >= cpu.num_cores:
        return Check("cores", "cores", "ok", detail)
    quota = f", CPU quota {limits.cpu_quota:g}" if limits.cpu_quota else ""
    return Check(
        "cores",
        "cores",
        "warn",
        f"{detail}; {limits.usable_cores} for this process (affinity{quota})",
        _more_cores(machine),
    )


def _vectors(machine: Machine) -> str:
    flags = machine.cpu.flags
    words = [word for word, flag in _AVX512 if flag in flags]
    if "avx512f" in flags:
        amx = ", AMX" if "amx_tile" in flags else ""
        return f"AVX-512 {' '.join(words)}{amx}"
    return "AVX2, no AVX-512" if "avx2" in flags else "no AVX2"


def _has_avx512_off(machine: Machine) -> bool:
    needed = {"avx512f", "avx512bw", "avx512vl"}
    return needed <= set(machine.cpu.flags) and _RANKS.get(machine.cpu.targets[-1], 0) < _RANKS["avx512"]


def _unset() -> Fix:
    return Fix("take isa out of config.toml, or:", ("unset LOCALMOE_ISA",))


def _for_vectors(machine: Machine) -> Fix:
    if machine.hypervisor:
        return Fix("let the virtual machine have the host's CPU (QEMU: -cpu host)")
    return NO_FIX if "avx2" not in machine.cpu.flags else Fix("boot with a kernel that has AVX switched on")


def _more_cores(machine: Machine) -> Fix:
    threads = machine.cpu.num_threads or machine.cpu.num_cores or 1
    if machine.container:
        options = f"--cpuset-cpus=0-{threads - 1}" + (" and without --cpus" if machine.limits.cpu_quota else "")
        return Fix(container_option(machine, options, "ask for more CPUs: limits.cpu of the pod, or the container's"))
    if machine.limits.cpu_quota is None and len(machine.limits.cpus) >= threads:
        return Fix("switch the cores on again (chcpu --enable)")
    return Fix("ask the batch system for more, or, where nothing forbids it:", (f"taskset -cp 0-{threads - 1} $$",))
