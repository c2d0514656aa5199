"""A machine is measured whole, within its memory, and what cannot be measured is said."""

import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
from tiny import V3

from localmoe.bench.kernels import make_workers
from localmoe.bench.machine import cores, disk, kernels, measure, measure_and_save, measure_machine, memory, network
from localmoe.bench.machine.network import Network
from localmoe.engine.cost.sizes import activation_bytes, sizes_of
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.measured import Measured, load_measured
from localmoe.errors import UsageError
from localmoe.hardware import Cache, probe
from localmoe.model.config import read_config
from localmoe.settings import Settings

SMALL = {"hidden": 256, "q_lora": 128, "rank": 128, "heads": 2, "nope": 64, "rope": 32, "value": 64, "inter": 128}


class Ears:
    def __init__(self):
        self.heard, self.warned = [], []

    def progress(self, text):
        self.heard.append(text)

    def warn(self, text):
        self.warned.append(text)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Few runs of small networks, and a cache folder of its own."""
    monkeypatch.setattr(kernels, "TIMED_S", 0.0)
    monkeypatch.setattr(kernels, "LEAST_RUNS", 1)
    monkeypatch.setattr(kernels, "Network", partial(Network, **SMALL))
    monkeypatch.setattr(memory, "LEAST_BYTES", 40 << 20)
    monkeypatch.setattr(memory, "MOST_BYTES", 40 << 20)
    monkeypatch.setattr(disk, "WRITTEN_BYTES", 32 << 20)
    monkeypatch.setattr(disk, "MOST_BYTES", 32 << 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def workers(threads=2):
    return make_workers(Settings(threads=threads))


def without_caches(machine):
    """A small one."""
    few = replace(machine.limits, usable_cores=2)
    return replace(machine, cpu=replace(machine.cpu, caches=()), limits=few, gpus=())


def test_everything_is_measured_and_kept(quick, tmp_path):
    machine, ears = without_caches(probe()), Ears()
    folder = tmp_path / "models"
    folder.mkdir()
    found = measure_and_save(machine, Settings(threads=2), ears, folder)
    assert load_measured(machine) == found == Measured.from_json(json.loads(json.dumps(found.to_json())))
    left_out = {name for name in (f.name for f in fields(found)) if getattr(found, name) in (None, ())}
    # one node, no GPU; the rest may drown in a loaded machine's noise
    assert left_out <= {"node_bytes_s", "gpus", "h2d_together_bytes_s", "disk_bytes_s"} | {
        "latent_bytes_s",
        "activation_bytes_s",
    }
    assert found.disk_bytes_s or any("cannot be read directly" in text for text in ears.warned)
    assert [n for n, _ in found.fp8_flop_s] == list(kernels.FP8_TOKENS)
    assert [n for n, _ in found.bf16_flop_s] == list(kernels.BF16_TOKENS)
    assert found.num_threads == 2 and found.disk_folder == str(folder)
    assert list(folder.iterdir()) == []  # what was written to be read is gone
    rates = rates_of(machine, found)
    assert not rates.cpu.stream.is_estimate and not rates.cpu.step.is_estimate
    assert len(ears.heard) > 10


def test_a_cache_folder_that_cannot_be_written_costs_a_warning(monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    nothing = Measured("2026-11-30", "0.1.0", "avx2", 2)
    monkeypatch.setattr(measure, "save_measured", refused)
    monkeypatch.setattr(measure, "measure_machine", lambda *_: nothing)
    ears = Ears()
    assert measure_and_save(probe(), Settings(), ears) is nothing
    assert "is not kept" in ears.warned[0]


def test_kernels_that_this_cpu_lacks_are_refused(tmp_path):
    with pytest.raises(UsageError, match="sse9"):
        measure_machine(probe(), Settings(isa="sse9"), Ears(), tmp_path)


def test_a_machine_without_free_memory_keeps_its_memory(quick, monkeypatch):
    monkeypatch.setattr(cores, "available_memory", lambda: 50 << 20)
    ears = Ears()
    found = cores.measure_cores(without_caches(probe()), workers(), ears)
    assert list(found) == ["fma_flop_s"]
    assert "only 52 MB of memory are free" in ears.warned[0]


def test_matrices_that_the_table_does_not_hold_are_left_out_and_said(quick, monkeypatch):
    monkeypatch.setattr(kernels, "Network", Network)
    ears = Ears()
    found = cores.measure_cores(without_caches(probe()), workers(), ears)
    assert found["fp8_flop_s"] == found["bf16_flop_s"] == ()
    assert found["stream_bytes_s"] > 0 and found["read_fraction"] > 0
    assert [text for text in ears.warned if "hold no layer" in text]


GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "cached", "available", "size", "warned"),
    [
        (2, 32 << 20, 64 * GIB, 256 << 20, 0),
        (2, GIB, 64 * GIB, 2 * GIB, 0),
        (2, 8 * GIB, 64 * GIB, 4 * GIB, 1),
        (2, GIB, 2 * GIB, GIB // 2, 1),
        (2, GIB, 0, 256 << 20, 1),  # nobody knows how much is free
        (2, GIB, 100 << 20, 0, 1),
        (64, 32 << 20, 64 * GIB, memory.LARGE_BYTES >> 12 << 12, 0),
    ],
)
def test_the_table_is_larger_than_the_caches_but_not_than_a_part_of_memory(cores, cached, available, size, warned):
    machine, ears = without_caches(probe()), Ears()
    caches = (Cache(1, "Data", 1 << 15, 64), Cache(3, "Unified", cached // 2, 2))
    limits = replace(machine.limits, usable_cores=cores)
    machine = replace(machine, cpu=replace(machine.cpu, caches=caches), limits=limits)
    assert memory.table_bytes(machine, available, ears) == size
    assert len(ears.warned) == warned


def test_each_node_is_read_by_its_own_cores(monkeypatch):
    monkeypatch.setattr(memory, "cpus_of_cores", lambda: [0, 1])
    monkeypatch.setattr(memory, "nodes_of", lambda cpus: [0, 1])
    monkeypatch.setattr(memory, "PIECE_BYTES", 1 << 20)
    ears = Ears()
    found = memory.node_rates(workers(), 16 << 20, ears)
    assert [node for node, _ in found] == [0, 1] and all(rate > 0 for _, rate in found)
    assert "node 1, read by its 1 cores" in ears.heard[1]
    monkeypatch.setattr(memory, "nodes_of", lambda cpus: [0, 0])
    assert memory.node_rates(workers(), 16 << 20, ears) == ()


@pytest.mark.parametrize("is_bf16", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 3, 20])
def test_a_network_is_recorded_from_a_table(is_bf16, num_tokens):
    table = memory.new_table(24 << 20)
    if is_bf16:
        memory.fill_with_bf16(table)
    net = network.fitting(Network(is_bf16=is_bf16, **SMALL), table)
    assert net.num_layers == min(network.MOST_LAYERS, table.size // net.layer_bytes) >= 2
    run = network.recorded(workers(), table, net, num_tokens)
    assert run() > 0 and run() > 0


def test_no_layer_fits_into_nothing():
    assert network.fitting(Network(), np.zeros(1 << 20, np.uint8)) is None


def test_many_workers_are_fed_by_a_larger_network(monkeypatch):
    table = memory.new_table(24 << 20)
    monkeypatch.setattr(kernels, "LARGE", Network(**SMALL))
    monkeypatch.setattr(kernels, "FEW_WORKERS", 1)
    assert kernels._network(workers(2), table, 1, is_bf16=False).hidden == SMALL["hidden"]
    assert kernels._network(workers(1), table, 1, is_bf16=False) is None  # Moonlight's needs more room
    assert kernels._network(workers(2), table, 48, is_bf16=False).num_layers == 1
    assert network.LARGE.count + network.LARGE.kv_b_count == pytest.approx(
        583e6, rel=0.02
    )  # weights that a token uses of a layer of V3


def test_the_networks_sizes_are_the_cost_models():
    net = Network(**SMALL)
    config = read_config(
        V3
        | {
            "hidden_size": 256,
            "q_lora_rank": 128,
            "kv_lora_rank": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "moe_intermediate_size": 128,
            "n_routed_experts": 16,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
        }
    )
    s = sizes_of(config)
    assert net.activation_bytes == activation_bytes(config)
    assert net.count == s.projections.count + s.shared.count + 6 * s.expert.count
    assert net.kv_b_count == s.kv_b.count


# the disk


def test_the_largest_file_of_weights_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "FIRST_BYTES", 1 << 20)
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "small.safetensors").write_bytes(bytes(1 << 20))
    (tmp_path / "deep/er/large.safetensors").write_bytes(bytes(3 << 20))
    (tmp_path / "larger.bin").write_bytes(bytes(5 << 20))
    (tmp_path / "nowhere.safetensors").symlink_to(tmp_path / "gone")
    ears = Ears()
    rate = disk.disk_bytes_s(tmp_path, ears)
    assert "deep/er/large.safetensors" in ears.heard[0]
    assert (rate or 0) > 0 or ears.warned


def test_a_folder_that_is_not_there_stands_for_the_one_above(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "WRITTEN_BYTES", 32 << 20)
    monkeypatch.setattr(disk, "FIRST_BYTES", 16 << 20)
    ears = Ears()
    disk.disk_bytes_s(tmp_path / "not/yet", ears)
    assert str(tmp_path) in ears.heard[0] and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_filled_further(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "SPARE_BYTES", 1 << 60)
    ears = Ears()
    assert disk.disk_bytes_s(tmp_path, ears) is None
    assert "no room" in ears.warned[0] and list(tmp_path.iterdir()) == []


def test_a_disk_without_direct_reads_is_said(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(disk, "WRITTEN_BYTES", 1 << 24)
    monkeypatch.setattr(disk, "read_rate", refuses)
    ears = Ears()
    assert disk.disk_bytes_s(tmp_path, ears) is None
    assert "cannot be read directly (Invalid argument)" in ears.warned[0]
    assert list(tmp_path.iterdir()) == []
