"""The reference dialect, op by op, against arithmetic that shares nothing with it."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tiny import fp8_values, quantise, to_bf16

from localmoe.errors import CancelledError
from localmoe.kernels.ops import PAGE_TOKENS, MlaShape, Rope, Router, Segment
from localmoe.kernels.reference import NOT_COMPUTED, ReferenceOps, ReferenceProgram, Run, dequantised

RANDOM = np.random.default_rng(0)


@dataclass
class Matrix:
    weight: np.ndarray
    scale: np.ndarray | None = None


@dataclass
class Table:
    pages: np.ndarray


@dataclass
class Cache:
    data: np.ndarray


@dataclass
class Flag:
    state: bool

    def set(self) -> None:
        self.state = True

    def is_set(self) -> bool:
        return self.state

    def clear(self) -> None:
        self.state = False


def ops_for(count: int, start: int = 0, pages: tuple[int, ...] = (0, 1, 2)) -> ReferenceOps:
    segment = Segment(Table(np.array(pages, np.int32)), start, count)
    positions = torch.arange(start, start + count).float()
    return ReferenceOps(Run(torch.arange(count), positions, [segment], False, None, None))


def random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RANDOM.standard_normal(shape, dtype=np.float32))


def near(ours, truth, bar=1e-5) -> None:
    assert np.linalg.norm(np.asarray(ours) - np.asarray(truth)) <= bar * np.linalg.norm(np.asarray(truth))


def test_all_256_codes_are_decoded_exactly():
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    decoded = dequantised(Matrix(codes, np.ones((1, 1), np.float32))).numpy()
    values = np.append(fp8_values(), np.nan)
    np.testing.assert_array_equal(decoded, np.stack([values, -values]))


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (128, 128), (129, 300), (72, 257)])
def test_a_linear_multiplies_each_block_by_its_scale(rows, cols):
    codes, scale = quantise(RANDOM.standard_normal((rows, cols), dtype=np.float32))
    table = np.concatenate([fp8_values(), [0], -fp8_values(), [0]])
    weight = np.array([[table[codes[r, c]] * scale[r // 128, c // 128] for c in range(cols)] for r in range(rows)])
    x = random(3, cols)
    near(ops_for(3).linear(x, Matrix(codes, scale)), x.numpy() @ weight.T)


def test_a_linear_takes_bf16_and_float32():
    weight, x = RANDOM.standard_normal((5, 7), dtype=np.float32), random(3, 7)
    near(ops_for(3).linear(x, Matrix(weight)), x.numpy() @ weight.T)
    near(ops_for(3).linear(x, Matrix(to_bf16(weight))), x.numpy() @ weight.T, 1e-2)


def test_rms_norm():
    x, weight = random(3, 7), RANDOM.standard_normal(7, dtype=np.float32)
    expected = [
        [v / math.sqrt((row**2).mean() + 1e-5) * w for v, w in zip(row, weight, strict=True)] for row in x.numpy()
    ]
    near(ops_for(3).rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_turns_pairs_of_the_last_elements_by_the_position(interleaved):
    rope = Rope(np.array([1.0, 0.01], np.float32), scale=1.5, interleaved=interleaved)
    x = random(2, 3 * 7)
    turned = ops_for(2, start=1000).rope(x.clone(), rope, 7).view(2, 3, 7).numpy()
    heads = x.view(2, 3, 7).numpy()
    np.testing.assert_array_equal(turned[..., :3], heads[..., :3])
    pairs = [(3, 4), (5, 6)] if interleaved else [(3, 5), (4, 6)]
    for t in range(2):
        for (a, b), frequency in zip(pairs, rope.inv_freq, strict=True):
            turn = 1.5 * np.exp(1j * float(np.float32(1000 + t) * frequency))
            expected = (heads[t, :, a] + 1j * heads[t, :, b]) * turn
            near(turned[t, :, a] + 1j * turned[t, :, b], expected)


@pytest.mark.parametrize(("dtype", "bar"), [(np.float32, 1e-5), (np.uint16, 1e-2)])
def test_attention_sees_the_cached_tokens_up_to_its_own(dtype, bar):
    shape = MlaShape(num_heads=3, nope_dim=5, rope_dim=4, v_dim=6, rank=7, softmax_scale=0.3)
    cache, pages = Cache(np.zeros((9, PAGE_TOKENS, 11), dtype)), (7, 2, 4)
    latent, key, q = random(130, 7), random(130, 4), random(130, 27)
    kv_b = RANDOM.standard_normal((3 * 11, 7), dtype=np.float32)
    first, rest = ops_for(100, pages=pages), ops_for(30, start=100, pages=pages)
    first.append_latent(cache, latent[:100], key[:100])
    rest.append_latent(cache, latent[100:], key[100:])
    ours = rest.mla_attention(q[100:], cache, Matrix(kv_b), shape)
    near(ours, slow_attention(q.numpy(), latent.numpy(), key.numpy(), kv_b, shape)[100:], bar)
    assert not cache.data[[0, 1, 3, 5, 6, 8]].any()  # no other page was touched


def slow_attention(q, latent, key, kv_b, shape):
    """Token by token and head by head, in float64."""
    out = np.zeros((len(q), shape.num_heads, shape.v_dim))
    kv = (latent.astype(float) @ kv_b.T).reshape(len(latent), shape.num_heads, -1)
    for t in range(len(q)):
        for n in range(shape.num_heads):
            query = q[t].reshape(shape.num_heads, -1)[n]
            keys = np.concatenate([kv[: t + 1, n, : shape.nope_dim], key[: t + 1]], axis=1)
            powers = np.exp(keys @ query * shape.softmax_scale)
            out[t, n] = powers / powers.sum() @ kv[: t + 1, n, shape.nope_dim :]
    return out.reshape(len(q), -1)


def route(scores: list[float], router: Router) -> tuple[list[int], list[float]]:
    """Ids in ascending order, and their weights, for one token whose *scores* are given."""
    logits = torch.tensor([scores])
    logits = logits.logit() if router.scoring == "sigmoid" else logits.log()
    routing = ops_for(1).route(logits, router)
    order = routing.ids[0].argsort()
    return routing.ids[0][order].tolist(), routing.weights[0][order].tolist()


def test_the_router_takes_the_best_and_scales_their_weights():
    ids, weights = route([0.1, 0.8, 0.4, 0.2], Router(4, 2, scale=2.5))
    assert ids == [1, 2]
    near(weights, [2.5 * 0.8 / 1.2, 2.5 * 0.4 / 1.2])


def test_softmax_weights_are_not_normalised_unless_asked():
    ids, weights = route([0.1, 0.5, 0.3, 0.1], Router(4, 2, scoring="softmax", normalize=False, scale=3.0))
    assert ids == [1, 2]
    near(weights, [1.5, 0.9])


def test_the_bias_decides_the_choice_but_not_the_weight():
    bias = np.array([0.9, 0, 0, 0], np.float32)
    ids, weights = route([0.1, 0.8, 0.4, 0.2], Router(4, 2, bias=bias))
    assert ids == [0, 1]
    near(weights, [0.1 / 0.9, 0.8 / 0.9])


def test_a_group_is_worth_its_two_best_or_its_best():
    scores = [0.9, 0.1, 0.6, 0.5, 0.3, 0.2]
    grouped = Router(6, 2, num_groups=3, top_groups=1)
    assert route(scores, grouped)[0] == [2, 3]
    assert route(scores, replace(grouped, group_score="max"))[0] == [0, 1]


def test_a_negative_choice_score_beats_other_groups():
    """A bias may push a whole group below zero: masked experts must still not be chosen."""
    bias = np.array([-2, -2, -3, -3], np.float32)
    assert route([0.5, 0.6, 0.7, 0.8], Router(4, 2, num_groups=2, top_groups=1, bias=bias))[0] == [0, 1]


def network(ops: ReferenceOps) -> torch.Tensor:
    """An embedding, a router, the selection, a router."""
    x = ops.embedding(Matrix(np.eye(8, dtype=np.float32)))
    ops.route(x, Router(8, 2))
    x = ops.select(x)
    ops.route(x, Router(8, 2))
    return x


def segments(*counts: int) -> list[Segment]:
    return [Segment(Table(np.array([n], np.int32)), 0, count) for n, count in enumerate(counts)]


def test_a_program_answers_for_the_last_token_of_each_segment_or_for_all():
    program, ids = ReferenceProgram(network, 16), np.array([3, 5, 7, 1, 2], np.int32)
    np.testing.assert_array_equal(program.forward(ids, segments(2, 3)).argmax(-1), [5, 2])
    np.testing.assert_array_equal(program.forward(ids, segments(2, 3), all_logits=True).argmax(-1), ids)


def test_a_program_tells_which_experts_each_token_took():
    program, ids = ReferenceProgram(network, 16), np.array([3, 5, 7, 1, 2], np.int32)
    program.forward(ids, segments(2, 3))
    assert program.last_experts.shape == (2, 5, 2)
    assert (program.last_experts[0] == ids[:, None]).any(-1).all()
    assert (program.last_experts[1, [0, 2, 3]] == NOT_COMPUTED).all()
    assert (program.last_experts[1, [1, 4]] == ids[[1, 4], None]).any(-1).all()


def test_forced_experts_replace_the_choice():
    forced = RANDOM.integers(0, 8, (2, 5, 2)).astype(np.int32)
    program = ReferenceProgram(network, 16)
    program.forward(np.zeros(5, np.int32), segments(2, 3), all_logits=True, forced_experts=forced)
    np.testing.assert_array_equal(program.last_experts, forced)


def test_a_set_flag_stops_the_run():
    with pytest.raises(CancelledError):
        ReferenceProgram(network, 16).forward(np.zeros(5, np.int32), segments(5), cancel=Flag(True))


def test_equal_scores_go_to_the_lower_id():
    assert route([0.5] * 6, Router(6, 2))[0] == [0, 1]
    assert route([0.5] * 6, Router(6, 2, num_groups=3, top_groups=1))[0] == [0, 1]
