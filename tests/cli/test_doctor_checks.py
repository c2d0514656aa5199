"""What doctor finds on recorded machines, and what it tells people to do about it."""

import shlex
import subprocess
from dataclasses import replace

import pytest
from machines import PAPER, machine, shell_lines, statuses
from recorded import NAMES

from localmoe.cli.doctor.checks import check_machine
from localmoe.cli.doctor.page import WIDTH, check_lines, head, title_of
from localmoe.engine.measured import Measured, MeasuredGpu
from localmoe.hardware import Cpu, GpuPair, HugePool, Limits, Machine, Memory, PcieLink

GIB = 1 << 30
BARE = Machine(
    Cpu(None, None, None, None, (), ()),
    (),
    Memory(None, None, None, None, None, None),
    Limits((), 1, None, None),
    (),
    (),
    None,
    None,
    None,
    (
        ("CPU", "no model name"),
        ("DRAM", "no MemTotal"),
        ("ISA", "no flags"),
        ("GPU", "the NVIDIA driver is not loaded"),
    ),
)


def find(found, check, **settings):
    return next(one for one in check_machine(found, **settings) if one.id == check)


def changed(name, part, **values):
    """A recorded machine of which one part is different."""
    found = machine(name)
    return replace(found, **{part: replace(getattr(found, part), **values)})


def with_gpu(name, **values):
    found = machine(name)
    return replace(found, gpus=(replace(found.gpus[0], **values), *found.gpus[1:]))


@pytest.mark.parametrize("name", NAMES)
def test_the_report_fits_80_columns_and_commands_stay_whole(name):
    found = machine(name)
    lines = [*head(found), *check_lines(check_machine(found))]
    assert all(len(line) <= WIDTH for line in lines)
    for command in shell_lines(found):
        assert f"    {command}" in lines


@pytest.mark.parametrize("name", NAMES)
def test_every_warning_says_what_to_do_and_nothing_else_does(name):
    for check in check_machine(machine(name)):
        assert bool(check.fix) == (check.status != "ok"), check
        assert check.detail and "\n" not in check.detail


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_shell(name):
    for command in shell_lines(machine(name)):
        assert subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0
        assert shlex.split(command)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_not_repeated_and_nothing_fails(name):
    checks = check_machine(machine(name))
    assert len({check.id for check in checks}) == len(checks)
    assert "fail" not in {check.status for check in checks}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (PAPER, {"numa-balancing"}),
        ("broken-driver", {"numa", "huge-pages", "memlock", "gpu"}),
        ("container-64gb", {"cores", "numa", "numa-balancing", "dram", "memlock", "gpu-driver"}),
        ("desktop-5950x-3090", {"memlock", "pcie-0", "gpu-1"}),
        ("dual-xeon-8480-amx", {"cores", "numa", "dram", "disk-models"}),
        ("epyc-9354p-nps4", {"numa", "numa-balancing", "disk-models"}),
        ("laptop-1260p-16gb", set()),
        ("threadripper-9970x-5090", {"memlock", "pcie-0"}),
        ("threadripper-9985wx-pro6000", {"huge-pages", "gpu-0"}),
        ("wsl2-13700k-4090", {"memlock", "disk-models"}),
    ],
)
def test_what_is_worth_a_warning(name, wanted):
    assert set(statuses(machine(name))) == wanted


@pytest.mark.parametrize(
    ("name", "check", "fix"),
    [
        (PAPER, "numa-balancing", "echo kernel.numa_balancing=0 | sudo tee -a /etc/sysctl.d/90-localmoe.conf"),
        ("broken-driver", "gpu", "sudo reboot"),
        ("broken-driver", "memlock", "sudo tee /etc/security/limits.d/localmoe.conf"),
        ("desktop-5950x-3090", "memlock", "ulimit -l unlimited"),
        ("wsl2-13700k-4090", "memlock", "prlimit --pid $$ --memlock=unlimited"),
        ("container-64gb", "memlock", "docker run --ulimit memlock=-1"),
        ("container-64gb", "numa", "docker run --cpuset-mems=0,1"),
        ("container-64gb", "cores", "docker run --cpuset-cpus=0-127 and without --cpus"),
        ("container-64gb", "dram", "docker run without --memory"),
        ("container-64gb", "gpu-driver", "docker run --gpus all"),
        ("container-64gb", "numa-balancing", "on the host"),
        ("dual-xeon-8480-amx", "cores", "batch system"),
        ("threadripper-9985wx-pro6000", "huge-pages", "hugepages-1048576kB/nr_hugepages"),
        ("wsl2-13700k-4090", "disk-models", "WSL's own disk"),
        ("desktop-5950x-3090", "gpu-1", "nvidia-smi"),
    ],
)
def test_fixes_fit_the_place(name, check, fix):
    assert fix in str(find(machine(name), check).fix)


