"""Programs that run piece by piece, and experts that come in groups, against the one-stage op."""

import threading
import time

import numpy as np
import pytest

from localmoe import _native as native
from localmoe.errors import CancelledError
from localmoe.kernels.cpu import CpuProgram
from localmoe.kernels.ops import Router, Segment
from localmoe.kernels.segments import Group, SegmentOps, SegmentProgram, Tokens, turn
from localmoe.weights.layout import Placement
from localmoe.weights.store import ExpertPart, Experts

POOL = native.Pool([-1, -1])
HIDDEN, INTER, NUM, TOP_K = 96, 64, 12, 4


def bf16(random, *shape):
    values = (random.standard_normal(shape) / 8).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def experts_of(random, num_parts=1):
    """BF16 experts in one part, or in two with half of gate's and up's rows each."""
    blobs, halves = {}, {}
    for name, rows, cols in (("gate", INTER, HIDDEN), ("up", INTER, HIDDEN), ("down", HIDDEN, INTER)):
        blobs[name] = bf16(random, NUM, rows, cols)
        middle = min(rows, max(64, rows // 128 * 64))
        halves[name] = [(0, rows)] if num_parts == 1 else [(0, middle), (middle, rows)]
    parts = []
    for p in range(num_parts):
        places, pieces, at = [], [], 0
        for name, weights in blobs.items():
            first, end = halves[name][p]
            places.append(Placement(at, None, first, end - first, weights.shape[2], "bf16"))
            pieces.append(weights[:, first:end].reshape(NUM, -1).view(np.uint8))
            at += pieces[-1].shape[1]
        parts.append(ExpertPart(np.ascontiguousarray(np.concatenate(pieces, axis=1)), *places))
    return Experts(NUM, tuple(parts))


class Pages:
    pages = np.zeros(8, np.int32)


def tokens(count):
    return Tokens(np.zeros(count, np.int32), [Segment(Pages(), 0, count)], np.arange(count, dtype=np.int32))


@pytest.fixture(params=native.supported_targets())
def target(request):
    return request.param


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 9, 40, 150])
@pytest.mark.parametrize("group", [1, 2, 5, NUM])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_groups_add_up_to_the_one_stage_op(target, num_tokens, group, num_parts):
    random = np.random.default_rng(num_tokens)
    experts = experts_of(random, num_parts)
    x = random.standard_normal((num_tokens, HIDDEN)).astype(np.float32)
    logits = random.standard_normal((num_tokens, NUM)).astype(np.float32)
    logits[:, 3:5] -= 20  # nobody's experts

    def network(ops):
        routing = ops.route(ops.input(logits), Router(NUM, TOP_K))
        return ops.experts(ops.input(x), routing, experts)

    truth = CpuProgram(network, num_tokens, POOL, target).apply(num_tokens)
    ops = SegmentOps()
    program = SegmentProgram(ops, network(ops), num_tokens, POOL, target)
    (stop,) = ops.stops
    for _ in range(2):  # whatever the rows held
        program.begin(tokens(num_tokens), None)
        program.run(0, stop.op)
        for first in range(0, NUM, group):
            count = min(group, NUM - first)
            data = [p.blob[first : first + count].reshape(-1).copy() for p in experts.parts]
            program.run_group(stop, Group(first, count, data, overwrites=first == 0))
        error = np.linalg.norm(program.logits - truth) / np.linalg.norm(truth)
        assert error < 1e-6


@pytest.mark.parametrize("num_tokens", [1, 8, 40])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_groups_of_any_experts_add_up_to_the_one_stage_op(target, num_tokens, num_parts):
    """Some packed in any order, as on a device that has a few; the others where all rest."""
    random = np.random.default_rng(num_tokens)
    experts = experts_of(random, num_parts)
    x = random.standard_normal((num_tokens, HIDDEN)).astype(np.float32)
    logits = random.standard_normal((num_tokens, NUM)).astype(np.float32)

    def network(ops):
        routing = ops.route(ops.input(logits), Router(NUM, TOP_K))
        return ops.experts(ops.input(x), routing, experts)

    truth = CpuProgram(network, num_tokens, POOL, target).apply(num_tokens)
    ops = SegmentOps()
    program = SegmentProgram(ops, network(ops), num_tokens, POOL, target)
    (stop,) = ops.stops
    program.begin(tokens(num_tokens), None)
    program.run(0, stop.op)
    packed = random.permutation(NUM)[:5]
    places = np.full(NUM, -1, np.int32)
    places[packed] = np.arange(5)
    data = [p.blob[packed].reshape(-1) for p in experts.parts]
    program.run_group(stop, Group(0, 5, data, True, places))
    rest = np.where(places < 0, np.arange(NUM, dtype=np.int32), -1).astype(np.int32)
    program.run_group(stop, Group(0, NUM, [p.blob.reshape(-1) for p in experts.parts], False, rest))
    assert np.linalg.norm(program.logits - truth) / np.linalg.norm(truth) < 1e-6


