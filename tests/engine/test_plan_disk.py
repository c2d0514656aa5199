"""The plan for models larger than DRAM."""

from dataclasses import replace

import pytest
from planned import FULL, GB, MOONLIGHT, RATES, gpus, machine, measured, planned, told
from test_plan_gpus import on_recorded

from localmoe.engine.cost.predict import forecast_decode
from localmoe.engine.cost.sizes import sizes_of
from localmoe.engine.plan import forecast
from localmoe.errors import OutOfMemoryError
from localmoe.hardware import Disk
from localmoe.settings import Settings
from localmoe.weights.expert_files import room_bytes

EXPERT = sizes_of(FULL).expert.num_bytes
LARGE = machine(300 * GB)


def test_what_does_not_fit_comes_from_disk_at_an_honest_speed():
    found = planned(LARGE)
    assert found.kind == "disk" and found.placement.num_gpus == 0
    assert found.needed("DRAM") <= 300 * GB < found.needed("DRAM") + EXPERT
    share = found.placement.resident_share
    assert 0.3 < share < 0.5 and found.memory["routed experts"] == pytest.approx(share * 654.07 * GB, rel=1e-3)
    assert "needs 682." in told(found, "plan") and "300.0 GB are available" in told(found, "plan")
    speed = forecast_decode(RATES, FULL, found.placement, found.context_limit).tok_s
    assert f"come from disk at 5.0 GB/s: about {speed:.2g} tok/s" in told(found, "routed experts")
    assert [p.way for p in forecast(found, RATES, FULL, prompts=(1024,)).prefill] == ["stream"]


def test_a_rate_that_nobody_measured_is_told_as_an_estimate():
    guessed = replace(RATES, disk=replace(measured(3e9), origin="estimated"))
    assert "at about 3.0 GB/s" in told(planned(LARGE, rates=guessed), "routed experts")


def test_a_token_passes_through_the_ring():
    found = planned(LARGE)
    assert found.ring.slots == 16 and found.ring.group_experts == 8  # top-8, and the next layer's
    assert found.memory["ring"] == 24 * room_bytes(
        EXPERT
    )  # 16 for the program that reads prompts, 8 for the one of steps


def test_the_context_is_short_unless_asked_for():
    assert planned(LARGE).context_limit == 1024
    asked = planned(LARGE, settings=Settings(context=32_768))
    assert asked.context_limit == 32_768
    assert asked.placement.resident_share < planned(LARGE).placement.resident_share


def test_more_memory_keeps_more_experts():
    shares = [planned(machine(n * GB)).placement.resident_share for n in (50, 100, 300, 600)]
    assert shares == sorted(shares) and shares[0] > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"disk": 100 * GB}, "/models has 100.0 GB free, 573.1 GB too little"),
        ({"disk": None}, "how much room the disk has is unknown"),
        ({"disks": (Disk("models", "/dev/shm", GB, 900 * GB, "tmpfs", "memory"),)}, "/dev/shm is in memory itself"),
        ({"disks": ()}, "how much room the disk has is unknown"),
    ],
)
def test_a_disk_that_cannot_feed_it_is_told(changes, why):
    with pytest.raises(OutOfMemoryError) as caught:
        planned(machine(300 * GB, **changes))
    assert "needs 682." in caught.value.message and f"experts cannot come from disk: {why}" in caught.value.hint
    with pytest.raises(OutOfMemoryError, match="cannot come from disk"):
        planned(machine(300 * GB, **changes), settings=Settings(plan="disk"))


def test_a_model_that_is_here_needs_no_room():
    assert planned(machine(300 * GB, disk=GB), on_disk=True).kind == "disk"
    assert planned(machine(300 * GB, disks=()), on_disk=True).kind == "disk"


def test_an_unknown_rate_is_not_guessed():
    with pytest.raises(OutOfMemoryError) as caught:
        planned(LARGE, rates=replace(RATES, disk=None))
    assert "how fast the disk is read is unknown" in caught.value.hint


def test_forced_where_all_fits_no_expert_stays():
    found = planned(machine(), settings=Settings(plan="disk", origins={"plan": "flag"}))
    assert found.kind == "disk" and found.placement.resident_share == 0 and found.memory["routed experts"] == 0
    text = told(found, "routed experts")
    assert text.startswith("routed experts: none in DRAM; all of it would fit into memory: asked for by --plan; 654.")
    assert "come from disk at 5.0 GB/s: about" in text
    assert found.context_limit == planned(machine(), settings=Settings(plan="cpu")).context_limit
    assert "slowly" not in told(found, "context")
    assert planned(machine()).kind == "cpu"
    with pytest.raises(OutOfMemoryError, match="how much memory is available is unknown"):
        planned(machine(None), settings=Settings(plan="disk"))


def test_forced_it_needs_no_rate():
    for dram in (300 * GB, 1000 * GB):
        found = planned(machine(dram), rates=replace(RATES, disk=None), settings=Settings(plan="disk"))
        assert found.kind == "disk" and "come from disk at a rate that is unknown" in told(found, "routed experts")


def test_forced_onto_the_cpu_it_is_refused_with_the_disk_and_its_speed():
    with pytest.raises(OutOfMemoryError) as caught:
        planned(LARGE, settings=Settings(plan="cpu"))
    assert "--plan disk reads experts from disk, about 0." in caught.value.hint


def test_a_gpu_that_the_plan_leaves_out_is_told():
    found = planned(machine(300 * GB, gpus=gpus(32 * GB)))
    assert found.kind == "disk" and told(found, "GPUs").startswith("GPUs: not used")


def test_what_every_token_needs_must_fit():
    with pytest.raises(OutOfMemoryError) as caught:
        planned(machine(11 * GB))
    assert "even with its experts on disk it needs 22." in caught.value.hint
    with pytest.raises(OutOfMemoryError, match=r"needs 22.* other weights 17\.2"):
        planned(machine(11 * GB), settings=Settings(plan="disk"))


def test_a_laptop_reads_a_small_model_from_disk_and_refuses_a_large_one(tmp_path):
    found = on_recorded("laptop-1260p-16gb", tmp_path, MOONLIGHT)
    assert found.kind == "disk" and 0.1 < found.placement.resident_share < 0.4
    with pytest.raises(OutOfMemoryError, match=r"11\.2 GB are available") as caught:
        on_recorded("laptop-1260p-16gb", tmp_path / "again")
    assert "GB more memory would do" in caught.value.hint and "choose a smaller model" in caught.value.hint
    with pytest.raises(OutOfMemoryError, match="moonlight needs") as caught:
        on_recorded("laptop-1260p-16gb", tmp_path / "full", MOONLIGHT, free_disk=GB, name="moonlight")
    assert "too little" in caught.value.hint
