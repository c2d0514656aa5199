"""A GPU's programs beside the CPU: rows cross as BF16, the CPU chooses, and the GPU computes what it is told."""

import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from networks import NUM_PAGES, Reference, network, parity

sys.path.append(str(Path(__file__).parents[2] / "devices"))
from stand_in import ThreadRuntime

from localmoe import _native as native
from localmoe.decode.beside import Beside
from localmoe.decode.hot import HotExperts
from localmoe.devices.cuda import CudaDevice
from localmoe.devices.turns import Askers
from localmoe.kernels.gpu.chips import CHIPS, chip_of
from localmoe.kernels.gpu.graphs import Graphs
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.ops import Segment
from localmoe.model.gpu_programs import GpuPrograms
from localmoe.model.programs import HostPrograms
from localmoe.prefill.mixed import Mixed

POOL = native.Pool([-1, -1])
NUM_TOKENS = 6
EXACT = 2e-2  # relative, of logits: what BF16 activations cost in all


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return network(tmp_path_factory, "beside", num_hidden_layers=3, quantization_config=None)


@contextmanager
def opened(case, device, askers=lambda gpu: None):
    """A device, its programs, and the CPU's."""
    if device.type == "cuda":
        from localmoe.devices.cuda_torch import TorchRuntime

        gpu, chip = CudaDevice(TorchRuntime(0), "cuda:0"), chip_of(device)
    else:  # what is launched computes on the CPU, so whoever launches waits for what is before it
        gpu, chip = CudaDevice(ThreadRuntime(), "GPU 0"), CHIPS[86]
    cache = case.cache("bf16", NUM_PAGES)
    try:
        own = GpuPrograms(case.model, cache, str(device), chip, askers(gpu))
        yield gpu, own, HostPrograms(case.model, cache, POOL), cache
    finally:
        gpu.close()


def layers_of(case):
    return [layer.moe.experts for layer in case.model.layers if layer.moe]


@pytest.mark.parametrize("hot", [None, [[0, 3, 6], [1]], [[], list(range(8))]])
def test_a_step_beside_the_cpu_is_near_the_reference(case, device, hot):
    ids = case.ids[:NUM_TOKENS]
    truth, chosen = Reference(case, is_exact=True)(ids)
    with opened(case, device) as (gpu, programs, host, cache):
        experts = None if hot is None else HotExperts(gpu, layers_of(case), hot)
        program = Beside(case.config, gpu, programs, host, NUM_TOKENS, hot=experts)
        table = parity.reserved(cache.new_table(), NUM_TOKENS)
        found = [
            program.forward(ids[:4], [Segment(table, 0, 4)], all_logits=True, forced_experts=chosen[:, :4].copy()),
            program.forward(ids[4:], [Segment(table, 4, 2)], all_logits=True, forced_experts=chosen[:, 4:].copy()),
        ]
        program.close()
    parity.assert_near(np.concatenate(found), truth, EXACT)


def test_hot_experts_are_urgent_products_where_prompts_take_those(case, device, monkeypatch):
    ids, made, kernels, run = case.ids[:NUM_TOKENS], [], [], Launch.run
    truth, chosen = Reference(case, is_exact=True)(ids)
    monkeypatch.setattr(Launch, "run", lambda self: (kernels.append(self.kernel.__name__), run(self)))

    def askers(gpu):
        made.append(Askers.on(gpu))
        return made[0]

    with opened(case, device, askers) as (gpu, programs, host, cache):
        experts = HotExperts(gpu, layers_of(case), [[0, 3, 6], [1]])
        program = Beside(case.config, gpu, programs, host, NUM_TOKENS, hot=experts, turns=made[0].steps)
        table = parity.reserved(cache.new_table(), NUM_TOKENS)
        found = [
            program.forward(ids[:4], [Segment(table, 0, 4)], all_logits=True, forced_experts=chosen[:, :4].copy()),
            program.forward(ids[4:], [Segment(table, 4, 2)], all_logits=True, forced_experts=chosen[:, 4:].copy()),
        ]
        program.close()
    parity.assert_near(np.concatenate(found), truth, EXACT)
    steps, num_products = made[0].steps, 2 * 2 * case.config.num_moe_layers  # gate and up, and down, of two steps
    assert steps.finished.value == kernels.count("_persistent_kernel") == num_products
    assert "_experts_kernel" not in kernels
    assert steps.asked.value == 2 * (case.config.num_moe_layers + 1)  # attention and the head: not for hot experts


def test_a_prompt_whose_experts_are_shared_with_the_cpu_is_near_the_reference(case, device):
    ids = case.ids[:NUM_TOKENS]
    truth, chosen = Reference(case, is_exact=True)(ids)
    with opened(case, device) as (gpu, programs, host, cache):
        program = Mixed(case.config, gpu, programs, host, NUM_TOKENS, lambda counts: [5, 2, 0], num_slots=2)
        segment = Segment(parity.reserved(cache.new_table(), NUM_TOKENS), 0, NUM_TOKENS)
        found = program.forward(ids, [segment], all_logits=True, forced_experts=chosen)
        assert program.moved_bytes == 2 * 3 * layers_of(case)[0].parts[0].blob.shape[1]
        program.close()
    parity.assert_near(found, truth, EXACT)


def test_the_cpu_chooses_for_both(case, device):
    """With nothing forced, each token's experts add up once, whatever the GPU's own router would have said."""
    ids = case.ids[:NUM_TOKENS]
    logits = []
    for hot in (None, [[0, 3, 6], [1, 2, 4, 5]]):
        with opened(case, device) as (gpu, programs, host, cache):
            experts = None if hot is None else HotExperts(gpu, layers_of(case), hot)
            program = Beside(case.config, gpu, programs, host, NUM_TOKENS, hot=experts)
            segment = Segment(parity.reserved(cache.new_table(), NUM_TOKENS), 0, NUM_TOKENS)
            logits.append(program.forward(ids, [segment], all_logits=True))
            chosen = program.last_experts
            program.close()
        truth, _ = Reference(case, is_exact=True)(ids, chosen)
        parity.assert_near(logits[-1], truth, EXACT)


class Again:
    """A graph that issues again what it has captured."""

    replays = 0

    def capture(self, issue):
        self.issue = issue

    def replay(self):
        type(self).replays += 1
        self.issue()


def test_steps_are_replayed_as_graphs(case, device):
    """Three steps of one token: issued, captured, replayed; only the hot experts' router is launched each time."""
    if device.type == "cuda":
        pytest.skip("there the programs have graphs of their own")
    ids = case.ids[:NUM_TOKENS]
    truth, chosen = Reference(case, is_exact=True)(ids)
    with opened(case, device) as (gpu, programs, host, cache):
        experts = HotExperts(gpu, layers_of(case), [[0, 3, 6], [1, 2]])
        program = Beside(case.config, gpu, programs, host, NUM_TOKENS, hot=experts)
        (batch,) = program._batches
        batch._own._graphs = batch._hot_part._mixtures._graphs = Graphs(Again)
        table, found = cache.new_table(), []
        for n in range(3):
            segment = Segment(parity.reserved(table, n + 1), n, 1)
            found.append(program.forward(ids[n : n + 1], [segment], forced_experts=chosen[:, n : n + 1].copy()))
        program.close()
    parity.assert_near(np.concatenate(found), truth[:3], EXACT)
    num_layers = case.config.num_moe_layers
    assert Again.replays == 2 * (3 * num_layers + 1)  # before the offer, shared experts, hot ones; and the head
