"""Rates of recorded machines: estimates that say what they are made of, and measurements in their place."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import NAMES, recorded
from tiny import DEEPSEEK_V3

from localmoe.engine.cost import shipped
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.predict import predict
from localmoe.engine.cost.rates import Rate
from localmoe.engine.cpu_sheet import family_of
from localmoe.engine.gpu_sheet import sheet_of
from localmoe.engine.machine_rates import DISK_BYTES_S, rates_of
from localmoe.engine.measured import Measured, MeasuredGpu
from localmoe.hardware import Cpu, Dimm, Dimms, Disk, Gpu, GpuPair, Limits, Machine, Memory, PcieLink
from localmoe.model.config import read_config

V3 = read_config(DEEPSEEK_V3)
NOTHING = Machine(
    cpu=Cpu(None, None, None, None, (), ()),
    nodes=(),
    memory=Memory(None, None, None, None, None, None),
    limits=Limits((), 1, None, None),
    disks=(),
    gpus=(),
    gpu_driver=None,
    container=None,
    hypervisor=None,
    unknown=(),
)
UNKNOWN_GPU = Gpu("", None, None, None, None, None)
MEASURED = Measured(
    when="2026-11-30T01:02:03Z",
    version="0.1.0",
    isa="avx512",
    num_threads=8,
    stream_bytes_s=400e9,
    node_bytes_s=((0, 210e9), (1, 200e9)),
    fma_flop_s=4e12,
    read_fraction=0.9,
    fp8_flop_s=((1, 0.5e12), (48, 3e12)),
    bf16_flop_s=((1, 0.4e12), (48, 2e12)),
    prompt_attention_flop_s=2e12,
    token_attention_flop_s=1e12,
    layer_s=30e-6,
    step_s=100e-6,
    logit_s=5e-9,
    disk_bytes_s=6e9,
    gpus=(MeasuredGpu("NVIDIA GeForce RTX 5090", gemm_flop_s=200e12, h2d_bytes_s=54e9),) * 2,
    h2d_together_bytes_s=90e9,
)


def all_rates(thing):
    """Every Rate inside."""
    if isinstance(thing, Rate):
        yield thing
    elif isinstance(thing, tuple):
        for part in thing:
            yield from all_rates(part)
    elif hasattr(thing, "__dataclass_fields__"):
        for name in thing.__dataclass_fields__:
            yield from all_rates(getattr(thing, name))


def rates(name, tmp_path, measured=None):
    return rates_of(recorded(name, tmp_path).probe(), measured)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_machine_has_estimates_with_sources(name, tmp_path):
    machine = recorded(name, tmp_path).probe()
    found = rates_of(machine)
    every = list(all_rates(found))
    assert len(every) >= 13 and all(rate.is_estimate and rate.source for rate in every)
    assert len(found.gpus) == len(machine.gpus)
    assert found.machine == machine.cpu.model
    for num_gpus in range(min(2, len(found.gpus)) + 1):
        forecasts = predict(found, V3, Placement(num_gpus=num_gpus), prompts=(1024,), contexts=(1024,), streams=(1,))
        assert 0.01 < forecasts.decode[0].tok_s < 1000


@pytest.mark.parametrize("gpus", [(), (UNKNOWN_GPU,), (UNKNOWN_GPU, replace(UNKNOWN_GPU, index=1))])
def test_a_machine_of_which_nothing_is_known_has_rates_too(gpus):
    found = rates_of(replace(NOTHING, gpus=gpus))
    assert all(rate.is_estimate and rate.source for rate in all_rates(found))
    assert found.machine == "this machine"
    assert found.disk.value == DISK_BYTES_S["unknown"]
    assert "unknown" in found.disk.source
    assert (found.h2d_together is None) == (len(gpus) < 2)


ODD_GPU = replace(UNKNOWN_GPU, name="RTX 5090", total_bytes=0, pcie_now=PcieLink(99, 16), pcie_most=PcieLink(99, 16))
ODD_DIMMS = Dimms((Dimm("A1", None, None, None, None, None),) * 2, None, None, None, "EDAC")


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": replace(NOTHING.cpu, num_sockets=0, num_cores=0, targets=("later",))},
        {"cpu": replace(NOTHING.cpu, num_sockets=8, num_cores=1, model="EPYC 9355")},
        {"limits": replace(NOTHING.limits, usable_cores=0, nodes=(7,))},
        {"memory": replace(NOTHING.memory, dimms=ODD_DIMMS)},
        {"memory": replace(NOTHING.memory, dimms=replace(ODD_DIMMS, modules=()))},
        {"gpus": (ODD_GPU, replace(ODD_GPU, pcie_now=PcieLink(4, 0), pcie_most=None))},
        {"gpus": (ODD_GPU,), "gpu_pairs": (GpuPair(0, 5, True, None, None, "one switch"),)},
        {"disks": (Disk("models", "/", None, None, None, "tape"),)},
    ],
    ids=str,
)
def test_odd_answers_of_a_probe_give_rates_too(change):
    assert all(rate.source for rate in all_rates(rates_of(replace(NOTHING, **change))))


def test_the_papers_machine(tmp_path):
    found = rates("dual-epyc-9355-2x5090", tmp_path)
    assert found.cpu.stream.value == pytest.approx(947e9, rel=0.01)
    assert found.cpu.fma.value == pytest.approx(63 * 3.3e9 * 64)
    assert found.gpus[0].h2d.value == pytest.approx(52.5e9, rel=0.02)
    assert "gen 5 x16" in found.gpus[0].h2d.source  # idle GPUs run gen 1
    assert found.h2d_together.value == pytest.approx(2 * found.gpus[0].h2d.value)
    assert found.gpus[0].peer is None
    assert found.gpus[0].vram_bytes == 32607 << 20


def test_lanes_are_those_that_are_trained(tmp_path):
    found = rates("desktop-5950x-3090", tmp_path)
    assert found.gpus[1].h2d.value == pytest.approx(4 * found.gpus[0].h2d.value)  # one sits in a x4 slot
    assert found.gpus[0].peer is not None  # by NVLink
    assert "77% of 2 channels at 3,600 MT/s" in found.cpu.stream.source


def test_few_cores_do_not_read_all_that_the_modules_give(tmp_path):
    assert rates("container-64gb", tmp_path).cpu.stream.source == "11 cores at 15 GB/s each"


def test_memory_of_other_nodes_is_not_counted(tmp_path):
    assert "50%" in rates("dual-xeon-8480-amx", tmp_path).cpu.stream.source


def test_gpus_behind_one_switch_share_its_link():
    link = PcieLink(4, 16)
    gpus = tuple(replace(UNKNOWN_GPU, index=n, pcie_now=link, pcie_most=link) for n in range(3))
    pair = GpuPair(0, 2, None, None, None, "one switch")
    found = rates_of(replace(NOTHING, gpus=gpus, gpu_pairs=(pair,)))
    assert found.h2d_together.value == pytest.approx(2 * found.gpus[0].h2d.value)


def test_what_was_measured_takes_the_place_of_estimates(tmp_path):
    found = rates("dual-epyc-9355-2x5090", tmp_path, MEASURED)
    cpu, gpu = found.cpu, found.gpus[0]
    for rate in (cpu.stream, cpu.fma, cpu.layer, cpu.step, cpu.logit, found.disk, gpu.gemm, gpu.h2d, *cpu.nodes):
        assert rate.origin == "measured" and "2026-11-30" in rate.source
    assert cpu.read.value == pytest.approx(0.9 * 400e9)  # the slower node decides
    assert [(tokens, rate.value * cpu.fma.value) for tokens, rate in cpu.kernels.matmul] == [(1, 0.5e12), (48, 3e12)]
    assert cpu.kernels.bf16_matmul[1][1].value == pytest.approx(0.5)
    assert cpu.kernels.token_attention.value == pytest.approx(0.25)
    assert gpu.memory.is_estimate and gpu.attention.is_estimate  # not measured
    assert found.h2d_together.value == 90e9


def test_a_measurement_with_nothing_in_it_changes_nothing(tmp_path):
    machine = recorded("dual-epyc-9355-2x5090", tmp_path).probe()
    assert rates_of(machine, Measured("2026-11-30", "0.1.0", "avx2", 2)) == rates_of(machine)


def test_other_gpus_measurements_are_not_taken(tmp_path):
    other = replace(MEASURED, gpus=(MeasuredGpu("NVIDIA A100", gemm_flop_s=1e12),))
    assert rates("dual-epyc-9355-2x5090", tmp_path, other).gpus[0].gemm.is_estimate


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD EPYC 9355 32-Core Processor", "EPYC 9005"),
        ("AMD EPYC 9354P 32-Core Processor", "EPYC 9004"),
        ("AMD EPYC 7302 16-Core Processor", "EPYC 7002 or 7003"),
        ("AMD Ryzen Threadripper PRO 9985WX 64-Cores", "Threadripper PRO 9000"),
        ("AMD Ryzen Threadripper 9970X 32-Cores", "Threadripper 9000"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "Ryzen"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "Ryzen 7000 or 8000"),
        ("AMD Ryzen 9 9950X 16-Core Processor", "Ryzen 9000"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Xeon Scalable, 4th generation"),
        ("Intel(R) Xeon(R) Gold 6548Y+", "Xeon Scalable, 5th generation"),
        ("12th Gen Intel(R) Core(TM) i7-1260P", "Core mobile"),
        ("13th Gen Intel(R) Core(TM) i7-13700K", "Core, 12th generation or later"),
        ("Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "Core"),
    ],
)
def test_cpu_families_by_name(model, name):
    family, is_named = family_of(model, 8, ())
    assert (family.name, is_named) == (name, True)


@pytest.mark.parametrize(
    ("cores", "flags", "channels"), [(8, (), 2), (48, (), 8), (4, ("amx_tile",), 8)], ids=["few", "many", "amx"]
)
def test_a_cpu_of_unknown_name_is_judged_by_its_cores(cores, flags, channels):
    for model in (None, "Intel(R) Xeon(R) Processor", "AMD EPYC"):
        family, is_named = family_of(model, cores, flags)
        assert (family.channels, is_named) == (channels, False)


@pytest.mark.parametrize(
    ("name", "capability", "sheet"),
    [
        ("NVIDIA GeForce RTX 5090", "12.0", "RTX 5090"),
        ("NVIDIA GeForce RTX 3090 Ti", "8.6", "RTX 3090 Ti"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", "RTX PRO 6000"),
        ("NVIDIA H100 80GB HBM3", "9.0", "H100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", "A100 80 GB"),
        ("NVIDIA GeForce RTX 5070", "12.0", "RTX 5060 Ti"),
        ("NVIDIA GeForce RTX 4070", "8.9", "RTX 4060 Ti"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "12.0", "RTX 5060 Ti"),
        ("NVIDIA RTX A1000", "8.6", "RTX 3060"),
        ("NVIDIA of tomorrow", "13.0", "RTX 5060 Ti"),
        ("Quadro P400", "6.1", "RTX 2060"),
        ("", "odd", "RTX 2060"),
    ],
)
def test_gpus_by_name_or_capability(name, capability, sheet):
    found, source = sheet_of(name, capability)
    assert found.name == sheet and sheet in source
    assert (found.fp8_flop_s is None) == (found.gemm_flop_s == found.bf16_flop_s)


def test_shipped_rows_are_those_of_the_evidence():
    file = Path(__file__).resolve().parents[2] / "assets/bench/epyc-zen3.csv"
    with file.open(newline="", encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if row["suite"] == "kernels"]
    mine = {row["case"]: (float(row["value"]), float(row["reference"])) for row in rows if row["case"] in shipped.ROWS}
    assert mine == shipped.ROWS
    assert {row["commit"] for row in rows if row["case"] in shipped.ROWS} == {shipped.COMMIT}
