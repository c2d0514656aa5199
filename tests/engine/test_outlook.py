"""What recorded machines could run, and how fast, before anything is downloaded."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from recorded import NAMES, recorded

from localmoe.engine.cost.rates import Rate
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.outlook import best_model, outlook, outlooks, weight_bytes
from localmoe.errors import UsageError
from localmoe.hardware import Machine
from localmoe.hub.catalog import load_catalog
from localmoe.model.config import read_config
from localmoe.settings import Settings

PAPER, LAPTOP, SERVER = "dual-epyc-9355-2x5090", "laptop-1260p-16gb", "epyc-9354p-nps4"
CATALOG = load_catalog()
FREE_BYTES = 100 * 10**9  # room for the small models; a recorded machine has as much as the one that runs this test


@cache
def machine(name: str) -> Machine:
    with TemporaryDirectory() as folder:
        found = recorded(name, Path(folder)).probe()
    return replace(found, disks=tuple(replace(disk, free_bytes=FREE_BYTES) for disk in found.disks))


def look(name, model, settings=None, rates=None):
    found = machine(name)
    config = read_config(CATALOG[model].config)
    return outlook(found, settings or Settings(), rates or rates_of(found), model, config)


def test_the_papers_machine_meets_both_goals():
    one = look(PAPER, "deepseek-r1")
    assert (one.fits, one.place) == ("yes", "DRAM + 2 GPUs")
    assert one.prefill.num_tokens == 32768
    assert one.is_quick_to_begin and one.is_quick_to_write
    assert one.is_estimate
    assert one.why.startswith("plan: ")
    assert one.missing_bytes is None
    assert one.missing_disk_bytes == one.weight_bytes - FREE_BYTES
    assert look(PAPER, "moonlight-16b-a3b-instruct").missing_disk_bytes == 0


def test_a_plan_can_be_forced():
    one = look(PAPER, "deepseek-r1", Settings(plan="cpu"))
    assert one.place == "DRAM"
    assert not one.is_quick_to_begin


def test_a_forced_plan_that_one_model_cannot_have_does_not_hide_the_others():
    found, guide = machine(PAPER), CATALOG["guide"]
    dense = replace(guide, shape=guide.config | {"first_k_dense_replace": guide.config["num_hidden_layers"]})
    entries = [dense, CATALOG["deepseek-v3"]]
    settings = Settings(plan="slp")
    small, large = outlooks(found, settings, rates_of(found), entries)
    assert (small.fits, large.place) == ("no", "DRAM + 1 GPU")
    assert "no routed experts to stream" in small.why
    with pytest.raises(UsageError, match="no routed experts"):
        outlooks(found, settings, rates_of(found), entries[:1])


def test_a_model_that_fits_comes_from_disk_where_that_is_forced():
    one = look(SERVER, "guide", Settings(plan="disk"))
    assert (one.fits, one.place) == ("streaming", "disk + DRAM")
    assert one.decode.tok_s < look(SERVER, "guide").decode.tok_s


def test_what_does_not_fit_says_by_how_much():
    one = look(SERVER, "deepseek-v3")
    assert (one.fits, one.plan, one.prefill, one.decode, one.place) == ("no", None, None, None, "")
    assert not one.is_quick_to_begin and not one.is_quick_to_write
    assert "deepseek-v3 needs" in one.why
    assert one.missing_bytes == pytest.approx(344e9, rel=0.01)


def test_what_is_too_large_for_memory_comes_from_disk():
    one = look(LAPTOP, "moonlight-16b-a3b-instruct")
    assert (one.fits, one.place) == ("streaming", "disk + DRAM")
    assert one.prefill.num_tokens == 8192  # all that the model takes


def test_measured_rates_leave_no_estimate():
    found = rates_of(machine(SERVER))

    def measured(rate: Rate) -> Rate:
        return Rate(rate.value, "measured", "a test")

    rates = replace(found, cpu=replace(found.cpu, stream=measured(found.cpu.stream), fma=measured(found.cpu.fma)))
    assert not look(SERVER, "moonlight-16b-a3b-instruct", rates=rates).is_estimate


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_has_an_outlook_for_every_model(name):
    found = machine(name)
    all_of_them = outlooks(found, Settings(), rates_of(found), CATALOG.values(), ["guide"])
    assert [one.name for one in all_of_them] == list(CATALOG)
    assert all_of_them[0].fits == "yes"
    for one in all_of_them:
        if one.fits != "yes":
            assert one.name in one.why
        assert one.weight_bytes == pytest.approx(CATALOG[one.name].size_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("name", "best"),
    [
        (PAPER, "kimi-k2-instruct-0905"),
        ("threadripper-9970x-5090", "moonlight-16b-a3b-instruct"),
        ("wsl2-13700k-4090", None),  # 1.5 GB of DRAM are missing: what the GPU computes lies there, too
        (LAPTOP, None),
    ],
)
def test_the_best_model(name, best):
    found = best_model(machine(name), Settings())
    assert (found.name if found else None) == best


def test_of_one_size_the_newest_is_best():
    v3 = {name: entry for name, entry in CATALOG.items() if name.startswith("deepseek-v3")}
    assert best_model(machine(PAPER), Settings(), catalog=v3).name == "deepseek-v3.1-terminus"


def test_a_model_without_experts_on_disk_is_weighed_by_its_config():
    assert weight_bytes(read_config(CATALOG["deepseek-v3"].config)) == 673_148_598_624
