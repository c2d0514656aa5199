"""What `probe` says of recorded machines, and of none at all."""

import json
import subprocess
import sys
import threading
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from localmoe import hardware
from localmoe.hardware import available_memory, disk, physical_cores, probe
from localmoe.hardware.cores import processors
from localmoe.hardware.cpu import common_flags, targets_for
from localmoe.hardware.files import to_list

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
    assert machine.memory.usable_bytes is None
    assert physical_cores(tree.root) == 1
    assert available_memory(tree.root) == 0
    assert machine.disks[0].kind == "unknown"
    assert machine.why_unknown("DRAM") == "no /proc/meminfo"
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
    (found,) = probe(tree.root, {"models": Path("/big disk/not/yet")}).disks
    assert (found.purpose, found.path, found.kind, found.filesystem) == (
        "models",
        "/big disk/not/yet",
        kind,
        filesystem,
    )
    assert found.free_bytes is not None
    assert found.total_bytes


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


@pytest.mark.parametrize(
    ("bind", "kind"),
    [
        ("/var/lib/docker/containers/9f2c/hostname /etc/hostname", "docker"),
        ("/var/lib/kubelet/pods/1-2/etc-hosts /etc/hosts", "kubernetes"),
        ("/containers/overlay-containers/1f/userdata/hosts /etc/hosts", "podman"),
    ],
)
def test_containers_without_a_mark_are_seen_by_what_the_host_mounts(tree, bind, kind):
    tree["/proc/self/cgroup"] = "0::/"
    mounted(tree, f"907 900 259:2 {bind} rw - ext4 /dev/nvme0n1p2 rw")
    assert probe(tree.root).container == kind


def test_memory_high_is_a_limit_too(tree):
    version2(epyc(tree))
    tree["/sys/fs/cgroup/user/app/memory.max"] = 64 * GIB
    tree["/sys/fs/cgroup/user/app/memory.high"] = 48 * GIB
    assert probe(tree.root).memory.cgroup_limit_bytes == 48 * GIB


@pytest.mark.parametrize("name", ["memory.max", "memory.high", "cpu.max"])
def test_a_limit_that_is_not_understood_is_said(tree, name):
    version2(epyc(tree))
    assert probe(tree.root).why_unknown("cgroup") == ""
    tree[f"/sys/fs/cgroup/user/{name}"] = "lots"
    assert probe(tree.root).why_unknown("cgroup") == f"what /sys/fs/cgroup/user/{name} says is not understood"


def test_no_cgroup_file_is_said(tree):
    assert probe(tree.root).why_unknown("cgroup") == "no /proc/self/cgroup"


def test_no_limit_on_locked_memory_is_told_from_an_unknown_one(tree):
    assert probe(tree.root).why_unknown("memlock") == "no /proc/self/limits"
    tree["/proc/self/limits"] = "Max locked memory         unlimited            unlimited            bytes"
    machine = probe(tree.root)
    assert machine.limits.locked_bytes is None
    assert machine.why_unknown("memlock") == ""


@pytest.mark.parametrize("root", ["/nowhere", "/proc/version", ""])
def test_a_root_that_is_none_is_a_machine_of_which_nothing_is_known(root):
    assert probe(root or "/dev/null").memory.usable_bytes is None


@pytest.mark.parametrize("path", ["relative/folder", "/with\0zero", "/" + "x" * 5000, "/proc/self/mem/x"])
def test_odd_paths_have_a_disk_or_a_reason(path):
    (found,) = probe(paths={"odd": Path(path)}).disks
    assert found.path == path
    assert found.free_bytes is not None


def test_a_disk_that_never_answers_is_left_alone(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(disk, "PATIENCE_S", 0.05)
    monkeypatch.setattr(disk, "_room", lambda *_: release.wait(60))
    try:
        machine = probe(paths={"models": Path("/home")})
    finally:
        release.set()
    assert machine.disks[0].free_bytes is None
    assert machine.why_unknown("disk models room") == "no answer within 0.05 s"


def loaded_by(code):
    program = f"import sys; {code}; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    )


def test_nothing_heavy_is_imported():
    loaded = loaded_by("from localmoe.hardware import probe")
    assert "localmoe.hardware.nvml" in loaded
    assert not loaded & {"torch", "numpy", "pynvml", "localmoe._native"}


def test_counting_cores_is_spared_the_rest():
    loaded = loaded_by("from localmoe.hardware import available_memory, physical_cores")
    assert not loaded & {"localmoe.hardware.machine", "localmoe.hardware.nvml", "localmoe.hardware.survey"}


def test_names_that_are_not_there_are_refused():
    assert {name for name in hardware.__all__ if hasattr(hardware, name)} == set(hardware.__all__)
    with pytest.raises(AttributeError, match="no attribute 'speed'"):
        _ = hardware.speed


def test_all_answers_are_frozen():
    found = [thing for name in hardware.__all__ if is_dataclass(thing := getattr(hardware, name))]
    assert len(found) == 14
    assert all(thing.__dataclass_params__.frozen for thing in found)


def test_flags_and_native_module_agree_on_this_machine():
    expected = targets_for(common_flags(processors("/")), processors("/"))
    for target in ("scalar", "avx2", "avx512", "avx512_zen", "avx512_bf16"):
        assert (target in probe().cpu.targets) == (target in expected)


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
