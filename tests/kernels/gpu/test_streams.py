"""The pipeline with the GPU dialect on one GPU and on two, whose driver is a stand-in where there are none."""

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import FORMS, NUM_PAGES, Reference, network, parity

from localmoe.devices.cuda import CudaDevice, connect, open_devices
from localmoe.kernels.gpu.chips import CHIPS, chip_of
from localmoe.kernels.ops import Segment
from localmoe.model.gpu_programs import GpuPrograms
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_source import MemoryExperts

sys.path.append(str(Path(__file__).parents[2] / "devices"))
from stand_in import ThreadRuntime

NEAR = 1.5e-2  # relative: sums over devices and absorbed tokens round elsewhere


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return network(tmp_path_factory, "streamed", nodes=(0, 1), **FORMS["bf16"][1])


@contextmanager
def gpus(count, device):
    """Stand-ins where there is none; what is launched computes on the CPU."""
    if device.type == "cuda":
        if torch.cuda.device_count() < count:
            pytest.skip(f"no {count} GPUs")
        devices = open_devices(range(count), [f"GPU {n}" for n in range(count)])
    else:
        devices = [CudaDevice(ThreadRuntime(late=False), f"GPU {n}") for n in range(count)]
        connect(devices)
    yield devices
    for one in devices:
        one.close()


@contextmanager
def opened(case, cache, count, device, *, max_tokens, home=None):
    with gpus(count, device) as devices, ExitStack() as stack:
        name = "cpu" if device.type == "cpu" else "cuda:{}"
        chip = CHIPS[86] if device.type == "cpu" else chip_of(device)
        programs = [GpuPrograms(case.model, cache, name.format(n), chip) for n in range(count)]
        source = MemoryExperts([layer.moe.experts for layer in case.model.layers if layer.moe])
        shape = Shape(group_experts=3, num_slots=2)
        pipeline = Pipeline(case.config, cache, source, devices, programs, max_tokens, shape, home=home)
        stack.callback(pipeline.close)
        yield pipeline


@pytest.mark.parametrize("count", [1, 2])
def test_a_prompt_in_chunks_is_near_the_reference(case, count, device):
    truth, chosen = Reference(case)(case.ids[:38])
    cache = case.cache("bf16", NUM_PAGES)
    with opened(case, cache, count, device, max_tokens=34, home=cache) as pipeline:
        table, found = cache.new_table(), []
        for start, size in ((0, 34), (34, 4)):
            segment = Segment(parity.reserved(table, start + size), start, size)
            forced = np.ascontiguousarray(chosen[:, start : start + size])
            found.append(pipeline.forward(case.ids[start : start + size], [segment], forced_experts=forced))
            sent = pipeline.exchanged
        assert (pipeline.last_experts[0, -1] == chosen[0, -1]).all()
        spans = pipeline.spans
        latents = [torch.from_numpy(cache.rows(n)) for n in range(case.config.num_layers)]
        there = [pipeline._lanes[-1].latents.rows(n).cpu() for n in range(case.config.num_layers)]
    parity.assert_near(np.concatenate(found), truth[[33, 37]], NEAR)
    assert {s.stage for s in spans} >= {"load", "attention", "experts", "unload"}
    at = int(table.pages[0]) * 64
    for home, gpu in zip(latents, there, strict=True):
        assert torch.equal(home[at : at + 38], gpu[at : at + 38]), "latents at home are those on the GPUs"
        assert home[at : at + 38].any(dim=1).all()
    if count == 2:
        row_bytes = 2 * case.config.latent_width * case.config.num_layers
        assert sent.sent_latents == 4 * row_bytes
        assert sent.gathered == 2 * case.config.hidden and sent.reduced == 4 * case.config.hidden


def test_a_prefix_is_brought_from_home(case, device):
    """Latents that another dialect has written, BF16 as on the GPU."""
    truth, chosen = Reference(case)(case.ids[:24])
    cache = case.cache("bf16", NUM_PAGES)
    table = parity.reserved(cache.new_table(), 20)
    reference = Reference(case).over(cache)
    reference.forward(case.ids[:20], [Segment(table, 0, 20)], forced_experts=np.ascontiguousarray(chosen[:, :20]))
    with opened(case, cache, 1, device, max_tokens=4, home=cache) as pipeline:
        segment = Segment(parity.reserved(table, 24), 20, 4)
        forced = np.ascontiguousarray(chosen[:, 20:])
        found = pipeline.forward(case.ids[20:24], [segment], forced_experts=forced)
    parity.assert_near(found, truth[-1:], NEAR)
