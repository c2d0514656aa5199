"""The whole network by the GPU dialect's programs, piece by piece, against the reference dialect."""

import numpy as np
import pytest
from arrays import NEAR
from networks import FORMS, NUM_PAGES, Reference, Runner, network, parity

from localmoe.errors import CancelledError
from localmoe.kernels.gpu.chips import CHIPS, chip_of
from localmoe.kernels.gpu.program import GpuProgram
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.ops import Segment
from localmoe.model.network import new_flag

EXACT = 2e-2  # relative, of logits: what BF16 activations cost in all
OTHER_FORM = 1.5e-2  # relative: attention that is absorbed rounds elsewhere than where keys are expanded


@pytest.fixture(scope="module")
def networks_of(tmp_path_factory):
    found = {}

    def make(form, nodes=()):
        if (form, nodes) not in found:
            found[form, nodes] = network(tmp_path_factory, form, nodes, **FORMS[form][1])
        return found[form, nodes]

    return make


def chip_for(form, device):
    """In the interpreter the one that takes products of that form; else what it is, if it takes them."""
    chip = CHIPS[FORMS[form][0]] if device.type == "cpu" else chip_of(device)
    if form != "bf16" and chip.has_fp8 != (form == "fp8"):
        pytest.skip(f"{chip.name} does not take FP8 weights as {form}")
    return chip


def started(case, device, chip, max_tokens, **more):
    cache = case.cache("bf16", NUM_PAGES)
    return Runner(case, cache, device, chip, max_tokens, **more), cache.new_table()


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_is_near_the_reference(networks_of, form, device):
    case, chip = networks_of(form), chip_for(form, device)
    ids = case.ids[:34]
    exact, chosen = Reference(case, is_exact=True)(ids)
    truth, _ = Reference(case, is_quantised=form == "fp8")(ids, chosen)
    runner, table = started(case, device, chip, 34)
    parity.reserved(table, 34)
    ours = runner.forward(ids, [Segment(table, 0, 34)], all_logits=True, forced_experts=chosen)
    parity.assert_near(ours, truth, NEAR)
    if form != "fp8":
        parity.assert_near(ours, exact, EXACT)
    assert (runner.program.chosen(0)[:34] == chosen[0]).all()


def test_every_piece_of_a_prompt_continues_the_one_before(networks_of, device):
    """Chunks that are expanded and tokens that are absorbed, over a page's end; the last layer for one row only."""
    case = networks_of("bf16")
    truth, chosen = Reference(case)(case.ids)
    runner, table = started(case, device, chip_for("bf16", device), 34)
    done = 0
    for size in (34, 29, 1, 1, 33):
        segment = Segment(parity.reserved(table, done + size), done, size)
        forced = np.ascontiguousarray(chosen[:, done : done + size])
        ours = runner.forward(case.ids[done : done + size], [segment], forced_experts=forced)
        done += size
        parity.assert_near(ours, truth[done - 1 : done], OTHER_FORM)


def test_several_sessions_in_one_run(networks_of, device):
    """Short ones beside long ones, with and without a prefix, each as if it were alone."""
    case = networks_of("bf16")
    truth, chosen = Reference(case)(case.ids)
    cache = case.cache("bf16", 12)
    runner = Runner(case, cache, device, chip_for("bf16", device), 45)
    long = parity.reserved(cache.new_table(), 34)
    runner.forward(case.ids[:34], [Segment(long, 0, 34)], forced_experts=np.ascontiguousarray(chosen[:, :34]))
    pieces = [(long.fork(), 34, 6), (cache.new_table(), 0, 1), (long.fork(), 34, 33), (cache.new_table(), 0, 5)]
    segments = [Segment(parity.reserved(table, start + count), start, count) for table, start, count in pieces]
    where = np.concatenate([np.arange(start, start + count) for _, start, count in pieces])
    ours = runner.forward(case.ids[where], segments, forced_experts=np.ascontiguousarray(chosen[:, where]))
    parity.assert_near(ours, truth[[39, 0, 66, 4]], OTHER_FORM)


def test_experts_in_parts_are_joined(networks_of, device):
    """Of three parts two begin within blocks of 128 rows. The experts are those that the router chooses."""
    whole, split = networks_of("decoded"), networks_of("decoded", (0, 1, 2))
    chip, ids = chip_for("decoded", device), whole.ids[:5]
    answers = []
    for case in (whole, split):
        runner, table = started(case, device, chip, 5, group=4)
        answers.append(runner.forward(ids, [Segment(parity.reserved(table, 5), 0, 5)], all_logits=True))
    assert len(split.model.layers[1].moe.experts.parts) == 3
    parity.assert_near(answers[1], answers[0], 1e-6)
    _, chosen = Reference(whole)(ids)
    assert (np.sort(runner.program.chosen(0)[:5]) == np.sort(chosen[0])).all()


def test_a_forked_session_has_pages_of_its_own_on_the_device(networks_of, device):
    case = networks_of("bf16")
    truth, chosen = Reference(case)(case.ids[:8])
    runner, table = started(case, device, chip_for("bf16", device), 6)
    forced = np.ascontiguousarray(chosen[:, :6])
    runner.forward(case.ids[:6], [Segment(parity.reserved(table, 6), 0, 6)], forced_experts=forced)
    other = table.fork()
    rest = case.ids[[90, 91]], np.ascontiguousarray(chosen[:, 6:])
    runner.forward(rest[0], [Segment(parity.reserved(other, 8), 6, 2)], forced_experts=rest[1])
    ours = runner.forward(case.ids[6:8], [Segment(parity.reserved(table, 8), 6, 2)], forced_experts=rest[1])
    parity.assert_near(ours, truth[-1:], OTHER_FORM)


def test_a_flag_ends_a_run(networks_of, device):
    case = networks_of("bf16")
    runner, table = started(case, device, chip_for("bf16", device), 4)
    flag = new_flag()
    flag.set()
    with pytest.raises(CancelledError):
        runner.forward(case.ids[:4], [Segment(parity.reserved(table, 4), 0, 4)], cancel=flag)


def test_runs_use_the_same_memory(networks_of, device, monkeypatch):
    """As graphs need it: runs about other tokens find everything where it was, and ask for nothing more."""
    case = networks_of("bf16")
    runner, table = started(case, device, chip_for("bf16", device), 2)
    program, seen = runner.program, []
    monkeypatch.setattr(Gpu, "empty", lambda *_: pytest.fail("memory was asked for"))
    monkeypatch.setattr(Gpu, "staging", lambda *_: pytest.fail("memory was asked for"))
    for end in (1, 2):
        runner.forward(case.ids[end - 1 : end], [Segment(parity.reserved(table, end), end - 1, 1)])
        seen.append(addresses(program))
    assert seen[0] == seen[1]


def addresses(program: GpuProgram) -> list[int]:
    """Of the rows of every value, and of what each run is told."""
    values = {v.buffer: v for call in program._ops.calls for v in call.values}
    inputs = program._inputs
    told = [inputs.embedded, inputs.positions, inputs.cache_rows, inputs.selected, inputs.rotation]
    pieces = [x for piece in inputs.pieces() for x in (piece.pages, piece.lengths)]
    return [x.data_ptr() for x in [*(program.rows(v, 1) for v in values.values()), *told, *pieces]]
