import errno
import mmap
import os
from pathlib import Path

import pytest

from localmoe.hardware.huge_pages import POOL, reserved_pool
from localmoe.weights import arena as arenas
from localmoe.weights import numa
from localmoe.weights.arena import MAP_HUGETLB_2MB, Arena, from_reserved
from localmoe.weights.layout import Region

PAGE = 2 << 20


@pytest.fixture(autouse=True)
def no_pool(monkeypatch):
    """Whatever this machine has set aside."""
    monkeypatch.setattr(arenas, "reserved_pool", lambda: 0)


def tree(root: Path, texts: dict[str, str]) -> str:
    for name, text in texts.items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


def two_nodes(root: Path, allowed: str = "0-1") -> str:
    node = "/sys/devices/system/node"
    return tree(
        root,
        {
            f"{node}/online": "0-2\n",
            f"{node}/node0/meminfo": "Node 0 MemTotal: 1000 kB\n",
            f"{node}/node1/meminfo": "Node 1 MemTotal: 1000 kB\n",
            f"{node}/node2/meminfo": "Node 2 MemTotal: 0 kB\n",
            "/proc/self/status": f"Mems_allowed_list:\t{allowed}\n",
        },
    )


def refusing(code: int):
    def call(address, nbytes, policy, nodes):
        raise OSError(code, os.strerror(code))

    return call


def test_plain_memory_asks_for_huge_pages_and_says_so():
    arena = Arena(3 * PAGE + 5)
    assert arena.view(0, 1).ctypes.data % PAGE == 0
    assert not arena.view(0, arena.nbytes).any()
    assert arena.notes == ("the weights lie on pages of 2 MB as far as the kernel finds them (madvise)",)


def test_a_kernel_without_huge_pages_is_named(monkeypatch):
    class NoHugePages(mmap.mmap):
        def madvise(self, *args):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", NoHugePages)
    assert "pages of 4 KB: this kernel has no transparent huge pages" in Arena(100).notes[0]


@pytest.fixture
def pool(monkeypatch):
    """Reserved pages that suffice, as far as anyone can tell; returns the flags of each mapping."""
    real, flags = mmap.mmap, []

    def pretend(fileno, length, flags: int, seen=flags):
        seen.append((length, flags))
        return real(fileno, length, flags=flags & ~MAP_HUGETLB_2MB | mmap.MAP_ANONYMOUS)

    monkeypatch.setattr(arenas, "reserved_pool", lambda: 10 * PAGE)
    monkeypatch.setattr(mmap, "mmap", pretend)
    return flags


def test_reserved_pages_are_taken_when_all_of_it_fits(pool):
    arena = Arena(9 * PAGE + 1)
    assert pool == [(10 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB_2MB)]
    assert arena.notes == ("the weights lie on 10 reserved pages of 2 MB (hugetlbfs)",)
    assert from_reserved(9 * PAGE + 1) == 9 * PAGE + 1


def test_reserved_pages_that_do_not_suffice_stay_untouched(pool):
    assert "madvise" in Arena(10 * PAGE + 1).notes[0]
    assert not pool[0][1] & 0x40000
    assert from_reserved(10 * PAGE + 1) == 0


def test_reserved_pages_that_another_program_took_first(pool, monkeypatch):
    pretend = mmap.mmap

    def taken(fileno, length, flags):
        if flags & 0x40000:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return pretend(fileno, length, flags=flags)

    monkeypatch.setattr(mmap, "mmap", taken)
    assert "madvise" in Arena(PAGE).notes[0]


@pytest.mark.skipif(reserved_pool() < 4 * PAGE, reason="this machine has no reserved huge pages")
def test_real_reserved_pages(monkeypatch):
    monkeypatch.setattr(arenas, "reserved_pool", reserved_pool)
    arena = Arena(3 * PAGE + 1)
    assert "hugetlbfs" in arena.notes[0]
    arena.view(0, arena.nbytes)[:] = 7
    assert arena.view(arena.nbytes - 1, 1)[0] == 7
    arena.discard()


