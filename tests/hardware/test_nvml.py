"""NVML's answers and error codes, at its Python interface."""

import sys
import threading

import pynvml
import pytest
from fake_nvml import FakeNvml

from localmoe.hardware import PcieLink, PciGpu, gpu_survey
from localmoe.hardware.gpu_survey import survey_gpus
from localmoe.hardware.nvml import NoGpuError, ask_driver

GPU = {
    "name": "NVIDIA H100 80GB HBM3",
    "architecture": "HOPPER",
    "capability": [9, 0],
    "total_mib": 81559,
    "free_mib": 81000,
    "pci": "00000000:1B:00.0",
    "pcie": [5, 16, 5, 16],
    "nodes": [0],
    "cpus": "0-55",
    "nvlinks": ["switch"] * 18,
}


def gpu(**changes):
    return GPU | changes


def fake(*gpus, **answers):
    return FakeNvml({"driver": "580.95.05", "cuda": 12090, "gpu": list(gpus), **answers})


def test_the_installed_module_is_asked(monkeypatch):
    nvml = fake(gpu())
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = ask_driver()
    assert (found.driver, found.cuda, found.gpus[0].name) == ("580.95.05", "12.9", "NVIDIA H100 80GB HBM3")
    assert not nvml.is_open


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("LIBRARY_NOT_FOUND", "no NVIDIA driver"),
        ("DRIVER_NOT_LOADED", "the NVIDIA driver is not loaded"),
        ("LIB_RM_VERSION_MISMATCH", "the NVIDIA driver was updated while it was loaded; reboot"),
        ("NO_PERMISSION", "no permission to ask the NVIDIA driver"),
        ("UNKNOWN", "the driver fails for a reason that it does not know"),
        ("MEMORY", "the NVIDIA driver says: Insufficient Memory"),
    ],
)
def test_without_a_driver_the_reason_is_told(error, reason):
    with pytest.raises(NoGpuError) as raised:
        ask_driver(FakeNvml({"init": error}))
    assert str(raised.value) == reason


def test_without_the_module_the_reason_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoGpuError, match="nvidia-ml-py is not installed"):
        ask_driver()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("NOT_SUPPORTED", "this GPU or its driver does not tell"),
        ("NO_PERMISSION", "no permission to ask the NVIDIA driver"),
        ("FUNCTION_NOT_FOUND", "this driver is too old to tell"),
        ("TIMEOUT", "the driver did not answer in time"),
    ],
)
@pytest.mark.parametrize(
    ("question", "word", "field"),
    [
        ("nvmlDeviceGetMemoryInfo", "VRAM", "total_bytes"),
        ("nvmlDeviceGetArchitecture", "architecture", "architecture"),
        ("nvmlDeviceGetCudaComputeCapability", "compute capability", "compute_capability"),
        ("nvmlDeviceGetPciInfo", "PCI address", "pci_address"),
        ("nvmlDeviceGetCurrPcieLinkWidth", "PCIe", "pcie_now"),
        ("nvmlDeviceGetMaxPcieLinkGeneration", "PCIe", "pcie_most"),
        ("nvmlDeviceGetMemoryAffinity", "NUMA", "numa_node"),
    ],
)
def test_one_question_without_an_answer_leaves_the_others(error, reason, question, word, field):
    found = ask_driver(fake(gpu(fails={question: error})))
    (seen,) = found.gpus
    assert getattr(seen, field) is None
    assert found.unknown == {f"GPU 0 {word}": reason}
    assert seen.name == GPU["name"]


