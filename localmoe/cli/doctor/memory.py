"""Checks of the memory: how much, on which nodes, from which modules, on what pages."""

from localmoe.cli.doctor.check import NO_FIX, Check, Fix, container_option, kernel_setting, many, sysctl
from localmoe.engine.cpu_sheet import family_of
from localmoe.engine.measured import Measured
from localmoe.hardware import Dimms, HugePool, Machine, Node
from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES
from localmoe.tui.figures import size

THP = "/sys/kernel/mm/transparent_hugepage"
LEAST_BYTES = 512 << 20  # what the embedded model needs
SMALL_PAGES = 4096
BALANCE = 0.9  # of the largest node's memory, that the smallest should have
ENOUGH = 0.9  # of all memory, that a limit may leave without a word


def check_numa(machine: Machine) -> Check:
    """Whether all nodes have memory, the same, and may be used."""
    nodes = machine.nodes
    if not nodes:
        return Check("numa", "NUMA", "ok", f"unknown, taken for one node: {machine.why_unknown('NUMA')}")
    sizes = [node.total_bytes for node in nodes]
    each = ", ".join("unknown" if nbytes is None else size(nbytes) for nbytes in sizes)
    detail = many(len(nodes), "node") + (f" ({each})" if len(nodes) > 1 else "")
    if len(nodes) == 1:
        return Check("numa", "NUMA", "ok", detail)
    if empty := [node for node in nodes if node.cpus and node.total_bytes == 0]:
        return Check("numa", "NUMA", "warn", f"{detail}; {_empty(empty)}", _move_modules(empty))
    if closed := [node for node in nodes if machine.limits.nodes and node.number not in machine.limits.nodes]:
        numbers = ", ".join(str(node.number) for node in closed)
        why = f"{detail}; no memory of node {numbers} for this process"
        return Check("numa", "NUMA", "warn", why, _all_nodes(machine))
    known = [nbytes for nbytes in sizes if nbytes]
    if len(known) == len(sizes) and min(known) < BALANCE * max(known):
        small = [str(node.number) for node in nodes if (node.total_bytes or 0) < BALANCE * max(known)]
        why = f"{detail}; node {', '.join(small)} has less, and weights are spread evenly"
        return Check("numa", "NUMA", "warn", why, Fix("give every node the same modules"))
    return Check("numa", "NUMA", "ok", detail)


def check_balancing(machine: Machine) -> Check | None:
    """Whether the kernel moves pages between nodes; None where there is one node."""
    if len([node for node in machine.nodes if node.total_bytes]) < 2:
        return None
    state = machine.limits.numa_balancing
    if state is None:
        return Check("numa-balancing", "balancing", "ok", f"none: {machine.why_unknown('NUMA balancing')}")
    if state == 0:
        return Check("numa-balancing", "balancing", "ok", "NUMA balancing is off")
    why = "NUMA balancing is on: the kernel unmaps pages now and then to see who reads them"
    return Check("numa-balancing", "balancing", "warn", why, sysctl(machine, "kernel.numa_balancing", 0))


def check_dram(machine: Machine, measured: Measured | None = None) -> Check:
    """How much there is, and how much of it this process can have."""
    memory = machine.memory
    if memory.total_bytes is None:
        return Check("dram", "DRAM", "warn", f"unknown: {machine.why_unknown('DRAM')}", Fix("look at: free -h"))
    usable, limit = memory.usable_bytes, memory.cgroup_limit_bytes
    limited = f"; cgroup limit {size(limit)}" if limit else ""
    read = measured.stream_bytes_s if measured else None
    speed = f"; read {size(round(read))}/s (measured)" if read else ""
    detail = f"{size(memory.total_bytes)}, {'unknown' if usable is None else size(usable)} available{limited}{speed}"
    if usable is not None and usable < LEAST_BYTES:
        why = f"{detail}; even the embedded model needs {size(LEAST_BYTES)}"
        return Check("dram", "DRAM", "fail", why, _more_memory(machine))
    if limit and limit < ENOUGH * memory.total_bytes:
        return Check("dram", "DRAM", "warn", detail, _more_memory(machine))
    half = "; WSL has half of Windows' memory unless .wslconfig gives it more" if machine.hypervisor == "WSL" else ""
    return Check("dram", "DRAM", "ok", f"{detail}{half}")


def check_dimms(machine: Machine) -> Check:
    """Channels and speed: what decode lives on."""
    dimms = machine.memory.dimms
    if dimms is None:
        why = machine.why_unknown("DIMMs")
        root = "; root sees them: sudo dmidecode -t memory" if "may not be read" in why else ""
        return Check("dimms", "DIMMs", "ok", f"unknown: {why}{root}")
    detail = _modules(dimms)
    slots = f" in {dimms.num_slots} slots" if dimms.num_slots else ""
    if dimms.num_channels is None:
        detail += f"{slots}; their channels are unknown"
    else:
        detail += f"{slots}, {many(dimms.num_channels, 'channel')}"
    if dimms.peak_bytes_s:
        detail += f": {dimms.peak_bytes_s / 1e9:,.0f} GB/s at most"
    if free := _free_channels(machine, dimms):
        why = f"{detail}; {free} of {_channels(machine)} channels are empty"
        return Check("dimms", "DIMMs", "warn", why, Fix("put a module of the same kind into every channel"))
    if len({module.speed_mt_s for module in dimms.modules}) > 1:
        why = f"{detail}; modules of different speeds, of which the slowest decides"
        return Check("dimms", "DIMMs", "warn", why, Fix("use modules of one kind"))
    return Check("dimms", "DIMMs", "ok", detail)