@pytest.mark.parametrize(
    ("free", "promised", "limit", "pages"),
    [
        ("10", "4", None, 6),
        ("10", "0", f"{3 * PAGE}", 2),
        ("10", "0", "max", 10),
        ("2", "4", None, 0),
        ("x", "", None, 0),
    ],
)
def test_the_pool_is_what_is_free_promised_to_no_one_and_allowed(tmp_path, free, promised, limit, pages):
    texts = {f"{POOL}/free_hugepages": f"{free}\n", f"{POOL}/resv_hugepages": f"{promised}\n"}
    if limit:
        texts |= {
            "/proc/self/cgroup": "0::/app\n",
            "/proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "/sys/fs/cgroup/app/hugetlb.2MB.max": f"{limit}\n",
            "/sys/fs/cgroup/app/hugetlb.2MB.current": f"{PAGE}\n",
        }
    assert reserved_pool(tree(tmp_path, texts)) == pages * PAGE


def test_no_pool_where_the_kernel_has_none(tmp_path):
    assert reserved_pool(str(tmp_path)) == 0


def test_nodes_are_those_with_memory_that_may_be_used(tmp_path):
    assert numa.memory_nodes(two_nodes(tmp_path / "a")) == [0, 1]
    assert numa.memory_nodes(two_nodes(tmp_path / "b", allowed="1")) == [1]
    assert numa.memory_nodes(str(tmp_path / "nothing")) == []


REGIONS = [Region(0, PAGE, (1,)), Region(PAGE, 3 * PAGE, (3,)), Region(3 * PAGE, 4 * PAGE, (1, 3))]


def test_each_node_gets_its_region_and_all_share_the_last(monkeypatch):
    calls = []
    monkeypatch.setattr(numa, "mbind", lambda *arguments: calls.append(arguments))
    arena = Arena(4 * PAGE)
    arena.bind(REGIONS)
    start = arena.view(0, 1).ctypes.data
    assert calls == [
        (start, PAGE, numa.MPOL_PREFERRED, (1,)),
        (start + PAGE, 2 * PAGE, numa.MPOL_PREFERRED, (3,)),
        (start + 3 * PAGE, PAGE, numa.MPOL_INTERLEAVE, (1, 3)),
    ]
    assert arena.notes[1] == "NUMA: each of nodes 1, 3 has its rows of all experts, other weights are interleaved"


@pytest.mark.parametrize(("code", "name"), [(errno.EPERM, "EPERM"), (errno.ENOSYS, "ENOSYS"), (errno.EINVAL, "EINVAL")])
def test_a_container_that_forbids_mbind_is_named_and_loading_goes_on(monkeypatch, code, name):
    monkeypatch.setattr(numa, "mbind", refusing(code))
    arena = Arena(4 * PAGE)
    arena.bind(REGIONS)
    assert f"mbind was refused ({name}: {os.strerror(code)})" in arena.notes[1]
    assert arena.view(0, 100).size == 100


def test_nothing_is_done_where_there_is_no_choice(monkeypatch):
    monkeypatch.setattr(numa, "mbind", None)
    arena = Arena(100)
    arena.bind([])
    assert len(arena.notes) == 1


def test_the_real_call_places_or_says_why_not():
    arena = Arena(PAGE)
    for policy in (numa.MPOL_PREFERRED, numa.MPOL_INTERLEAVE):
        try:
            numa.mbind(arena.view(0, 1).ctypes.data, PAGE, policy, [0])
        except OSError as error:
            assert error.errno in (errno.EPERM, errno.ENOSYS)
    with pytest.raises(OSError) as caught:
        numa.mbind(arena.view(0, 1).ctypes.data + 1, PAGE, numa.MPOL_INTERLEAVE, [0])
    assert caught.value.errno in (errno.EINVAL, errno.EPERM, errno.ENOSYS)


def test_a_processor_whose_call_number_is_unknown(monkeypatch):
    monkeypatch.setattr(numa.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError) as caught:
        numa.mbind(0, PAGE, numa.MPOL_INTERLEAVE, [0])
    assert caught.value.errno == errno.ENOSYS
