"""Every op of the CPU dialect, on every target of this machine, against the reference dialect."""

import threading
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from localmoe import _native as native
from localmoe.errors import CancelledError
from localmoe.kernels.cpu import CpuProgram, _Pages
from localmoe.kernels.ops import PAGE_TOKENS, MlaShape, Rope, Router, Routing, Segment
from localmoe.kernels.reference import ReferenceOps, Run
from localmoe.model.cache import LatentCache

POOL = native.Pool([-1, -1])
BAR = 2e-6  # relative; FP32 sums in another order
TARGETS = native.supported_targets()
NUM_TOKENS = [1, 2, 3, 5, 8, 9, 16, 17, 40]
SHAPES = [
    (1, 1),
    (3, 7),
    (5, 31),
    (33, 32),
    (48, 33),
    (49, 127),
    (128, 128),
    (130, 129),
    (176, 200),
    (300, 576),
    (7, 1408),
]


@dataclass(frozen=True)
class Weight:
    """An ops.Linear."""

    weight: np.ndarray
    scale: np.ndarray | None


@dataclass(frozen=True)
class Place:
    """An ops.Placement."""

    offset: int
    scale_offset: int | None
    first_row: int
    rows: int
    cols: int
    dtype: str


@dataclass(frozen=True)
class Part:
    """An ops.ExpertPart."""

    blob: np.ndarray
    gate: Place
    up: Place
    down: Place


@dataclass(frozen=True)
class ExpertSet:
    """An ops.Experts."""

    num_experts: int
    parts: tuple[Part, ...]


def rng(*seed):
    return np.random.default_rng([len(seed), *seed])


def normal(*shape, seed=0):
    return rng(seed, *shape).standard_normal(shape).astype(np.float32)


