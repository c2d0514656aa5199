"""The network on the native core says what transformers says, on every target that this machine has."""

import parity
import pytest
from tiny import SHAPES, make_checkpoint

from localmoe import _native as native
from localmoe.kernels.cpu import CpuProgram
from localmoe.model.decoder import decode

POOLS = {n: native.Pool([-1] * n) for n in (1, 2)}


@pytest.fixture(params=native.supported_targets())
def make_program(request):
    return lambda model, cache, max_tokens: CpuProgram(
        lambda ops: decode(ops, model, cache), max_tokens, POOLS[2], request.param
    )


@pytest.fixture(params=SHAPES)
def case(request, tmp_path_factory):
    return parity.case_of(request.param, tmp_path_factory)


@pytest.mark.parametrize("check", parity.EVERY_WAY)
def test_every_way_of_running_agrees(case, make_program, check):
    check(case, make_program)


def test_one_go_agrees_with_the_oracle(case, make_program):
    assert parity.check_one_go(case, make_program) <= 1


def test_the_number_of_threads_changes_nothing(case):
    """Bit by bit: what a tile computes does not depend on who computes it, nor on how rows are split."""
    runs = []
    for pool in POOLS.values():
        cache = case.cache()
        program = CpuProgram(lambda ops, cache=cache: decode(ops, case.model, cache), parity.NUM_TOKENS, pool)
        logits, _ = parity.run(program, cache.new_table(), case.ids, [60, 1, 7, 32])
        runs.append(logits)
    assert (runs[0] == runs[1]).all()


@pytest.mark.parametrize("name", ["v3", "moonlight"])
def test_the_number_of_nodes_changes_nothing(name, tmp_path_factory):
    """Bit by bit, wherever the workers are."""
    one = parity.case_of(name, tmp_path_factory)

    def logits(case, worker_nodes):
        cache = case.cache()
        program = CpuProgram(
            lambda ops: decode(ops, case.model, cache), parity.NUM_TOKENS, POOLS[2], worker_nodes=worker_nodes
        )
        return parity.run(program, cache.new_table(), case.ids, [60, 1, 7, 32])[0]

    truth = logits(one, ())
    for nodes, worker_nodes in ((2, (0, 1)), (3, (2, 2)), (4, (1, -1)), (7, ())):
        assert (logits(parity.open_case(one.folder, nodes=range(nodes)), worker_nodes) == truth).all(), nodes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes_agree_with_the_oracle(tmp_path, make_program, seed):
    case = parity.open_case(make_checkpoint(tmp_path / "model", seed, **parity.random_shape(seed)), seed)
    parity.check_one_go(case, make_program)
    parity.check_batch(case, make_program)
