"""The network in the reference dialect says what transformers says."""

import parity
import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.kernels.reference import ReferenceProgram
from localmoe.model.decoder import decode


def make_program(model, cache, max_tokens):
    return ReferenceProgram(lambda ops: decode(ops, model, cache), max_tokens)


@pytest.fixture(params=SHAPES)
def case(request, tmp_path_factory):
    return parity.case_of(request.param, tmp_path_factory)


@pytest.mark.parametrize("check", parity.EVERY_WAY)
def test_every_way_of_running_agrees(case, check):
    check(case, make_program)


def test_one_go_agrees_with_the_oracle(case):
    assert parity.check_one_go(case, make_program) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes_agree_with_the_oracle(tmp_path, seed):
    case = parity.open_case(make_checkpoint(tmp_path / "model", seed, **parity.random_shape(seed)), seed)
    parity.check_one_go(case, make_program)
    parity.check_batch(case, make_program)
