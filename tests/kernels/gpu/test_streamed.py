"""Prompts streamed to GPUs and steps beside one, by the GPU dialect on CUDA devices: in the interpreter, and for real.

In the interpreter the devices' driver is a stand-in of threads, and whoever launches waits for what is before it.
"""

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "devices"))
from arrays import NEAR
from networks import FORMS, NUM_PAGES, Reference, network, parity
from stand_in import ThreadRuntime
from test_program import EXACT, OTHER_FORM, chip_for

from localmoe import _native as native
from localmoe.decode.beside import Beside
from localmoe.devices.cuda import CudaDevice, connect
from localmoe.kernels.ops import Segment
from localmoe.model.gpu_programs import GpuPrograms
from localmoe.model.programs import HostPrograms
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_source import MemoryExperts

POOL = native.Pool([-1])
NUM_TOKENS = 20
SLOW = pytest.mark.slow
FORMS_AND_GPUS = [
    pytest.param("fp8", 1, marks=SLOW),
    pytest.param("decoded", 1, marks=SLOW),
    pytest.param("bf16", 1, marks=SLOW),
]


@contextmanager
def gpus(device, count):
    """As many as there are, at most `count`."""
    if device.type == "cuda":
        from localmoe.devices.cuda_torch import TorchRuntime

        count = min(count, torch.cuda.device_count())
        runtimes = [TorchRuntime(n) for n in range(count)]
    else:
        runtimes = [ThreadRuntime(late=False) for _ in range(count)]
    with ExitStack() as stack:
        devices = [CudaDevice(runtime, f"GPU {n}") for n, runtime in enumerate(runtimes)]
        connect(devices)
        for one in devices:
            stack.callback(one.close)
        yield devices


def programs_on(devices, case, cache, chip):
    return [GpuPrograms(case.model, cache, one.torch_name, chip) for one in devices]


@pytest.mark.parametrize(("form", "count"), FORMS_AND_GPUS)
def test_streamed_prompts_are_near_the_reference(tmp_path_factory, form, count, device):
    case, chip = network(tmp_path_factory, form, **FORMS[form][1]), chip_for(form, device)
    ids, cache = case.ids[:NUM_TOKENS], case.cache("bf16", NUM_PAGES)
    exact, chosen = Reference(case, is_exact=True)(ids)
    truth, _ = Reference(case, is_quantised=form == "fp8")(ids, chosen)
    source = MemoryExperts([layer.moe.experts for layer in case.model.layers if layer.moe])
    with gpus(device, count) as devices:
        programs = programs_on(devices, case, cache, chip)
        pipeline = Pipeline(case.config, cache, source, devices, programs, NUM_TOKENS, Shape(3, 2))
        table = parity.reserved(cache.new_table(), NUM_TOKENS)
        try:
            for _ in range(2):  # the second time from slots that were used before
                ours = pipeline.forward(ids, [Segment(table, 0, NUM_TOKENS)], all_logits=True, forced_experts=chosen)
                parity.assert_near(ours, truth, NEAR if count == 1 else OTHER_FORM)
                if form != "fp8":
                    parity.assert_near(ours, exact, EXACT)
            assert sum(pipeline.loaded_bytes) == sum(e.parts[0].blob.nbytes for e in source._layers)
            loads = [s for s in pipeline.spans if s.stage == "load"]
            assert len(loads) == sum(len(lane.groups) for lane in pipeline._lanes)
        finally:
            pipeline.close()


def test_steps_beside_a_gpu_continue_a_streamed_prompt(tmp_path_factory, device):
    """Its latents are where the steps look for them; experts are computed by the CPU from there on."""
    case, chip = network(tmp_path_factory, "bf16", **FORMS["bf16"][1]), chip_for("bf16", device)
    cache = case.cache("bf16", NUM_PAGES)
    end = NUM_TOKENS + 4
    truth, chosen = Reference(case)(case.ids[:end])
    source = MemoryExperts([layer.moe.experts for layer in case.model.layers if layer.moe])
    host = HostPrograms(case.model, cache, POOL)
    with gpus(device, 1) as devices, ExitStack() as stack:
        programs = programs_on(devices, case, cache, chip)
        pipeline = Pipeline(case.config, cache, source, devices, programs, NUM_TOKENS, Shape(3, 2))
        stack.callback(pipeline.close)
        beside = Beside(case.config, devices[0], programs[0], host, 4)
        stack.callback(beside.close)
        table = parity.reserved(cache.new_table(), end)
        forced = np.ascontiguousarray(chosen[:, :NUM_TOKENS])
        pipeline.forward(case.ids[:NUM_TOKENS], [Segment(table, 0, NUM_TOKENS)], forced_experts=forced)
        for at, count in ((NUM_TOKENS, 3), (end - 1, 1)):
            forced = np.ascontiguousarray(chosen[:, at : at + count])
            ours = beside.forward(case.ids[at : at + count], [Segment(table, at, count)], forced_experts=forced)
            parity.assert_near(ours, truth[at + count - 1 : at + count], OTHER_FORM)


def test_one_of_two_gpus_reads_alone_through_the_slots_of_both(tmp_path_factory, device):
    """Its latents come to the first one, whose steps go on from there; both then read on."""
    case, chip = network(tmp_path_factory, "bf16", **FORMS["bf16"][1]), chip_for("bf16", device)
    cache, cuts = case.cache("bf16", NUM_PAGES), (8, 1, 8, 1)
    truth, chosen = Reference(case)(case.ids[: sum(cuts)])
    source = MemoryExperts([layer.moe.experts for layer in case.model.layers if layer.moe])
    host = HostPrograms(case.model, cache, POOL)
    with gpus(device, 2) as devices, ExitStack() as stack:
        if len(devices) < 2:
            pytest.skip("there is one GPU")
        programs = programs_on(devices, case, cache, chip)
        home = {"home": programs[0].latents}
        both = Pipeline(case.config, cache, source, devices, programs, 8, Shape(3, 2), **home)
        stack.callback(both.close)
        lent = both.ring_memory[-1]
        alone = Pipeline(case.config, cache, source, devices[1:], programs[1:], 8, Shape(3, 2), **home, lent=lent)
        stack.callback(alone.close)
        beside = Beside(case.config, devices[0], programs[0], host, 4)
        stack.callback(beside.close)
        table, start = parity.reserved(cache.new_table(), sum(cuts)), 0
        for count, program in zip(cuts, (alone, beside, both, beside), strict=True):
            ids, end = case.ids[start : start + count], start + count
            forced = np.ascontiguousarray(chosen[:, start:end])
            ours = program.forward(ids, [Segment(table, start, count)], forced_experts=forced)
            parity.assert_near(ours, truth[end - 1 : end], OTHER_FORM)
            start = end
        assert {span.device for span in alone.spans} == {"GPU 1"}