@pytest.mark.parametrize("question", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_gpu_that_is_gone_is_none(question, error):
    found = ask_driver(fake(gpu(fails={question: error}), gpu(pci="00000000:2B:00.0")))
    assert [seen.index for seen in found.gpus] == [1]
    assert "reboot" in found.unknown["GPU 0"]
    assert found.pairs == ()


def test_when_all_are_gone_that_is_the_reason():
    found = survey_gpus("/nowhere", fake(gpu(fails={"nvmlDeviceGetHandleByIndex": "GPU_IS_LOST"})), (), ())
    assert found.unknown["GPU"] == "none that answers"
    assert found.driver == "580.95.05"


def test_a_driver_without_gpus_has_none():
    assert survey_gpus("/nowhere", fake(), (), ()).unknown["GPU"] == "none found"


def test_names_may_be_bytes():
    assert ask_driver(fake(gpu(name=b"NVIDIA A10"))).gpus[0].name == "NVIDIA A10"


def test_a_gpu_of_two_nodes_has_none():
    assert survey_gpus("/nowhere", fake(gpu(nodes=[0, 1])), (), ()).unknown["GPU 0 NUMA"]


def pair_of(found):
    (pair,) = found.pairs
    return pair


@pytest.mark.parametrize(
    ("status", "peers", "why"),
    [
        (pynvml.NVML_P2P_STATUS_OK, True, None),
        (pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED, False, "the chipset does not support it"),
        (pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED, False, "the GPUs do not support it"),
        (pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY, False, "it is switched off in the driver's settings"),
    ],
)
def test_peer_access_is_told(status, peers, why):
    both = (gpu(), gpu(pci="00000000:2B:00.0"))
    pair = pair_of(ask_driver(fake(*both, pair=[{"gpus": [0, 1], "p2p": status, "path": pynvml.NVML_TOPOLOGY_SINGLE}])))
    assert (pair.peer_to_peer, pair.why_not, pair.path) == (peers, why, "one switch")


def test_peer_access_that_is_unknown_says_why():
    both = (gpu(), gpu(pci="00000000:2B:00.0"))
    for pairs in ([], [{"gpus": [0, 1], "p2p": pynvml.NVML_P2P_STATUS_UNKNOWN, "path": 7}]):
        found = ask_driver(fake(*both, pair=pairs))
        assert (pair_of(found).peer_to_peer, pair_of(found).path) == (None, None)
        assert {"GPUs 0-1 P2P", "GPUs 0-1 path"} <= set(found.unknown)


@pytest.mark.parametrize(
    ("links", "count"),
    [
        (["00000000:2B:00.0"] * 4, 4),
        (["00000000:2B:00.0", "00000000:3B:00.0"], 1),
        (["switch"] * 18, 18),
        ([], 0),
    ],
)
def test_nvlinks_to_the_other_gpu_are_counted(links, count):
    both = (gpu(nvlinks=links, most_nvlinks=18), gpu(pci="00000000:2B:00.0"))
    assert pair_of(ask_driver(fake(*both))).num_nvlinks == count


def test_nvlinks_that_are_unknown_are_not_zero():
    for question in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo"):
        both = (gpu(fails={question: "NO_PERMISSION"}), gpu(pci="00000000:2B:00.0"))
        found = ask_driver(fake(*both))
        assert pair_of(found).num_nvlinks is None
        assert found.unknown["GPUs 0-1 NVLink"] == "no permission to ask the NVIDIA driver"


def test_three_gpus_are_three_pairs():
    three = [gpu(pci=f"00000000:{n}B:00.0") for n in range(3)]
    assert [(p.first, p.second) for p in ask_driver(fake(*three)).pairs] == [(0, 1), (0, 2), (1, 2)]


def test_an_old_module_lacks_questions():
    class Old(FakeNvml):
        def __getattribute__(self, name):
            if name == "nvmlDeviceGetArchitecture":
                raise AttributeError(name)
            return super().__getattribute__(name)

        def __getattr__(self, name):
            if name == "nvmlDeviceGetArchitecture":
                raise AttributeError(name)
            return super().__getattr__(name)

    found = ask_driver(Old({"gpu": [gpu()]}))
    assert found.gpus[0].architecture is None
    assert found.unknown["GPU 0 architecture"] == "this nvidia-ml-py is too old to ask"


def test_a_driver_that_hangs_is_left_alone(monkeypatch):
    release = threading.Event()

    class Hanging(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            release.wait(60)

    monkeypatch.setattr(gpu_survey, "PATIENCE_S", 0.05)
    try:
        found = survey_gpus("/nowhere", Hanging({}), (), ())
    finally:
        release.set()
    assert found.unknown["GPU"] == "the NVIDIA driver hangs: no answer within 0.05 s"


def test_the_bus_knows_the_link_when_the_driver_does_not():
    on_bus = PciGpu("0000:1b:00.0", "10de:2330", None, "nvidia", 3, PcieLink(4, 8), PcieLink(5, 16))
    questions = ("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration")
    found = survey_gpus("/nowhere", fake(gpu(fails=dict.fromkeys(questions, "NOT_SUPPORTED"))), (on_bus,), ())
    assert (found.gpus[0].pcie, found.gpus[0].numa_node) == ("gen 4 x8 of gen 5 x16", 3)
    assert found.unknown == {}