@pytest.fixture
def small():
    random = np.random.default_rng(0)
    experts = experts_of(random)
    ops = SegmentOps()
    x = ops.input(random.standard_normal((4, HIDDEN)).astype(np.float32))
    routing = ops.route(ops.input(random.standard_normal((4, NUM)).astype(np.float32)), Router(NUM, TOP_K))
    program = SegmentProgram(ops, ops.experts(x, routing, experts), 4, POOL)
    program.begin(tokens(4), None)
    return program, ops.stops[0], experts


def test_bytes_that_end_early_are_refused(small):
    program, stop, experts = small
    data = [experts.parts[0].blob[:2].reshape(-1)[:-1]]
    with pytest.raises(ValueError, match="a group's bytes end before its experts"):
        program.run_group(stop, Group(0, 2, data, True))


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0), (NUM - 1, 2)])
def test_experts_that_a_layer_has_not_are_refused(small, first, count):
    program, stop, experts = small
    with pytest.raises(ValueError, match="no such experts"):
        program.run_group(stop, Group(first, count, [experts.parts[0].blob.reshape(-1)], True))


@pytest.mark.parametrize("places", [np.full(NUM - 1, -1), np.full(NUM, 2), np.full(NUM, -2)])
def test_places_that_a_group_has_not_are_refused(small, places):
    program, stop, experts = small
    group = Group(0, 2, [experts.parts[0].blob[:2].reshape(-1)], True, places.astype(np.int32))
    with pytest.raises(ValueError, match="place"):
        program.run_group(stop, group)


def test_turns_wait_for_their_words_and_tell_when_they_are_through(small):
    """Another thread is the device: each word is what the other side waits for, and counts from the run's base."""
    program, stop, experts = small
    program.run(0, stop.op)
    group = Group(0, NUM, [experts.parts[0].blob.reshape(-1)], True)
    program.run_group(stop, group)
    truth, base = program.logits.copy(), 40
    asks, answers = np.zeros(1, np.int32), np.zeros(1, np.int32)
    ends = []

    def device():
        for n in range(1, 4):
            asks[0] = base + n
            assert native.wait_word(answers, base + n, 10.0)
            ends.append(time.perf_counter())

    program.begin(tokens(4), None)
    turns = [turn(stop.op, stop.op + 1, group, (asks, n), (answers, n)) for n in range(1, 4)]
    thread = threading.Thread(target=device)
    thread.start()
    times = program.take_turns(turns, base)
    thread.join()
    assert (program.logits == truth).all()
    assert (times[:, 0] <= times[:, 1]).all() and (times[1:, 0] >= ends[:-1]).all() and (times[:, 1] <= ends).all()


def test_a_turn_that_does_not_come_ends_with_the_flag(small):
    program, stop, _ = small
    flag, never = native.Flag(), np.zeros(1, np.int32)
    program.begin(tokens(4), flag)
    threading.Timer(0.05, flag.set).start()
    with pytest.raises(CancelledError):
        program.take_turns([turn(0, stop.op, waits=(never, 1))], 0)


def test_a_word_is_waited_for_no_longer_than_asked():
    word = np.zeros(1, np.int32)
    assert not native.wait_word(word, 1, 0.001)
    assert native.wait_word(word, 0, 0.0)


def test_a_group_op_needs_a_group(small):
    program, stop, _ = small
    with pytest.raises(ValueError, match="need a group"):
        program.run(0, stop.op + 1)


def test_a_cancelled_piece_says_so(small):
    program, stop, experts = small
    flag = native.Flag()
    flag.set()
    program.begin(tokens(4), flag)
    with pytest.raises(CancelledError):
        program.run_group(stop, Group(0, NUM, [experts.parts[0].blob.reshape(-1)], True))


def test_rows_can_be_filled_and_read_between_two_runs():
    ops = SegmentOps()
    given = ops.given(8)
    out = ops.offered(ops.rms_norm(given, np.ones(8, np.float32), 0.0))()
    program = SegmentProgram(ops, ops.rms_norm(out, np.ones(8, np.float32), 0.0), 3, POOL)
    program.begin(tokens(3), None)
    program.rows(given, 3)[:] = 4
    _, offer, stop = ops.stops
    program.run(0, offer.op)
    assert (program.rows(offer.x, 3) == 1).all()
    program.run(offer.op, stop.op)
    assert (program.rows(stop.x, 3) == 1).all()
    program.rows(stop.out, 3)[:] = -5
    program.run(stop.op + 1, program.num_ops)
    assert (program.logits == -1).all()
    with pytest.raises(ValueError, match="no such rows"):
        program.rows(stop.out, 4)


def test_rows_may_be_given_as_bf16():
    ops = SegmentOps(takes_bf16=True)
    program = SegmentProgram(ops, ops.rms_norm(ops.given(8), np.ones(8, np.float32), 0.0), 3, POOL)
    (stop,) = ops.stops
    program.begin(tokens(2), None)
    values = np.float32([[1, -2, 4, 0.5, 3, 1, 8, -1], [2] * 8])
    program.rows(stop.x, 2).view(np.uint16)[:] = values.view(np.uint32) >> 16
    program.run(0, program.num_ops)
    assert np.allclose(program.logits, values / np.sqrt((values**2).mean(1, keepdims=True)))