def bf16(x):
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def make_weight(rows, cols, kind, seed=0):
    """Random FP8 codes (all but NaN, subnormals among every fourth 64), BF16 or float32."""
    if kind == "f32":
        return Weight(normal(rows, cols, seed=seed), None)
    if kind == "bf16":
        return Weight(bf16(normal(rows, cols, seed=seed)), None)
    codes = rng(seed, rows, cols).integers(0, 254, (rows, cols)).astype(np.uint8)
    codes[codes >= 0x7F] += 1  # leaves out 0x7F and 0xFF
    plain = (np.arange(codes.size) // 64 % 4 != 0).reshape(codes.shape)  # kernels look for subnormals 64 at a time
    codes[plain & (codes & 0x78 == 0)] |= 0x40
    scale = rng(seed, rows).uniform(1e-4, 1e-2, (-(-rows // 128), -(-cols // 128))).astype(np.float32)
    return Weight(codes, scale)


def cpu(network, num_rows, target):
    return CpuProgram(network, num_rows, POOL, target).apply(num_rows)


def reference(num_rows):
    positions = torch.arange(num_rows).float()
    return ReferenceOps(
        Run(torch.zeros(num_rows, dtype=torch.long), positions, [Segment(None, 0, num_rows)], True, None, None)
    )


def same(ours, truth, bar=BAR):
    ours, truth = np.asarray(ours, np.float64), np.asarray(truth, np.float64)
    assert ours.shape == truth.shape
    assert np.isfinite(ours).all()
    error = np.linalg.norm(ours - truth) / (np.linalg.norm(truth) + 1e-30)
    assert error <= bar, f"{error:.1e}"


def bar_of_products(target, kind, tokens):
    """On avx512_bf16 up to 8 tokens' activations are two BF16 terms, which leave out at most 2^-17 of each."""
    return BAR + 2**-17 if target == "avx512_bf16" and kind != "f32" and tokens <= 8 else BAR


@pytest.fixture(params=TARGETS)
def target(request):
    return request.param


@pytest.mark.parametrize("kind", ["fp8", "bf16", "f32"])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_linear(target, kind, rows, cols):
    w = make_weight(rows, cols, kind)
    for tokens in NUM_TOKENS:
        x = normal(tokens, cols, seed=tokens)
        ours = cpu(lambda ops, x=x: ops.linear(ops.input(x), w), tokens, target)
        same(ours, reference(tokens).linear(torch.from_numpy(x), w), bar_of_products(target, kind, tokens))


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("others", [0x00, 0x38])  # beside an exponent of zero, some kernels take another way
def test_every_fp8_code_is_exact(target, tokens, others):
    """One code a row, times 1: the product is the decoded value itself, bit by bit."""
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    for at in (0, 1, 2, 3, 17, 31, 32, 36):  # every lane of the shift trick, and the tail
        weight = np.full((len(codes), 37), others, np.uint8)
        weight[:, at] = codes
        w = Weight(weight, np.ones((-(-len(codes) // 128), 1), np.float32))
        x = np.zeros((tokens, 37), np.float32)
        x[:, at] = 1
        ours = cpu(lambda ops, x=x, w=w: ops.linear(ops.input(x), w), tokens, target)
        assert (ours == torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()).all()


@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 20])
def test_subnormals_in_some_rows_change_no_bit_of_others(target, tokens):
    w = make_weight(61, 384, "fp8")
    plain = np.where(w.weight & 0x78 == 0, 0x41, w.weight)
    rare = plain.copy()
    rare[::5, 70:90] = 0x83
    x = normal(tokens, 384, seed=tokens)
    ours = [cpu(lambda ops, c=c: ops.linear(ops.input(x), Weight(c, w.scale)), tokens, target) for c in (plain, rare)]
    alike = np.arange(61) % 5 != 0
    assert (ours[0] == ours[1])[:, alike].all()
    assert (ours[0] != ours[1])[:, ~alike].any(axis=0).all()


@pytest.mark.parametrize("magnitude", [1e-12, 1e-3, 1.0, 1e6])
def test_linear_keeps_its_accuracy_at_any_magnitude(target, magnitude):
    w = make_weight(40, 200, "fp8")
    for tokens in (1, 12):
        x = normal(tokens, 200) * np.float32(magnitude)
        ours = cpu(lambda ops, x=x: ops.linear(ops.input(x), w), tokens, target)
        same(ours, reference(tokens).linear(torch.from_numpy(x), w), bar_of_products(target, "fp8", tokens))


@pytest.mark.parametrize("width", [1, 7, 8, 33, 256, 7168])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_row_ops(target, width, tokens):
    x, y, weight = normal(tokens, width), 20 * normal(tokens, width, seed=1), normal(width, seed=2)
    tx, ty, ops = torch.from_numpy(x), torch.from_numpy(y), reference(tokens)
    same(cpu(lambda o: o.rms_norm(o.input(x), weight, 1e-6), tokens, target), ops.rms_norm(tx, weight, 1e-6))
    same(cpu(lambda o: o.add(o.input(x), o.input(y)), tokens, target), ops.add(tx, ty))
    same(cpu(lambda o: o.silu_mul(o.input(y), o.input(x)), tokens, target), ops.silu_mul(ty, tx))


def test_silu_of_extreme_values(target):
    gate = np.array([[-3e38, -1e4, -104.0, -88.0, -1e-30, 0.0, 1e-30, 88.0, 1e4, 1e30]], np.float32)
    ours = cpu(lambda o: o.silu_mul(o.input(gate), o.input(np.ones_like(gate))), 1, target)
    same(ours, reference(1).silu_mul(torch.from_numpy(gate), torch.ones(1, 10)))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope(target, interleaved):
    rope = Rope((10000.0 ** (-np.arange(0, 8, 2) / 8)).astype(np.float32), 1.25, interleaved)
    x = normal(70, 3 * 20)
    same(cpu(lambda o: o.rope(o.input(x), rope, 20), 70, target), reference(70).rope(torch.from_numpy(x), rope, 20))


ROUTERS = {
    "one group": Router(24, 8, scale=2.5, bias=normal(24) * 0.1),
    "groups": Router(16, 4, 4, 2, scale=2.5, bias=normal(16) * 0.1),
    "softmax": Router(10, 3, scoring="softmax", normalize=False),
    "softmax, best of a group": Router(12, 3, 3, 2, scoring="softmax", group_score="max", normalize=False, scale=16.0),
    "all": Router(6, 6),
}


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("tokens", [1, 30])
def test_route(target, name, tokens):
    router, logits = ROUTERS[name], normal(tokens, ROUTERS[name].num_experts, seed=3)
    program = CpuProgram(lambda o: o.route(o.input(logits), router).weights, tokens, POOL, target)
    weights, ids = program.apply(tokens), program.last_experts[0]
    truth = reference(tokens).route(torch.from_numpy(logits), router)
    order, true_order = np.argsort(ids, axis=1), np.argsort(truth.ids.numpy(), axis=1)
    assert (np.take_along_axis(ids, order, 1) == np.take_along_axis(truth.ids.numpy(), true_order, 1)).all()
    same(np.take_along_axis(weights, order, 1), np.take_along_axis(truth.weights.numpy(), true_order, 1))


@cache
def make_experts(num_experts, hidden, inter, kind, num_parts=1):
    """Random experts, their rows shared out over `num_parts` blobs; made once for all targets, and only read."""
    shapes = [(inter, hidden), (inter, hidden), (hidden, inter)]
    matrices = [[make_weight(*s, kind, seed=10 * e + n) for n, s in enumerate(shapes)] for e in range(num_experts)]
    ends = [[min(s[0], -(-s[0] // 64) * p // num_parts * 64) for p in range(num_parts + 1)] for s in shapes]
    parts = [make_part(matrices, [(rows[p], rows[p + 1]) for rows in ends]) for p in range(num_parts)]
    return ExpertSet(num_experts, tuple(parts))


def make_part(matrices, ranges):
    """A blob with gaps between the matrices, as an arena has, and only with the scales that its rows need."""
    experts = [[rows_of(w, *r) for w, r in zip(expert, ranges, strict=True)] for expert in matrices]
    places, at = [], 0
    for w, (first, stop) in zip(experts[0], ranges, strict=True):
        at = -(-at // 256) * 256 + 256
        scale_at = None if w.scale is None else -(-(at + w.weight.nbytes) // 4) * 4
        kind = "bf16" if w.scale is None else "fp8"
        places.append(Place(at, scale_at, first, stop - first, w.weight.shape[1], kind))
        at = (at + w.weight.nbytes) if scale_at is None else scale_at + w.scale.nbytes
    blob = np.zeros((len(experts), -(-at // 256) * 256), np.uint8)
    for row, weights in zip(blob, experts, strict=True):
        for place, w in zip(places, weights, strict=True):
            row[place.offset :][: w.weight.nbytes] = w.weight.reshape(-1).view(np.uint8)
            if w.scale is not None:
                row[place.scale_offset :][: w.scale.nbytes] = w.scale.reshape(-1).view(np.uint8)
    return Part(blob, *places)


def rows_of(w, first, stop):
    """Rows of a weight and the scales of the blocks that they touch."""
    return Weight(w.weight[first:stop], None if w.scale is None else w.scale[first // 128 : -(-stop // 128)])


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
@pytest.mark.parametrize(("hidden", "inter"), [(32, 16), (96, 176), (130, 50), (256, 128)])
@pytest.mark.parametrize("tokens", [1, 4, 8, 9, 20, 150])
def test_experts(target, kind, hidden, inter, tokens):
    experts, router = make_experts(6, hidden, inter, kind), Router(6, 2, scale=2.5)
    x, logits = normal(tokens, hidden, seed=1) / 8, 2 * normal(tokens, 6, seed=2)
    logits[:, 3] += 2  # a hot expert: both paths in one run
    ours = cpu(lambda o: o.experts(o.input(x), o.route(o.input(logits), router), experts), tokens, target)
    ops = reference(tokens)
    routing = ops.route(torch.from_numpy(logits), router)
    bar = bar_of_products(target, kind, 1)  # an expert of many may have a few
    same(ours, ops.experts(torch.from_numpy(x), Routing(routing.ids, routing.weights), experts), bar)


SPLITS = {"v3-like": (7168 // 8, 200), "v2-lite": (512, 1408), "tiny": (96, 50)}


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
@pytest.mark.parametrize("shape", SPLITS)
def test_experts_on_any_number_of_nodes_are_the_same_bits(target, kind, shape):
    """Whoever has which rows, and whichever node the workers are on: a row's own arithmetic stays what it is."""
    hidden, inter = SPLITS[shape]
    router = Router(5, 3)
    for tokens in (1, 7, 70):
        x, logits = normal(tokens, hidden, seed=1) / 8, normal(tokens, 5, seed=2)
        logits[:, 3] += 2

        def run(num_parts, worker_nodes=(), x=x, logits=logits, tokens=tokens):
            experts = make_experts(5, hidden, inter, kind, num_parts)
            network = lambda o: o.experts(o.input(x), o.route(o.input(logits), router), experts)  # noqa: E731
            return CpuProgram(network, tokens, POOL, target, worker_nodes).apply(tokens)

        one = run(1)
        for num_parts, worker_nodes in ((2, (0, 1)), (2, (1, 1)), (3, (0, 2)), (4, ()), (7, (-1, 6))):
            assert (run(num_parts, worker_nodes) == one).all(), (tokens, num_parts)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_no_number_of_workers_waits_forever_or_changes_a_bit(num_workers):
    experts, router = make_experts(24, 256, 160, "fp8", 3), Router(24, 8)
    pool = native.Pool([-1] * num_workers)
    for tokens in (1, 5, 40, 200):
        x, logits = normal(tokens, 256, seed=1) / 8, normal(tokens, 24, seed=2)
        network = lambda o, x=x, logits=logits: o.experts(o.input(x), o.route(o.input(logits), router), experts)  # noqa: E731
        truth = CpuProgram(network, tokens, POOL, "").apply(tokens)
        program = CpuProgram(network, tokens, pool, "", [n % 3 for n in range(num_workers)])
        for _ in range(20):
            assert (program.apply(tokens) == truth).all()


def test_parts_that_do_not_fit_together_are_refused():
    good = make_experts(2, 192, 128, "fp8", 2)

    def record(*parts):
        x, logits = normal(1, 192), normal(1, 2)
        experts = ExpertSet(2, parts)
        cpu(lambda o: o.experts(o.input(x), o.route(o.input(logits), Router(2, 1)), experts), 1, TARGETS[0])

    first, second = good.parts
    record(first, second)
    for wrong, message in (
        ((second, first), "follow each other"),
        ((first,), "do not fit together"),
        ((first, first), "follow each other"),
        ((first, replace(second, blob=second.blob[:1])), "rows of all experts"),
        ((first, replace(second, blob=second.blob[:, :256].copy())), "behind its stride"),
        ((first, replace(second, up=replace(second.up, rows=0))), "same rows|do not fit"),
        ((), "need a part"),
    ):
        with pytest.raises(ValueError, match=message):
            record(*wrong)


def test_a_cancel_ends_the_experts_of_a_long_prompt():
    experts, router = make_experts(8, 512, 512, "fp8", 2), Router(8, 4)
    x, logits = normal(300, 512), normal(300, 8)
    program = CpuProgram(lambda o: o.experts(o.input(x), o.route(o.input(logits), router), experts), 300, POOL)
    segments = [Segment(_Pages(5), 0, 300)]
    ids, truth = np.zeros(300, np.int32), program.apply(300)
    for delay_s in np.linspace(0, 0.02, 20):
        flag = native.Flag()
        timer = threading.Timer(delay_s, flag.set)
        timer.start()
        try:
            for _ in range(50):
                program.forward(ids, segments, cancel=flag, all_logits=True)
        except CancelledError:
            pass
        else:
            pytest.fail("50 runs ended before the cancel")
        timer.join()
        assert (program.apply(300) == truth).all()


ATTENTION = {  # heads, nope, rope, v, rank
    "guide": (4, 32, 32, 64, 128),
    "odd": (3, 20, 6, 13, 96),
    "one": (1, 1, 2, 1, 1),
    "v3-like": (5, 128, 64, 128, 512),
}


def attention(dims, dtype, kind, counts):
    """One attention layer as a network, its segments and its number of tokens."""
    heads, nope, rope, v, rank = dims
    shape = MlaShape(heads, nope, rope, v, rank, (nope + rope) ** -0.5)
    kv_b = make_weight(heads * (nope + v), rank, kind)
    cache = LatentCache(1, sum((start + count) // PAGE_TOKENS + 2 for start, count in counts), rank + rope, dtype)
    data = cache.layer(0).data
    history = normal(*data.shape, seed=7)
    data[:] = history if dtype == "float32" else bf16(history)
    segments, total = [], sum(count for _, count in counts)
    for start, count in counts:
        cache.take(1)  # leaves gaps: pages are not in order
        table = cache.new_table()
        table.reserve(start + count)
        segments.append(Segment(table, start, count))
    q = normal(total, heads * (nope + rope), seed=1)
    latent, key = normal(total, rank, seed=2), normal(total, rope, seed=3)

    def network(ops, from_array):
        ops.append_latent(cache.layer(0), from_array(latent), from_array(key))
        return ops.mla_attention(from_array(q), cache.layer(0), kv_b, shape)

    return network, segments, total


def attend(network, segments, total, pool, target):
    program = CpuProgram(lambda ops: network(ops, ops.input), total, pool, target)
    return program.forward(np.zeros(total, np.int32), segments, all_logits=True)


def attend_reference(network, segments, total):
    positions = torch.cat([torch.arange(s.start, s.start + s.count) for s in segments]).float()
    return network(ReferenceOps(Run(torch.zeros(total), positions, segments, True, None, None)), torch.from_numpy)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("kind", ["fp8", "bf16"])
@pytest.mark.parametrize("counts", [[(0, 1)], [(0, 3), (63, 1), (64, 8)], [(0, 70)], [(130, 9), (5, 60), (200, 2)]])
def test_mla_attention(target, name, dtype, kind, counts):
    layer = attention(ATTENTION[name], dtype, kind, counts)
    same(attend(*layer, POOL, target), attend_reference(*layer), 1e-5)
    for segment in layer[1]:
        assert len(segment.table.pages) * PAGE_TOKENS >= segment.start + segment.count


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("counts", [[(2500, 1)], [(1400, 30)], [(300, 260), (500, 3), (90, 430)]])
def test_long_attention_is_the_same_on_any_number_of_workers(target, dtype, counts):
    """Many pieces of the cache, in all forms: one token, a short turn, a prompt; two blocks of heads."""
    layer = attention((33, 32, 8, 32, 128), dtype, "fp8", counts)
    ours = attend(*layer, POOL, target)
    same(ours, attend_reference(*layer), 1e-5)
    assert (ours == attend(*layer, native.Pool([-1]), target)).all()
    assert (ours == attend(*layer, native.Pool([-1] * 5), target)).all()
