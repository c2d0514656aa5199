"""What `probe` says of the machines in tests/machines: each has its facts, and each its trap."""

import json

import pytest
from recorded import NAMES
from unknowns import without_reason

from localmoe.hardware import Cache, GpuPair, PcieLink, physical_cores
from localmoe.hardware.placement import cpus_of_cores

GB, GIB, MIB = 10**9, 1 << 30, 1 << 20
PAPER, NPS4, XEON = "dual-epyc-9355-2x5090", "epyc-9354p-nps4", "dual-xeon-8480-amx"
THREADRIPPER, DESKTOP, LAPTOP = "threadripper-9970x-5090", "desktop-5950x-3090", "laptop-1260p-16gb"
CONTAINER, BROKEN, PRO_6000, WSL = "container-64gb", "broken-driver", "threadripper-9985wx-pro6000", "wsl2-13700k-4090"


def test_these_machines_are_recorded():
    assert {PAPER, NPS4, XEON, THREADRIPPER, DESKTOP, LAPTOP, CONTAINER, BROKEN, PRO_6000, WSL} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "sockets", "cores", "threads", "offline"),
    [
        (PAPER, 2, 64, 128, 0),
        (THREADRIPPER, 1, 32, 32, 32),
        (NPS4, 1, 32, 32, 0),
        (XEON, 2, 112, 224, 0),
        (DESKTOP, 1, 16, 31, 1),
        (LAPTOP, 1, 12, 16, 0),
        (BROKEN, 2, 32, 64, 0),
        (PRO_6000, 1, 64, 128, 0),
    ],
)
def test_processors_are_counted(probed, name, sockets, cores, threads, offline):
    cpu = probed(name).cpu
    assert (cpu.num_sockets, cpu.num_cores, cpu.num_threads, len(cpu.offline)) == (sockets, cores, threads, offline)
    assert cpu.has_smt == (threads > cores)


@pytest.mark.parametrize(
    ("name", "best", "flags", "none_of"),
    [
        (PAPER, "avx512_zen", {"avx512vbmi", "avx512_bf16", "avx512_vnni", "avx_vnni"}, {"amx_tile", "avx512_fp16"}),
        (NPS4, "avx512_zen", {"avx512f", "avx512bw", "avx512vl"}, {"avx_vnni"}),
        (XEON, "amx_bf16", {"amx_tile", "amx_bf16", "amx_int8", "avx512_fp16"}, set()),
        (DESKTOP, "avx2_zen", {"avx2", "f16c", "fma"}, {"avx512f"}),
        (LAPTOP, "avx2", {"avx2", "avx_vnni"}, {"avx512f"}),
    ],
)
def test_what_the_kernels_can_use_is_told(probed, name, best, flags, none_of):
    cpu = probed(name).cpu
    assert cpu.targets[-1] == best
    assert flags <= set(cpu.flags)
    assert not none_of & set(cpu.flags)


def test_caches_are_counted_once_each(probed):
    assert probed(PAPER).cpu.caches == (
        Cache(1, "Data", 48 << 10, 64),
        Cache(2, "Unified", 1 << 20, 64),
        Cache(3, "Unified", 32 << 20, 16),
    )
    assert probed(LAPTOP).cpu.caches == (
        Cache(1, "Data", 32 << 10, 8),
        Cache(1, "Data", 48 << 10, 4),
        Cache(2, "Unified", 1280 << 10, 4),
        Cache(2, "Unified", 2 << 20, 2),
        Cache(3, "Unified", 18 << 20, 1),
    )


def test_memory_and_cpus_of_nodes_are_told(probed):
    assert [round(n.total_bytes / GB) for n in probed(PAPER).nodes] == [811, 812]
    assert [round(n.total_bytes / GB) for n in probed(NPS4).nodes] == [101, 101, 51, 101]
    assert [n.cpus[0] for n in probed(NPS4).nodes] == [0, 8, 16, 24]
    node = probed(XEON).nodes[1]
    assert node.available_bytes == node.free_bytes + (200000 + 9000000 + 300000) * 1024


def test_a_socket_without_memory_is_a_node_of_no_bytes(probed):
    full, empty = probed(BROKEN).nodes
    assert (empty.total_bytes, empty.free_bytes, len(empty.cpus)) == (0, 0, 32)
    assert full.total_bytes == probed(BROKEN).memory.total_bytes


