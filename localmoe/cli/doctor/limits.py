"""Checks of what the kernel lets this process have: locked memory, mappings."""

from localmoe.cli.doctor.check import NO_FIX, Check, Fix, container_option, sysctl
from localmoe.hardware import Machine
from localmoe.tui.figures import size

LEAST_MAPS = 65_530  # the kernel's default, which is enough for weights that are one mapping
GOOD_MAPS = 1_048_576
LIMITS_FILE = "/etc/security/limits.d/localmoe.conf"


def check_memlock(machine: Machine) -> Check:
    """A GPU copies at full speed from memory that is locked; without one nothing is."""
    limits, why = machine.limits, machine.why_unknown("memlock")
    if why:
        return Check("memlock", "memlock", "ok", f"unknown: {why}")
    if limits.locked_bytes is None or limits.locks_freely:
        return Check(
            "memlock", "memlock", "ok", "no limit on locked memory" + " for this user" * bool(limits.locks_freely)
        )
    limit = f"{size(limits.locked_bytes)} may be locked"
    if not machine.gpus and not _has_usable_gpu(machine):
        return Check("memlock", "memlock", "ok", f"{limit}; only a GPU needs more")
    why = f"{limit}; a GPU copies two to three times slower from weights that are not"
    return Check("memlock", "memlock", "warn", why, _raise(machine))


def check_maps(machine: Machine) -> Check:
    """Mappings of one process."""
    count = machine.limits.max_map_count
    if count is None:
        return Check("maps", "maps", "ok", f"unknown: {machine.why_unknown('map count')}")
    if count < LEAST_MAPS:
        why = f"vm.max_map_count is {count:,}, less than the kernel's own {LEAST_MAPS:,}"
        return Check("maps", "maps", "warn", why, sysctl(machine, "vm.max_map_count", GOOD_MAPS))
    return Check("maps", "maps", "ok", f"vm.max_map_count is {count:,}", NO_FIX)


def _has_usable_gpu(machine: Machine) -> bool:
    return any(gpu.name and gpu.driver == "nvidia" for gpu in machine.pci_gpus)


def _raise(machine: Machine) -> Fix:
    if machine.container:
        elsewhere = "set LimitMEMLOCK=infinity for the container runtime on the host"
        return Fix(container_option(machine, "--ulimit memlock=-1", elsewhere))
    if machine.limits.locked_most_bytes is None:
        return Fix("in this shell:", ("ulimit -l unlimited",))
    if machine.hypervisor == "WSL":
        return Fix("in this shell:", ("sudo prlimit --pid $$ --memlock=unlimited",))
    return Fix("log in again after:", (f"echo '* - memlock unlimited' | sudo tee {LIMITS_FILE}",))
