"""What `probe` says of GPUs: frozen values, None where it is unknown; `Machine.unknown` has the reasons."""

from dataclasses import dataclass

_LANE_BYTES_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # after line coding


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCI Express link."""

    generation: int
    width: int  # lanes

    @property
    def bytes_s(self) -> float | None:
        """Bytes a second each way before packet headers; copies reach 80 to 90 % of it. None: a newer generation."""
        lane = _LANE_BYTES_S.get(self.generation)
        return None if lane is None else lane * self.width

    def __str__(self) -> str:
        return f"gen {self.generation} x{self.width}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU, as NVML tells. What is None has its reason under "GPU N" and the word in quotes."""

    name: str
    total_bytes: int | None  # "VRAM"
    free_bytes: int | None  # "VRAM"
    compute_capability: str | None  # "12.0"; "compute capability"
    pcie_now: PcieLink | None  # as trained now: an idle GPU runs a lower generation; "PCIe"
    pcie_most: PcieLink | None  # what GPU and slot allow; "PCIe"
    architecture: str | None = None  # "Blackwell", ...; "architecture"
    index: int = 0  # NVML's; CUDA may count differently: compare addresses
    pci_address: str | None = None  # "0000:41:00.0", as in /sys/bus/pci/devices; "PCI address"
    numa_node: int | None = None  # the node that it hangs on; "NUMA"
    cpus: tuple[int, ...] = ()  # those near it; "CPUs"

    @property
    def pcie(self) -> str | None:
        """Link now and at most: "gen 4 x16 of gen 5 x16"."""
        return f"{self.pcie_now} of {self.pcie_most}" if self.pcie_now and self.pcie_most else None

    @property
    def pcie_note(self) -> str:
        """What to think of a link that is below its best; empty where it is not."""
        now, most = self.pcie_now, self.pcie_most
        if now is None or most is None:
            return ""
        if now.width < most.width:
            return f"trained to {now.width} of {most.width} lanes: reseat the card, or use a slot with all lanes"
        if now.generation < most.generation:
            return "an idle GPU lowers its link; it rises under load"
        return ""


@dataclass(frozen=True, slots=True)
class GpuPair:
    """How two GPUs reach each other; by their `Gpu.index`. Reasons are under "GPUs A-B" and the word in quotes."""

    first: int
    second: int
    peer_to_peer: bool | None  # both read and write each other's memory; "P2P"
    why_not: str | None  # why the driver refuses that
    num_nvlinks: int | None  # active links between them; 0: none; "NVLink"
    path: str | None  # "one board", "one switch", "switches", "host bridge", "node" or "sockets"; "path"


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One NVIDIA GPU as the PCI bus shows it, whether its driver works or not."""

    address: str
    device_id: str  # "10de:2b85"
    name: str | None  # None: not one of the few whose numbers are known here
    driver: str | None  # "nvidia", "nouveau", "vfio-pci"; None: none
    numa_node: int | None  # None: the firmware does not tell
    pcie_now: PcieLink | None
    pcie_most: PcieLink | None  # of the GPU alone: the slot may allow less
