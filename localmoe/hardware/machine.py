"""The answer of `probe`: frozen values, None where the machine does not tell."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors, all of them, whether this process may use them or not."""

    model: str | None
    num_sockets: int | None
    num_cores: int | None
    num_threads: int | None
    flags: tuple[str, ...]  # of those that matter to the kernels, what CPU and kernel support
    targets: tuple[str, ...]  # of localmoe's kernel targets, those that run here, the best one last

    @property
    def has_smt(self) -> bool:
        """Whether cores run more than one thread."""
        return bool(self.num_cores and self.num_threads and self.num_threads > self.num_cores)


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node."""

    number: int
    cpus: tuple[int, ...]
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """DRAM. `usable_bytes` is the least of what is available and what the cgroup leaves."""

    total_bytes: int | None
    available_bytes: int | None
    cgroup_limit_bytes: int | None
    usable_bytes: int
    swap_bytes: int | None
    huge_pages: str | None  # "always", "madvise" or "never"


@dataclass(frozen=True, slots=True)
class Limits:
    """What this process may use of the machine."""

    cpus: tuple[int, ...]  # its affinity mask
    usable_cores: int  # physical ones, within mask and quota
    cpu_quota: float | None  # CPUs' worth of time
    locked_bytes: int | None  # memory that may be locked; None: unlimited or unknown


@dataclass(frozen=True, slots=True)
class Disk:
    """The filesystem behind a path that matters."""

    purpose: str
    path: str
    total_bytes: int | None
    free_bytes: int | None
    filesystem: str | None
    kind: str  # "NVMe", "SSD", "rotating", "virtual", "network", "memory" or "unknown"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU, as NVML tells."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    compute_capability: str | None
    pcie: str | None  # "gen 4 x16 of gen 5 x16": now and at most


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything that `probe` found; `unknown` says what it did not find, and why."""

    cpu: Cpu
    nodes: tuple[Node, ...]
    memory: Memory
    limits: Limits
    disks: tuple[Disk, ...]
    gpus: tuple[Gpu, ...]
    gpu_driver: str | None
    container: str | None  # "docker", "podman", "kubernetes", "lxc", ... ; None: none seen
    hypervisor: str | None  # "WSL", "KVM", ... ; None: none seen
    unknown: tuple[tuple[str, str], ...]  # what, and the reason

    def why_unknown(self, what: str) -> str:
        """The reason why `what` is unknown, or an empty string."""
        return dict(self.unknown).get(what, "")

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {**asdict(self), "unknown": dict(self.unknown)}