@pytest.mark.parametrize(
    ("name", "check", "detail"),
    [
        (PAPER, "isa", "kernels for avx512_zen; AVX-512 F BW VL VBMI BF16"),
        (PAPER, "cores", "64 cores in 2 sockets, 128 threads"),
        (PAPER, "numa", "2 nodes (811.4 GB, 811.7 GB)"),
        (PAPER, "dimms", "24 x 68.7 GB DDR5 at 6400 MT/s in 24 slots, 24 channels: 1,229 GB/s at most"),
        (PAPER, "pcie-1", "GPU 1: gen 5 x16, 63 GB/s at most; now gen 1, as idle GPUs are"),
        (PAPER, "p2p-0-1", "GPUs 0, 1: none (the GPUs do not support it); they exchange through DRAM"),
        ("desktop-5950x-3090", "p2p-0-1", "GPUs 0, 1: 4 NVLinks"),
        ("desktop-5950x-3090", "pcie-0", "4 of 16 lanes: experts come at 25 % of the full speed"),
        ("broken-driver", "numa", "node 1 has no memory: its 32 CPUs read over the link between sockets"),
        ("broken-driver", "gpu", "loaded is 550.163.01; on the PCI bus: 2x NVIDIA GeForce RTX 3090"),
        ("epyc-9354p-nps4", "numa", "node 2 has less"),
        ("dual-xeon-8480-amx", "huge-pages", "35.7 GB of 2 MB pages set aside and free"),
        ("threadripper-9985wx-pro6000", "gpu-0", "it has fallen off the bus"),
        ("laptop-1260p-16gb", "gpu", "with nouveau; localmoe computes on the CPU"),
        ("laptop-1260p-16gb", "memlock", "only a GPU needs more"),
        ("laptop-1260p-16gb", "dimms", "sudo dmidecode -t memory"),
        ("wsl2-13700k-4090", "dram", ".wslconfig"),
    ],
)
def test_details(name, check, detail):
    assert detail in find(machine(name), check).detail


def test_a_machine_is_described_in_a_line():
    assert title_of(machine(PAPER)) == "2x EPYC 9355 · 2x RTX 5090"
    assert title_of(machine("threadripper-9985wx-pro6000")).startswith("Ryzen Threadripper PRO 9985WX")


def test_without_kernels_nothing_can_run():
    assert find(BARE, "isa").status == "fail"
    paper = machine(PAPER)
    assert find(paper, "isa", isa="avx512").status == find(paper, "isa", isa="scalar").status == "warn"
    assert "unset LOCALMOE_ISA" in str(find(paper, "isa", isa="scalar").fix)
    assert find(machine("laptop-1260p-16gb"), "isa", isa="avx512").status == "fail"


def test_avx512_that_the_system_keeps_from_programs():
    hidden = changed(PAPER, "cpu", targets=("scalar", "avx2"))
    assert find(hidden, "isa").status == "warn"
    assert "clearcpuid" in find(hidden, "isa").fix.text


def test_what_is_unknown_is_said_with_its_reason():
    report = "\n".join(check_lines(check_machine(BARE)))
    assert "unknown: no model name" in report
    assert "unknown: no MemTotal" in report
    assert "    sudo modprobe nvidia" in report


def test_too_little_memory_for_anything():
    small = changed("laptop-1260p-16gb", "memory", usable_bytes=100 << 20)
    assert find(small, "dram").status == "fail"


