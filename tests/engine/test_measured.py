"""What was measured is kept for this machine, whole or not at all, and nothing odd is ever taken for it."""

import json
from dataclasses import asdict, replace

import pytest
from recorded import recorded

from localmoe.engine import measured as room
from localmoe.engine.measured import Measured, MeasuredGpu, load_measured, machine_key, measured_file, save_measured

MEASURED = Measured(
    when="2026-11-30T01:02:03Z",
    version="0.1.0",
    isa="avx2",
    num_threads=2,
    stream_bytes_s=30e9,
    node_bytes_s=((0, 15e9), (1, 15e9)),
    fp8_flop_s=((1, 50e9), (8, 100e9)),
    disk_bytes_s=1e9,
    disk_folder="/home/me",
    gpus=(MeasuredGpu("RTX", h2d_bytes_s=25e9),),
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return recorded("dual-epyc-9355-2x5090", tmp_path / "tree").probe()


def test_what_was_saved_is_loaded(machine):
    assert load_measured(machine) is None
    path = save_measured(machine, MEASURED)
    assert path == measured_file(machine) and path.name.startswith("measured-")
    assert load_measured(machine) == MEASURED
    newer = replace(MEASURED, when="2026-12-01T00:00:00Z")
    save_measured(machine, newer)
    assert load_measured(machine) == newer
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_json_goes_there_and_back():
    assert Measured.from_json(json.loads(json.dumps(MEASURED.to_json()))) == MEASURED
    empty = Measured("2026-11-30", "0.1.0", "scalar", 1)
    assert Measured.from_json(json.loads(json.dumps(empty.to_json()))) == empty


def test_another_machine_has_another_file(machine):
    fewer = replace(machine, limits=replace(machine.limits, usable_cores=2))
    no_gpu = replace(machine, gpus=machine.gpus[:1])
    assert len({machine_key(m) for m in (machine, fewer, no_gpu)}) == 3
    assert machine_key(machine) == machine_key(replace(machine, disks=()))


def test_free_memory_is_not_what_a_machine_is(machine):
    busy = replace(machine, memory=replace(machine.memory, available_bytes=1 << 30, usable_bytes=1 << 30))
    assert machine_key(machine) == machine_key(busy)


CHANGES = [
    {"isa": None},
    {"isa": 3},
    {"num_threads": "2"},
    {"num_threads": True},
    {"stream_bytes_s": 0},
    {"stream_bytes_s": -1.0},
    {"stream_bytes_s": "fast"},
    {"stream_bytes_s": float("nan")},
    {"fp8_flop_s": [[1]]},
    {"fp8_flop_s": [[1.5, 3.0]]},
    {"fp8_flop_s": None},
    {"gpus": [{"name": "RTX"}]},
    {"gpus": [3]},
    {"surprise": 1},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_odd_values_are_refused(change):
    with pytest.raises(ValueError, match=r"\S"):
        Measured.from_json(asdict(MEASURED) | change)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"format": 0, "measured": {}}', '{"format": 1}', '{"format": 1, "measured": []}', "\0" * 99],
)
def test_a_damaged_or_older_file_counts_as_none(machine, text):
    save_measured(machine, MEASURED)
    measured_file(machine).write_text(text)
    assert load_measured(machine) is None


def test_half_a_file_counts_as_none(machine):
    path = save_measured(machine, MEASURED)
    path.write_bytes(path.read_bytes()[:-200])
    assert load_measured(machine) is None


def test_a_write_that_fails_leaves_the_old_file(machine, monkeypatch):
    path = save_measured(machine, MEASURED)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_measured(machine, replace(MEASURED, when="later"))
    assert load_measured(machine) == MEASURED
    assert len(list(path.parent.iterdir())) == 1