def check_huge_pages(machine: Machine) -> Check:
    """Weights want pages of 2 MB: transparent ones, or those set aside."""
    pools = machine.memory.huge_pools
    pool = next((pool for pool in pools if pool.page_bytes == HUGE_PAGE_BYTES and pool.num_pages), None)
    aside = f"; {size(pool.free_bytes)} of 2 MB pages set aside and free" if pool else ""
    if lost := next((p for p in pools if p.page_bytes > HUGE_PAGE_BYTES and p.num_free), None):
        return _lost_pool(machine, lost)
    kind, defrag = machine.memory.huge_pages, machine.memory.huge_page_defrag
    if kind is None:
        why = f"unknown: {machine.why_unknown('THP')}{aside}; on pages of 4 KB weights are read slower"
        fix = kernel_setting(machine, text="use a kernel with CONFIG_TRANSPARENT_HUGEPAGE")
        return Check("huge-pages", "THP", "ok" if pool else "warn", why, NO_FIX if pool else fix)
    detail = f"{kind}, defrag {defrag or 'unknown'}{aside}"
    if kind == "never":
        return Check(
            "huge-pages", "THP", "warn", f"{detail}; weights lie on pages of 4 KB", _switch(machine, "enabled")
        )
    if defrag in ("never", "defer"):
        why = f"{detail}: the kernel does not make room for them"
        return Check("huge-pages", "THP", "warn", why, _switch(machine, "defrag"))
    return Check("huge-pages", "THP", "ok", detail)


def _empty(nodes: list[Node]) -> str:
    numbers, cpus = ", ".join(str(node.number) for node in nodes), sum(len(node.cpus) for node in nodes)
    return f"node {numbers} has no memory: its {cpus} CPUs read over the link between sockets"


def _move_modules(nodes: list[Node]) -> Fix:
    return Fix(f"spread the modules over all sockets: the slots of node {nodes[0].number} are empty")


def _all_nodes(machine: Machine) -> Fix:
    numbers = ",".join(str(node.number) for node in machine.nodes)
    elsewhere = "ask the batch system, or whoever set the cpuset, for all nodes"
    return Fix(container_option(machine, f"--cpuset-mems={numbers}", elsewhere))


def _more_memory(machine: Machine) -> Fix:
    if machine.hypervisor == "WSL" and not machine.container:
        return Fix("on Windows, write memory=... under [wsl2] in %UserProfile%\\.wslconfig, then: wsl --shutdown")
    if machine.container:
        return Fix(container_option(machine, "without --memory", "raise limits.memory of the pod, or the container's"))
    if machine.memory.cgroup_limit_bytes:
        return Fix("ask the batch system, or whoever set this cgroup's limit, for more")
    return Fix("close other programs")


def _modules(dimms: Dimms) -> str:
    """24 x 68.7 GB DDR5 at 6400 MT/s."""
    sizes, kinds = {m.size_bytes for m in dimms.modules}, {m.kind for m in dimms.modules}
    one = sizes.pop() if len(sizes) == 1 else None
    what = f"{len(dimms.modules)} x {size(one)}" if one else many(len(dimms.modules), "module")
    kind = f" {kinds.pop()}" if len(kinds) == 1 and None not in kinds else ""
    return f"{what}{kind}" + (f" at {dimms.speed_mt_s} MT/s" if dimms.speed_mt_s else "")


def _channels(machine: Machine) -> int | None:
    """All that the sockets have; None for a CPU of unknown name."""
    cpu = machine.cpu
    family, is_named = family_of(cpu.model, (cpu.num_cores or 1) // max(1, cpu.num_sockets or 1), cpu.flags)
    return (cpu.num_sockets or 1) * family.channels if is_named else None


def _free_channels(machine: Machine, dimms: Dimms) -> int:
    """Channels without a module: at least those that all modules together cannot fill."""
    most = _channels(machine)
    if most is None or machine.hypervisor:
        return 0
    return max(0, most - (dimms.num_channels or len(dimms.modules)))


def _lost_pool(machine: Machine, pool: HugePool) -> Check:
    pages = f"{size(pool.free_bytes)} in pages of {pool.page_bytes >> 30} GB"
    why = f"{pages} are set aside and of no use: weights lie on pages of 2 MB"
    text = "give them back, and take them out of the kernel's command line"
    fix = kernel_setting(machine, f"echo 0 | sudo tee {pool.file}", text=text)
    return Check("huge-pages", "THP", "warn", why, fix)


def _switch(machine: Machine, name: str) -> Fix:
    keep = "until the next boot" + "; transparent_hugepage=madvise on the kernel's command line keeps it" * (
        name == "enabled"
    )
    return kernel_setting(machine, f"echo madvise | sudo tee {THP}/{name}", text=keep)
