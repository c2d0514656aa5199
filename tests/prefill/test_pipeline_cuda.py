"""The pipeline on CUDA devices, their driver a stand-in: the same logits, and each group one copy for each part."""

import sys
from contextlib import contextmanager
from pathlib import Path

import parity_of_streams as streams
import pytest

sys.path.append(str(Path(__file__).parents[1] / "devices"))
from stand_in import ThreadRuntime

from localmoe.devices.cuda import CudaDevice, connect
from localmoe.errors import DeviceLostError
from localmoe.prefill.pipeline import Shape

parity = streams.parity


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    return parity.case_of("v3", tmp_path_factory)


@contextmanager
def cuda_devices(count):
    """What is launched computes on the CPU, so whoever launches waits for what is before it."""
    devices = [CudaDevice(ThreadRuntime(late=False), f"GPU {n}") for n in range(count)]
    connect(devices)
    yield devices
    for device in devices:
        device.close()


@pytest.mark.parametrize("num_devices", [1, 2])
def test_logits_are_those_of_the_resident_path(v3, num_devices):
    with cuda_devices(num_devices) as devices, streams.opened(v3, devices=devices) as pipeline:
        found = streams.logits(v3, pipeline, [60, 40])
        assert pipeline.free_slots == tuple(lane.ring.num_slots for lane in pipeline._lanes)
        spans = pipeline.spans
    parity.assert_near(found, streams.resident(v3, [100]), streams.SAME)
    loads = [s for s in spans if s.stage == "load"]
    assert len({(s.device, s.group) for s in loads}) == 8 * v3.config.num_moe_layers
    assert all(s.start_s <= s.end_s and s.num_bytes for s in loads)


def test_a_group_is_one_copy_for_each_part_from_where_it_lies(v3):
    case = parity.open_case(v3.folder, nodes=range(3))
    blobs = [part.blob for layer in case.model.layers if layer.moe for part in layer.moe.experts.parts]
    with cuda_devices(1) as (device,), streams.opened(case, devices=[device], shape=Shape(4, 3)) as pipeline:
        for blob in blobs:
            device.register(blob, pinned=True, portable=True)
        streams.logits(case, pipeline, [100])
        assert pipeline.loaded_bytes == (sum(blob.nbytes for blob in blobs),)
        # The tiny store's parts are smaller than the pages that are locked, so only their bytes are checked.
        groups = [4 * blob.shape[1] for blob in blobs]
        assert [size for size, _ in device.runtime.copies] == [
            size for n in range(0, len(groups), 3) for _ in range(4) for size in groups[n : n + 3]
        ]
        assert all(is_locked for _, is_locked in device.runtime.copies)
        assert device.bandwidth is None or device.bandwidth > 0


def test_a_lost_gpu_ends_the_run_with_its_sentence(v3):
    with cuda_devices(2) as devices, streams.opened(v3, devices=devices) as pipeline:
        devices[1].runtime.fail("CUDA error: unspecified launch failure")
        with pytest.raises(DeviceLostError, match=r"device GPU 1 .* was lost: CUDA error: unspecified launch failure"):
            streams.logits(v3, pipeline, [100])
        assert devices[0].failure is None
