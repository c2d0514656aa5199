"""The answer of `probe`: frozen values.

None means "none" where a thing may be absent (a quota, a limit, a container), and otherwise "unknown": then
`Machine.unknown` has a reason, under the word that the field's comment gives in quotes.
"""

from dataclasses import asdict, dataclass
from typing import Any

from localmoe.hardware.gpu import Gpu, GpuPair, PciGpu
from localmoe.hardware.nodes import Node


@dataclass(frozen=True, slots=True)
class Cache:
    """All caches of one level, kind and size."""

    level: int
    kind: str  # "Data", "Instruction" or "Unified"
    size_bytes: int  # of one
    num: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors, all that are online, whether this process may use them or not."""

    model: str | None  # "CPU"
    num_sockets: int | None  # "sockets"; those with a CPU online
    num_cores: int | None  # "cores"; physical ones
    num_threads: int | None  # "cores"
    flags: tuple[str, ...]  # of those that matter to the kernels, what CPU and kernel support; "ISA"
    targets: tuple[str, ...]  # of localmoe's kernel targets, those that run here, the best one last; "ISA"
    caches: tuple[Cache, ...] = ()  # "caches"
    offline: tuple[int, ...] = ()  # CPUs that are present and switched off

    @property
    def has_smt(self) -> bool:
        """Whether cores run more than one thread."""
        return bool(self.num_cores and self.num_threads and self.num_threads > self.num_cores)


@dataclass(frozen=True, slots=True)
class HugePool:
    """Pages of one size that an administrator has set aside."""

    page_bytes: int
    num_pages: int
    num_free: int  # neither used nor promised

    @property
    def free_bytes(self) -> int:
        """Of pages that nobody uses."""
        return self.num_free * self.page_bytes

    @property
    def file(self) -> str:
        """The kernel's count of them, which root may change."""
        return f"/sys/kernel/mm/hugepages/hugepages-{self.page_bytes >> 10}kB/nr_hugepages"


@dataclass(frozen=True, slots=True)
class Dimm:
    """One memory module."""

    slot: str  # as the board names it
    channel: str | None  # socket and channel, where the board's names tell them
    size_bytes: int | None
    kind: str | None  # "DDR5", ...
    speed_mt_s: int | None  # as it runs; as it could where the firmware tells only that
    width_bits: int | None  # without ECC


@dataclass(frozen=True, slots=True)
class Dimms:
    """The memory modules, and who told of them: "SMBIOS", or "EDAC", which knows no speeds and no empty slots."""

    modules: tuple[Dimm, ...]
    num_slots: int | None  # "DIMM slots"
    num_channels: int | None  # those with a module; "DIMM channels"
    speed_mt_s: int | None  # of the slowest; "DIMM speed"
    source: str

    @property
    def peak_bytes_s(self) -> float | None:
        """Bytes a second that all channels together could move; None where channels, widths or speed are unknown."""
        widths = {m.channel: m.width_bits for m in self.modules}
        if not self.num_channels or not self.speed_mt_s or None in widths or None in widths.values():
            return None
        return sum(width or 0 for width in widths.values()) / 8 * self.speed_mt_s * 1e6


@dataclass(frozen=True, slots=True)
class Memory:
    """DRAM. `usable_bytes` is the least of what is available and what the cgroups leave."""

    total_bytes: int | None  # "DRAM"
    available_bytes: int | None  # "available DRAM"
    cgroup_limit_bytes: int | None  # None: no limit, or unknown: "cgroup"
    usable_bytes: int | None  # "available DRAM"
    swap_bytes: int | None  # "swap"
    huge_pages: str | None  # transparent ones: "always", "madvise" or "never"; "THP"
    huge_page_defrag: str | None = None  # "always", "defer", "defer+madvise", "madvise" or "never"; "THP defrag"
    huge_pools: tuple[HugePool, ...] = ()  # one for each page size; "huge pages"
    dimms: Dimms | None = None  # "DIMMs"


@dataclass(frozen=True, slots=True)
class Limits:
    """What this process may use of the machine."""

    cpus: tuple[int, ...]  # its affinity mask, as far as those are online; "affinity"
    usable_cores: int  # physical ones, within mask and quota; at least 1
    cpu_quota: float | None  # CPUs' worth of time; None: no quota, or unknown: "cgroup"
    locked_bytes: int | None  # memory that it may lock; None: no limit, or unknown: "memlock"
    locked_most_bytes: int | None = None  # to which it may raise that; None as above
    locks_freely: bool | None = None  # CAP_IPC_LOCK: it may lock more than that; "capabilities"
    nodes: tuple[int, ...] = ()  # NUMA nodes that it may have memory of; "memory nodes"
    max_map_count: int | None = None  # mappings that it may have; "map count"
    huge_page_bytes: int | None = None  # that its cgroups leave it of reserved 2 MB pages; None: no limit
    numa_balancing: int | None = None  # whether the kernel moves pages between nodes: 0 never; "NUMA balancing"


@dataclass(frozen=True, slots=True)
class Disk:
    """The filesystem behind a path that matters."""

    purpose: str
    path: str
    total_bytes: int | None  # "disk PURPOSE room"
    free_bytes: int | None  # "disk PURPOSE room"
    filesystem: str | None  # "disk PURPOSE kind"
    kind: str  # "NVMe", "SSD", "rotating", "virtual", "network", "memory" or "unknown": "disk PURPOSE kind"


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that `probe` found; `unknown` says what it did not find, and why."""

    cpu: Cpu
    nodes: tuple[Node, ...]  # "NUMA"
    memory: Memory
    limits: Limits
    disks: tuple[Disk, ...]
    gpus: tuple[Gpu, ...]  # those that the driver can use; "GPU", and "GPU N" for each that does not answer
    gpu_driver: str | None  # "GPU driver"
    container: str | None  # "docker", "podman", "kubernetes", "lxc", ... ; None: none seen
    hypervisor: str | None  # "WSL", "KVM", ... ; None: none seen
    unknown: tuple[tuple[str, str], ...]  # what, and the reason
    gpu_cuda: str | None = None  # the newest CUDA that the driver runs, "13.0"; "GPU CUDA"
    gpu_pairs: tuple[GpuPair, ...] = ()
    pci_gpus: tuple[PciGpu, ...] = ()  # NVIDIA's on the bus, with a driver or without

    def why_unknown(self, what: str) -> str:
        """The reason why `what` is unknown, or an empty string."""
        return dict(self.unknown).get(what, "")

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        gpus = [{**asdict(gpu), "pcie": gpu.pcie} for gpu in self.gpus]
        return {**asdict(self), "gpus": gpus, "unknown": dict(self.unknown)}