@pytest.mark.parametrize(
    ("values", "status", "word"),
    [
        ({"huge_pages": "never"}, "warn", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ({"huge_page_defrag": "never"}, "warn", "/sys/kernel/mm/transparent_hugepage/defrag"),
        ({"huge_pages": None}, "warn", "CONFIG_TRANSPARENT_HUGEPAGE"),
        ({"huge_pages": None, "huge_pools": (HugePool(2 << 20, 9, 9),)}, "ok", ""),
        ({"huge_pages": "always", "huge_page_defrag": "defer+madvise"}, "ok", ""),
    ],
)
def test_huge_pages(values, status, word):
    check = find(changed(PAPER, "memory", **values), "huge-pages")
    assert check.status == status
    assert word in str(check.fix)


def test_empty_channels_and_mixed_modules():
    dimms = machine(PAPER).memory.dimms
    few = replace(dimms, modules=dimms.modules[:16], num_channels=16)
    check = find(changed(PAPER, "memory", dimms=few), "dimms")
    assert check.status == "warn"
    assert check.detail.endswith("8 of 24 channels are empty")
    mixed = replace(dimms, modules=(replace(dimms.modules[0], speed_mt_s=4800), *dimms.modules[1:]))
    assert "different speeds" in find(changed(PAPER, "memory", dimms=mixed), "dimms").detail


def test_too_few_mappings():
    check = find(changed(PAPER, "limits", max_map_count=1000), "maps")
    assert check.status == "warn"
    assert "vm.max_map_count=1048576" in check.fix.commands[0]


def test_a_full_disk():
    paper = machine(PAPER)
    full = replace(paper, disks=(replace(paper.disks[0], free_bytes=5), *paper.disks[1:]))
    assert find(full, "disk-models").status == "warn"
    unknown = replace(paper, disks=(replace(paper.disks[0], free_bytes=None),))
    assert find(unknown, "disk-models").fix.commands == ("df -h /home/me/.cache/huggingface",)


def test_a_link_that_is_trained_too_low():
    check = find(with_gpu(PAPER, pcie_now=PcieLink(4, 16)), "pcie-0")
    assert check.detail == "GPU 0: gen 4 x16; its slot and card do gen 5"
    assert "Gen5 in the BIOS" in check.fix.text


def test_a_measured_link_counts_for_more_than_an_idle_one():
    def measured(bytes_s):
        return Measured("2026-11-30", "1", "avx2", 2, gpus=(MeasuredGpu("a", h2d_bytes_s=bytes_s), MeasuredGpu("b")))

    good = find(machine(PAPER), "pcie-0", measured=measured(55e9))
    assert (good.status, good.detail) == ("ok", "GPU 0: gen 5 x16; 55.0 GB/s (measured)")
    assert find(machine(PAPER), "pcie-0", measured=measured(24e9)).status == "warn"
    assert "idle" in find(machine(PAPER), "pcie-1", measured=measured(24e9)).detail


def test_measured_memory_and_disk_are_told():
    measured = Measured("2026-11-30", "1", "avx2", 2, stream_bytes_s=871e9, disk_bytes_s=6.8e9)
    assert "read 871.0 GB/s (measured)" in find(machine(PAPER), "dram", measured=measured).detail
    assert "direct read 6.8 GB/s (measured)" in find(machine(PAPER), "disk-models", measured=measured).detail


def test_old_gpus_and_old_drivers():
    assert "older than Ampere" in find(with_gpu(PAPER, compute_capability="7.5"), "gpu-0").detail
    old = replace(machine(PAPER), gpu_cuda="12.6")
    assert "Blackwell needs CUDA 12.8" in find(old, "gpu-driver").detail
    assert find(old, "gpu-driver").fix.commands == ("sudo ubuntu-drivers install",)


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"peer_to_peer": True, "why_not": None}, "ok"),
        ({"peer_to_peer": None, "why_not": None}, "ok"),
        ({"why_not": "it is switched off in the driver's settings"}, "warn"),
    ],
)
def test_pairs(values, status):
    pair = replace(GpuPair(0, 1, False, None, 0, "node"), **values)
    assert find(replace(machine(PAPER), gpu_pairs=(pair,)), "p2p-0-1").status == status


@pytest.mark.parametrize(
    ("reason", "values", "fix"),
    [
        ("the NVIDIA driver is not loaded", {}, "sudo modprobe nvidia"),
        ("the NVIDIA driver hangs: no answer", {}, "dmesg"),
        ("nvidia-ml-py is not installed", {}, "pip install nvidia-ml-py"),
        ("no NVIDIA driver; but WSL has a GPU (/dev/dxg)", {"hypervisor": "WSL"}, "on Windows"),
        ("no NVIDIA driver; on the PCI bus: 2x", {"container": "docker"}, "docker run --gpus all"),
        ("no NVIDIA driver; on the PCI bus: 2x", {}, "sudo ubuntu-drivers install"),
    ],
)
def test_drivers_that_do_not_answer(reason, values, fix):
    found = replace(machine(PAPER), gpus=(), gpu_pairs=(), unknown=(("GPU", reason),), **values)
    assert fix in str(find(found, "gpu").fix)
