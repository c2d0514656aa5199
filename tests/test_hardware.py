"""What `probe` says of recorded machines, and of none at all."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from localmoe import hardware
from localmoe.hardware import available_memory, physical_cores, probe
from localmoe.hardware.files import to_list
from localmoe.hardware.gpu import NoGpuError, read_gpus

GIB = 1 << 30


class Tree:
    """A recorded machine, built file by file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setitem__(self, path: str, text: object) -> None:
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    @property
    def root(self) -> str:
        return str(self.folder)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def epyc(tree: Tree, *, sockets: int = 2, cores: int = 4, smt: int = 2) -> Tree:
    """Two sockets, CPUs numbered as Linux does: the second threads of all cores come last."""
    count = sockets * cores
    blocks = []
    for cpu in range(count * smt):
        core = cpu % count
        siblings = ",".join(str(core + n * count) for n in range(smt))
        tree[f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = siblings
        tree[f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = core // cores
        blocks.append(
            f"processor\t: {cpu}\nmodel name\t: AMD EPYC 9355  32-Core Processor\n"
            f"physical id\t: {core // cores}\ncore id\t\t: {core % cores}\n"
            "flags\t\t: fpu sse2 avx2 fma f16c avx512f avx512bw avx512vl avx512vbmi avx512_bf16\n"
        )
    tree["/proc/cpuinfo"] = "\n".join(blocks)
    tree["/sys/devices/system/cpu/online"] = f"0-{count * smt - 1}"
    tree["/proc/self/status"] = f"Name:\tpython\nCpus_allowed_list:\t0-{count * smt - 1}"
    tree["/proc/meminfo"] = f"MemTotal: {1024 << 20} kB\nMemFree: 1 kB\nMemAvailable: {1000 << 20} kB\nSwapTotal: 0 kB"
    tree["/sys/devices/system/node/online"] = f"0-{sockets - 1}"
    for node in range(sockets):
        lines = f"Node {node} MemTotal:       {512 << 20} kB\nNode {node} MemFree:        {500 << 20} kB"
        tree[f"/sys/devices/system/node/node{node}/meminfo"] = lines
        tree[f"/sys/devices/system/node/node{node}/cpulist"] = f"{node * cores}-{node * cores + cores - 1}"
    return tree


def mounted(tree: Tree, *lines: str) -> None:
    tree["/proc/self/mountinfo"] = "\n".join(lines)


def version2(tree: Tree, group: str = "/user/app") -> None:
    tree["/proc/self/cgroup"] = f"0::{group}"
    mounted(tree, "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate")


def test_a_server_is_counted(tree):
    machine = probe(epyc(tree).root)
    assert machine.cpu.model == "AMD EPYC 9355 32-Core Processor"
    assert (machine.cpu.num_sockets, machine.cpu.num_cores, machine.cpu.num_threads) == (2, 8, 16)
    assert machine.cpu.has_smt
    assert "avx512_bf16" in machine.cpu.flags
    assert "fpu" not in machine.cpu.flags
    assert [(n.number, n.cpus, n.total_bytes) for n in machine.nodes] == [
        (0, (0, 1, 2, 3), 512 * GIB),
        (1, (4, 5, 6, 7), 512 * GIB),
    ]
    assert machine.memory.total_bytes == 1024 * GIB
    assert machine.memory.usable_bytes == 1000 * GIB
    assert machine.limits.usable_cores == 8


def test_cores_follow_the_affinity_mask(tree):
    epyc(tree)["/proc/self/status"] = "Cpus_allowed_list:\t0-1,8-9,4"
    assert physical_cores(tree.root) == 3


def test_cores_are_found_without_topology_files(tree):
    tree["/proc/cpuinfo"] = "\n\n".join(
        f"processor : {cpu}\nphysical id : 0\ncore id : {cpu % 2}\nflags : avx2" for cpu in range(4)
    )
    assert physical_cores(tree.root) == 2
    assert probe(tree.root).cpu.num_sockets == 1


def test_an_empty_tree_is_a_machine_of_which_nothing_is_known(tree):
    machine = probe(tree.root, {"data": Path("/home/me")})
    assert machine.cpu.model is None
    assert machine.memory.usable_bytes == 0
    assert physical_cores(tree.root) == 1
    assert available_memory(tree.root) == 0
    assert machine.disks[0].kind == "unknown"
    assert machine.why_unknown("DRAM") == "no MemTotal in /proc/meminfo"
    assert {"CPU", "DRAM", "NUMA", "GPU", "ISA"} <= set(dict(machine.unknown))


@pytest.mark.parametrize("text", ["", "garbage", "\x00\xff", ":::", "Node 0 MemTotal: kB", "9" * 400, "0-99999999999"])
def test_odd_files_never_raise(tree, text):
    for path in (
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "proc/self/status",
        "proc/self/limits",
        "sys/devices/system/node/online",
        "sys/devices/system/cpu/online",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    ):
        tree[path] = text
    json.dumps(probe(tree.root, {"data": Path("/")}).to_json())


def test_version_2_limits_of_ancestors_count(tree):
    version2(epyc(tree))
    tree["/sys/fs/cgroup/user/app/memory.max"] = "max"
    tree["/sys/fs/cgroup/user/memory.max"] = 64 * GIB
    tree["/sys/fs/cgroup/user/memory.current"] = 40 * GIB
    tree["/sys/fs/cgroup/user/memory.stat"] = f"anon 1\nactive_file {GIB}\ninactive_file {9 * GIB}"
    tree["/sys/fs/cgroup/user/cpu.max"] = "350000 100000"
    machine = probe(tree.root)
    assert machine.memory.cgroup_limit_bytes == 64 * GIB
    assert available_memory(tree.root) == machine.memory.usable_bytes == 34 * GIB
    assert machine.limits.cpu_quota == 3.5
    assert machine.limits.usable_cores == 3


def test_version_1_limits_are_read_below_the_mounts_root(tree):
    epyc(tree)["/proc/self/cgroup"] = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc"
    mounted(
        tree,
        "40 30 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        "41 30 0:32 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
    )
    tree["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = 8 * GIB
    tree["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = 3 * GIB
    tree["/sys/fs/cgroup/memory/memory.stat"] = f"total_active_file 0\ntotal_inactive_file {GIB}"
    tree["/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"] = 200000
    tree["/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us"] = 100000
    assert available_memory(tree.root) == 6 * GIB
    assert physical_cores(tree.root) == 2
    assert probe(tree.root).container == "docker"


def test_no_limit_is_no_limit(tree):
    epyc(tree)["/proc/self/cgroup"] = "4:memory:/\n1:cpu:/\n0::/"
    mounted(
        tree,
        "40 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        "41 30 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "42 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    tree["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = (1 << 63) - 4096
    tree["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = -1
    tree["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = 100000
    machine = probe(tree.root)
    assert machine.memory.cgroup_limit_bytes is None
    assert machine.limits.cpu_quota is None
    assert machine.memory.usable_bytes == 1000 * GIB


@pytest.mark.parametrize(
    ("source", "filesystem", "files", "kind"),
    [
        ("/dev/nvme0n1p2", "ext4", {"nvme0n1p2/x": ""}, "NVMe"),
        ("/dev/sda1", "xfs", {"sda1/queue/rotational": 0}, "SSD"),
        ("/dev/sdb", "ext4", {"sdb/queue/rotational": 1}, "rotating"),
        ("/dev/vda", "ext4", {"vda/queue/rotational": 1}, "virtual"),
        ("/dev/md0", "xfs", {"md0/slaves/nvme0n1/x": "", "nvme0n1/x": ""}, "NVMe"),
        ("/dev/dm-0", "xfs", {"dm-0/slaves/sdb/x": "", "sdb/queue/rotational": 1}, "rotating"),
        ("server:/share", "nfs4", {}, "network"),
        ("tmpfs", "tmpfs", {}, "memory"),
        ("overlay", "overlay", {}, "unknown"),
    ],
)
def test_the_disk_under_a_path_is_told(tree, source, filesystem, files, kind):
    mounted(
        tree,
        "22 1 8:1 / / rw - ext4 /dev/sda9 rw",
        f"50 22 8:2 / /big\\040disk rw - {filesystem} {source} rw",
        "51 22 8:3 / /big rw - tmpfs tmpfs rw",
    )
    for path, text in files.items():
        tree[f"/sys/class/block/{path}"] = text
    (tree.folder / "big disk").mkdir()
    (disk,) = probe(tree.root, {"models": Path("/big disk/not/yet")}).disks
    assert (disk.purpose, disk.path, disk.kind, disk.filesystem) == (
        "models",
        "/big disk/not/yet",
        kind,
        filesystem,
    )
    assert disk.free_bytes
    assert disk.total_bytes


def test_wsl_and_virtual_machines_are_recognised(tree):
    tree["/proc/cpuinfo"] = "processor : 0\nflags : fpu hypervisor avx2"
    assert probe(tree.root).hypervisor == "virtual machine"
    tree["/sys/class/dmi/id/sys_vendor"] = "QEMU"
    assert probe(tree.root).hypervisor == "KVM"
    tree["/proc/sys/kernel/osrelease"] = "5.15.167.4-microsoft-standard-WSL2"
    assert probe(tree.root).hypervisor == "WSL"


def test_containers_are_recognised(tree):
    assert probe(tree.root).container is None
    tree["/proc/self/cgroup"] = "0::/kubepods.slice/pod1/abc"
    assert probe(tree.root).container == "kubernetes"
    tree["/run/.containerenv"] = ""
    assert probe(tree.root).container == "podman"
    tree["/run/systemd/container"] = "lxc"
    assert probe(tree.root).container == "lxc"


@pytest.mark.parametrize("text", ["3-1", "a", "0-9999999999", "1,,2"])
def test_a_list_that_is_none_is_empty(text):
    assert to_list(text) == ()


class FakeNvml(SimpleNamespace):
    """NVML's face with one GPU, or with none that answers."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_NO_PERMISSION = 4

    def __init__(self, fails_with: int | None = None) -> None:
        super().__init__(fails_with=fails_with, stopped=False)

    def nvmlInit(self):  # noqa: N802
        if self.fails_with is not None:
            raise self.NVMLError(self.fails_with)

    def nvmlShutdown(self):  # noqa: N802
        self.stopped = True

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetCount": 1,
            "nvmlSystemGetDriverVersion": "580.10",
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"NVIDIA GeForce RTX 5090",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=32 * GIB, free=30 * GIB),
            "nvmlDeviceGetCudaComputeCapability": (12, 0),
            "nvmlDeviceGetCurrPcieLinkGeneration": 4,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        }
        if name in answers:
            return lambda *_: answers[name]

        def unsupported(*_):
            raise self.NVMLError(3)

        return unsupported


def test_gpus_are_asked_through_nvml(monkeypatch):
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (gpu,), driver = read_gpus()
    assert (gpu.name, gpu.total_bytes, gpu.compute_capability, driver) == (
        "NVIDIA GeForce RTX 5090",
        32 * GIB,
        "12.0",
        "580.10",
    )
    assert gpu.pcie is None  # this one does not know its widest link
    assert nvml.stopped


@pytest.mark.parametrize(
    ("code", "reason"),
    [(12, "no NVIDIA driver"), (9, "not loaded"), (4, "no permission"), (999, "does not start")],
)
def test_without_a_driver_the_reason_is_told(monkeypatch, code, reason):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fails_with=code))
    with pytest.raises(NoGpuError, match=reason):
        read_gpus()


def test_this_machine_can_be_probed():
    machine = probe()
    assert machine.limits.usable_cores == physical_cores() >= 1
    assert 0 < available_memory() <= machine.memory.total_bytes
    assert json.loads(json.dumps(machine.to_json()))["unknown"] == dict(machine.unknown)


def test_probing_raises_nothing_even_when_a_part_breaks(monkeypatch):
    def broken(root):
        raise RuntimeError("odd")

    monkeypatch.setattr("localmoe.hardware.survey.read_memory", broken)
    assert probe().why_unknown("DRAM") == "RuntimeError: odd"
    assert hardware.Machine is type(probe())