@pytest.mark.parametrize(
    ("name", "modules", "slots", "channels", "speed", "peak"),
    [
        (PAPER, 24, 24, 24, 6400, 1228.8e9),
        (NPS4, 12, 12, 12, 4800, 460.8e9),
        (PRO_6000, 8, 8, 8, 6400, 409.6e9),
        (DESKTOP, 2, 4, 2, 3600, 57.6e9),
        (XEON, 16, 32, None, 4800, None),  # a board that calls its slots A1 to B16 does not tell channels
    ],
)
def test_modules_are_read_from_the_firmware(probed, name, modules, slots, channels, speed, peak):
    dimms = probed(name).memory.dimms
    assert dimms.source == "SMBIOS"
    assert (len(dimms.modules), dimms.num_slots, dimms.num_channels, dimms.speed_mt_s) == (
        modules,
        slots,
        channels,
        speed,
    )
    assert dimms.peak_bytes_s == peak


def test_only_root_reads_the_firmware(probed):
    machine = probed(LAPTOP)
    assert machine.memory.dimms is None
    assert machine.why_unknown("DIMMs") == "/sys/firmware/dmi/tables/DMI may not be read by this user"
    by_driver = probed(THREADRIPPER)
    assert by_driver.memory.dimms.source == "EDAC"
    assert [(m.kind, m.size_bytes) for m in by_driver.memory.dimms.modules] == [("DDR5", 64 * GIB)] * 4
    assert "may not be read" in by_driver.why_unknown("DIMM speed")


def test_the_mask_keeps_cpus_that_are_off(unpacked, probed):
    assert probed(THREADRIPPER).limits.cpus == tuple(range(32))
    assert probed(PAPER).limits.cpus == tuple(range(128))
    assert len(cpus_of_cores(str(unpacked(THREADRIPPER).root))) == 32
    assert physical_cores(str(unpacked(DESKTOP).root)) == 16


def test_a_containers_limits_are_its_own(probed):
    machine = probed(CONTAINER)
    assert machine.container == "docker"
    assert machine.memory.cgroup_limit_bytes == 64 * GIB
    assert machine.memory.usable_bytes == (64 - 20 + 8) * GIB
    assert (machine.limits.usable_cores, machine.limits.cpu_quota) == (12, 12.5)
    assert (machine.limits.cpus, machine.limits.nodes) == (tuple(range(32, 48)), (1,))
    assert machine.limits.locks_freely is False
    assert machine.cpu.num_cores == 64


def test_a_job_has_limits_of_which_it_sees_no_folder(probed):
    machine = probed(XEON)
    assert machine.memory.cgroup_limit_bytes == 128 * GIB  # its own says 200 GB
    assert machine.limits.usable_cores == 28
    assert machine.limits.nodes == (1,)
    assert machine.limits.cpu_quota is None


@pytest.mark.parametrize(
    ("name", "locked", "most", "freely"),
    [
        (PAPER, 8 * MIB, 8 * MIB, True),
        (DESKTOP, 8 * MIB, None, False),
        (PRO_6000, None, None, True),
        (CONTAINER, 65536, 65536, False),
    ],
)
def test_locked_memory_is_told(probed, name, locked, most, freely):
    limits = probed(name).limits
    assert (limits.locked_bytes, limits.locked_most_bytes, limits.locks_freely) == (locked, most, freely)
    assert not probed(name).why_unknown("memlock")


def test_the_kernels_settings_are_told(probed):
    limits = probed(PAPER).limits
    assert (limits.max_map_count, limits.numa_balancing) == (65530, 1)
    assert probed(PRO_6000).limits.numa_balancing == 0
    assert probed(XEON).limits.numa_balancing is None
    assert probed(XEON).why_unknown("NUMA balancing") == "no /proc/sys/kernel/numa_balancing"


def test_huge_pages_are_told(probed):
    memory = probed(PAPER).memory
    assert (memory.huge_pages, memory.huge_page_defrag) == ("madvise", "madvise")
    assert probed(THREADRIPPER).memory.huge_pages == "always"
    assert [(p.page_bytes, p.num_pages, p.num_free) for p in probed(XEON).memory.huge_pools] == [
        (2 * MIB, 20000, 17000),
        (GIB, 0, 0),
    ]
    assert probed(BROKEN).memory.huge_pages is None
    assert probed(BROKEN).why_unknown("THP") == "no /sys/kernel/mm/transparent_hugepage/enabled"


@pytest.mark.parametrize(
    ("name", "filesystem", "kind"),
    [
        (PAPER, "xfs", "NVMe"),  # an md RAID of NVMe disks
        (THREADRIPPER, "btrfs", "NVMe"),  # LUKS under it
        (NPS4, "nfs4", "network"),
        (XEON, "xfs", "rotating"),
        (DESKTOP, "ext4", "NVMe"),  # /dev/root
        (CONTAINER, "ext4", "NVMe"),  # a bind from the host
        (PRO_6000, "zfs", "unknown"),
        (WSL, "9p", "network"),
    ],
)
def test_the_disk_of_the_models_is_told(probed, name, filesystem, kind):
    disk = probed(name).disks[0]
    assert (disk.purpose, disk.filesystem, disk.kind) == ("models", filesystem, kind)


