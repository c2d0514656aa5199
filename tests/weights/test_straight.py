"""One native call from a file to many places: the same bytes as by any other way; False wherever something is odd."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from localmoe import _native as native
from localmoe.weights.arena import bounce_buffer

BLOCK = 4096
SIZES = {"fp8": 1, "bf16": 2, "f32": 4, "scale": 4}
KINDS = list(SIZES)
BAD = {"fp8": b"\x7f", "bf16": b"\x80\x7f", "f32": b"\0\0\x80\x7f", "scale": b"\0\0\x80\xbf"}


@pytest.fixture
def file(tmp_path):
    """`fd` of a file of positive numbers, read directly, and its bytes."""
    data = np.random.default_rng(1).integers(1, 0x40, 300_000).astype(np.uint8)
    (tmp_path / "data").write_bytes(data.tobytes())
    fd = os.open(tmp_path / "data", os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    yield SimpleNamespace(fd=fd, data=data, path=tmp_path / "data")
    os.close(fd)


def read(file, parts, room, stop, blocks=1, gate=None):
    rows = np.asarray(parts, np.int64).reshape(-1, 4)
    return native.read_values(file.fd, 0, stop, rows, room, bounce_buffer(blocks * BLOCK), gate or native.Gate())


def random_parts(seed: int, stop: int):
    """Parts of all kinds that begin anywhere, some right behind each other, in places of any order."""
    random = np.random.default_rng(seed)
    parts, at, places = [], 0, []
    while True:
        kind = int(random.integers(4))
        start = at + int(random.integers(0, 300)) * int(random.integers(2))
        size = int(random.choice([0, 1, 3, 700, 5000, 9000])) * SIZES[KINDS[kind]]
        if start + size > stop:
            break
        parts.append((start, start + size, kind))
        at = start + size
    offsets, order = {}, random.permutation(len(parts))
    where = 0
    for n in order:
        offsets[int(n)], where = where, where + parts[n][1] - parts[n][0]
    places = [(start, end, offsets[n], kind) for n, (start, end, kind) in enumerate(parts)]
    return places, where


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_all_bytes_come_into_their_places(file, seed, blocks):
    stop = 200_000 + seed * 777
    parts, size = random_parts(seed, stop)
    room = np.zeros(size, np.uint8)
    assert read(file, parts, room, stop, blocks)
    for start, end, place, _ in parts:
        assert (room[place : place + end - start] == file.data[start:end]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 5, BLOCK // 4 - 1, 5000])
def test_a_bad_value_is_found_wherever_it_lies(tmp_path, file, kind, at):
    size = SIZES[kind]
    first = 3  # values lie across the ends of reads
    data = file.data.copy()
    bad = first + size * at
    data[bad : bad + size] = np.frombuffer(BAD[kind], np.uint8)
    file.path.write_bytes(data.tobytes())
    stop = first + 40_000
    room = np.zeros(40_000, np.uint8)
    assert not read(file, [(first, stop, 0, KINDS.index(kind))], room, stop)
    assert read(file, [(first, bad, 0, KINDS.index(kind))], room, bad)


def test_a_file_that_ends_early_is_odd(file):
    room = np.zeros(400_000, np.uint8)
    assert not read(file, [(0, 300_001, 0, 0)], room, 300_001)
    assert read(file, [(0, 300_000, 0, 0)], room, 300_000)


def test_so_is_one_that_cannot_be_read(file):
    gone = SimpleNamespace(fd=-1)
    assert not read(gone, [(0, 100, 0, 0)], np.zeros(100, np.uint8), 100)


def test_nothing_is_touched_once_the_gate_is_shut(file):
    gate, room = native.Gate(), np.zeros(100, np.uint8)
    assert gate.enter()
    shut = threading.Thread(target=gate.shut)
    shut.start()
    shut.join(0.05)
    assert shut.is_alive(), "someone is inside"
    gate.leave()
    shut.join()
    assert not gate.enter()
    assert not read(file, [(0, 100, 0, 0)], room, 100, gate=gate)
    assert not room.any()


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 100, 1, 0)],  # behind the room's end
        [(0, 100, -1, 0)],
        [(0, 101, 0, 0)],  # of the file beyond what is read
        [(10, 5, 0, 0)],
        [(10, 20, 0, 0), (15, 30, 20, 0)],  # one over another
        [(0, 10, 0, 4)],  # no such kind
        [(0, 10, 0, -1)],
    ],
)
def test_parts_that_do_not_fit_are_refused(file, parts):
    with pytest.raises(ValueError, match="parts do not fit"):
        read(file, parts, np.zeros(100, np.uint8), 100)