def test_other_disks_have_their_kind_or_a_reason(probed):
    assert probed(NPS4).disks[1].kind == "SSD"  # LVM on SATA
    assert probed(WSL).disks[1].kind == "virtual"
    assert probed(CONTAINER).disks[1].kind == "unknown"
    assert "overlay" in probed(CONTAINER).why_unknown("disk data kind")


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        (PAPER, [("NVIDIA GeForce RTX 5090", "Blackwell", "12.0", 32607, 0, "gen 1 x16 of gen 5 x16")] * 2),
        (THREADRIPPER, [("NVIDIA GeForce RTX 5090", "Blackwell", "12.0", 32607, 0, "gen 5 x8 of gen 5 x16")]),
        (DESKTOP, [("NVIDIA GeForce RTX 3090", "Ampere", "8.6", 24576, 0, "gen 1 x4 of gen 4 x16")] * 2),
        (CONTAINER, [("NVIDIA GeForce RTX 5090", "Blackwell", "12.0", 32607, 1, "gen 1 x16 of gen 5 x16")]),
        (WSL, [("NVIDIA GeForce RTX 4090", "Ada", "8.9", 24564, 0, "gen 4 x16 of gen 4 x16")]),
    ],
)
def test_gpus_are_told(probed, name, gpus):
    found = probed(name).gpus
    assert len(found) == len(gpus)
    first = found[0]
    told = (first.name, first.architecture, first.compute_capability, first.total_bytes >> 20, first.numa_node)
    assert (*told, first.pcie) == gpus[0]


def test_links_below_their_best_are_explained(probed):
    assert probed(PAPER).gpus[0].pcie_note == "an idle GPU lowers its link; it rises under load"
    assert probed(THREADRIPPER).gpus[0].pcie_note.startswith("trained to 8 of 16 lanes")
    assert probed(PRO_6000).gpus[0].pcie_note == ""
    assert PcieLink(5, 16).bytes_s == pytest.approx(63e9, rel=0.01)


def test_driver_and_cuda_are_told(probed):
    assert (probed(PAPER).gpu_driver, probed(PAPER).gpu_cuda) == ("580.95.05", "13.0")
    assert probed(BROKEN).gpu_driver is None


def test_gpus_hang_on_nodes(probed):
    assert [gpu.numa_node for gpu in probed(PAPER).gpus] == [0, 1]
    assert probed(PAPER).gpus[1].cpus == tuple(range(32, 64))


def test_pairs_of_gpus_are_told(probed):
    assert probed(PAPER).gpu_pairs == (GpuPair(0, 1, False, "the GPUs do not support it", 0, "sockets"),)
    assert probed(DESKTOP).gpu_pairs == (GpuPair(0, 1, True, None, 4, "host bridge"),)
    assert probed(THREADRIPPER).gpu_pairs == ()


def test_a_broken_driver_is_told_from_none(probed):
    assert probed(NPS4).why_unknown("GPU") == "no NVIDIA driver"
    assert probed(BROKEN).gpus == ()
    why = probed(BROKEN).why_unknown("GPU")
    assert "updated while it was loaded; reboot" in why
    assert "550.163.01" in why
    assert "2x NVIDIA GeForce RTX 3090" in why


def test_a_gpu_without_nvidias_driver_is_seen_on_the_bus(probed):
    machine = probed(LAPTOP)
    (gpu,) = machine.pci_gpus
    assert (gpu.device_id, gpu.driver, gpu.pcie_now, gpu.pcie_most) == ("10de:1fa1", "nouveau", None, PcieLink(4, 8))
    assert machine.why_unknown("GPU") == "no NVIDIA driver; on the PCI bus: 1x NVIDIA GPU 10de:1fa1, with nouveau"


def test_a_lost_gpu_leaves_the_others(probed):
    machine = probed(PRO_6000)
    (gpu,) = machine.gpus
    assert (gpu.index, gpu.total_bytes >> 20) == (1, 97887)
    assert machine.why_unknown("GPU 0") == "it has fallen off the bus; reboot"
    assert len(machine.pci_gpus) == 2


def test_wsl_is_recognised(probed):
    assert (probed(WSL).hypervisor, probed(WSL).container) == ("WSL", None)
    assert {probed(name).hypervisor for name in NAMES if name != WSL} == {None}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_unknown_says_why(probed, name):
    assert without_reason(probed(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_all_of_it_is_plain_json(probed, name):
    told = json.loads(json.dumps(probed(name).to_json()))
    assert told["cpu"]["model"] == probed(name).cpu.model
    assert [gpu["pcie"] for gpu in told["gpus"]] == [gpu.pcie for gpu in probed(name).gpus]
