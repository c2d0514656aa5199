"""What every dialect must show against the oracle; each takes a `make_program` and nothing else of the dialect.

    case = case_of("v3", tmp_path_factory)
    check_one_go(case, make_program)

`check_*` fail with the measured error; where they return something, it is the number of near ties decided otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import Answer, Oracle
from tiny import SHAPES, make_checkpoint

from localmoe.hub.checkpoint import Checkpoint
from localmoe.kernels.ops import Program, Segment
from localmoe.model.cache import LatentCache, PageTable
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.decoder import Model, load_model
from localmoe.model.tensors import expected_tensors
from localmoe.weights.load import load

NUM_TOKENS = 100  # two pages, the second partly filled
NUM_PAGES = 12
SAME_AS_ORACLE = 1e-4
SAME_AS_ORACLE_BF16_CACHE = 1e-2
SAME_AS_ONE_GO = 1e-5
NEAR_TIE = 1e-5

MakeProgram = Callable[[Model, LatentCache, int], Program]  # (model, cache, max_tokens)


@dataclass(frozen=True)
class Case:
    """One checkpoint, loaded, and one sequence of random tokens with the oracle's answer."""

    folder: Path
    config: ModelConfig
    model: Model
    ids: np.ndarray  # [NUM_TOKENS] int32

    @cached_property
    def answer(self) -> Answer:
        """The oracle's."""
        return Oracle(self.folder)(self.ids)

    def cache(self, dtype: str = "float32", num_pages: int = NUM_PAGES) -> LatentCache:
        """An empty latent cache of this model's width."""
        return LatentCache(self.config.num_layers, num_pages, self.config.latent_width, dtype)


_cases: dict[tuple[str, int], Case] = {}


def case_of(name: str, tmp_path_factory: pytest.TempPathFactory, seed: int = 0) -> Case:
    """The case of one of SHAPES; made once for a test run."""
    if (name, seed) not in _cases:
        folder = make_checkpoint(tmp_path_factory.mktemp(name) / "model", seed, **SHAPES[name])
        _cases[name, seed] = open_case(folder, seed)
    return _cases[name, seed]


def open_case(folder: Path, seed: int = 0, nodes: Sequence[int] = ()) -> Case:
    """The case of any checkpoint, its experts split over `nodes`."""
    checkpoint = Checkpoint.open(folder)
    config = read_config(checkpoint.config)
    store = load(checkpoint, expected_tensors(config), nodes=nodes)
    ids = np.random.default_rng(seed).integers(0, config.vocab, NUM_TOKENS).astype(np.int32)
    return Case(folder, config, load_model(config, store), ids)


def check_one_go(case: Case, make_program: MakeProgram) -> int:
    """All tokens in one forward, near enough to the oracle; another choice of experts only at a near tie."""
    return check_against_oracle(case, make_program, [NUM_TOKENS])


def check_chunks(case: Case, make_program: MakeProgram) -> None:
    """Chunks that end before, at and after a page's end say what one go says."""
    check_same(case, make_program, [1, 2, 60, 1, 5, 31])


def check_token_by_token(case: Case, make_program: MakeProgram) -> None:
    """A prompt and then one token at a time, over a page's end."""
    check_same(case, make_program, [50] + [1] * 20 + [NUM_TOKENS - 70])


def check_last_only(case: Case, make_program: MakeProgram) -> None:
    """Without all_logits only each segment's last row comes, the same one."""
    cache = case.cache()
    program = make_program(case.model, cache, NUM_TOKENS)
    every, _ = run(program, cache.new_table(), case.ids, [NUM_TOKENS])
    table = reserved(cache.new_table(), NUM_TOKENS)
    assert_near(program.forward(case.ids, [Segment(table, 0, NUM_TOKENS)]), every[-1:], SAME_AS_ONE_GO)


def check_batch(case: Case, make_program: MakeProgram) -> None:
    """Sessions that prefill and sessions that decode, in one forward: each gets what it gets alone."""
    counts = [(0, 40), (63, 1), (64, 1), (30, 50), (99, 1)]  # tokens in the cache, tokens of this run
    cache = case.cache()
    program = make_program(case.model, cache, NUM_TOKENS)
    alone, _ = run(program, cache.new_table(), case.ids, [NUM_TOKENS])
    segments = []
    for start, count in counts:
        table = cache.new_table()
        run(program, table, case.ids[:start], [start] if start else [])
        segments.append(Segment(reserved(table, start + count), start, count))
    ids = np.concatenate([case.ids[start : start + count] for start, count in counts])
    logits = program.forward(ids, segments)
    for row, (start, count) in zip(logits, counts, strict=True):
        assert_near(row, alone[start + count - 1], SAME_AS_ONE_GO)
    every = program.forward(ids, segments, all_logits=True)  # writes the same rows again
    expected = np.concatenate([alone[start : start + count] for start, count in counts])
    assert_near(every, expected, SAME_AS_ONE_GO)


def check_fork(case: Case, make_program: MakeProgram) -> None:
    """Two answers to one prefix do not disturb each other, nor does a rewound session remember."""
    cache = case.cache()
    program = make_program(case.model, cache, NUM_TOKENS)
    alone, _ = run(program, cache.new_table(), case.ids, [NUM_TOKENS])
    first = cache.new_table()
    run(program, first, case.ids[:70], [70])
    second = first.fork()
    run(program, second, case.ids[::-1][:20].copy(), [20], start=70)
    rest, _ = run(program, first, case.ids[70:], [30], start=70)
    assert_near(rest, alone[70:], SAME_AS_ONE_GO)
    second.rewind(66)
    rest, _ = run(program, second, case.ids[66:], [34], start=66)
    assert_near(rest, alone[66:], SAME_AS_ONE_GO)


def check_bf16_cache(case: Case, make_program: MakeProgram) -> None:
    """With a BF16 latent cache, and the oracle's experts forced so that rounding cannot change the choice."""
    cache = case.cache("bf16")
    program = make_program(case.model, cache, NUM_TOKENS)
    for sizes in ([NUM_TOKENS], [60] + [1] * 8 + [32]):
        logits, _ = run(program, cache.new_table(), case.ids, sizes, forced=case.answer.experts)
        assert_near(logits, case.answer.logits, SAME_AS_ORACLE_BF16_CACHE)


def check_against_oracle(case: Case, make_program: MakeProgram, sizes: Sequence[int]) -> int:
    """The FP32 bar. Returns how many choices of experts differ; all of them must go back to near ties."""
    cache = case.cache()
    program = make_program(case.model, cache, max(sizes))
    logits, chosen = run(program, cache.new_table(), case.ids, sizes)
    differing = _differing(case.answer, chosen)
    if not differing and (chosen is not None or relative(logits, case.answer.logits) <= SAME_AS_ORACLE):
        assert_near(logits, case.answer.logits, SAME_AS_ORACLE)
        return 0
    forced, _ = run(program, cache.new_table(), case.ids, sizes, forced=case.answer.experts)
    assert_near(forced, case.answer.logits, SAME_AS_ORACLE)
    ties = [(m, t) for m in range(len(case.answer.rules)) for t in range(len(case.ids))]
    assert any(case.answer.gap(m, t) < NEAR_TIE for m, t in ties), "experts were chosen otherwise without a near tie"
    return max(1, len(differing))


def check_same(case: Case, make_program: MakeProgram, sizes: Sequence[int]) -> None:
    """The tokens in pieces of `sizes` give what they give in one go."""
    cache = case.cache()
    program = make_program(case.model, cache, NUM_TOKENS)
    expected, _ = run(program, cache.new_table(), case.ids, [NUM_TOKENS])
    logits, _ = run(program, cache.new_table(), case.ids, sizes)
    assert_near(logits, expected, SAME_AS_ONE_GO)


def run(
    program: Program,
    table: PageTable,
    ids: np.ndarray,
    sizes: Sequence[int],
    *,
    start: int = 0,
    forced: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits [T, V] of `ids` in pieces of `sizes`, and the experts chosen [moe layers, T, K] if the program tells."""
    logits, chosen, done = [], [], 0
    for size in sizes:
        segment = Segment(reserved(table, start + done + size), start + done, size)
        piece = slice(done, done + size)
        some = None if forced is None or not len(forced) else np.ascontiguousarray(forced[:, piece])
        logits.append(program.forward(ids[piece], [segment], all_logits=True, forced_experts=some))
        chosen.append(getattr(program, "last_experts", None))
        done += size
    told = chosen and all(c is not None for c in chosen)
    return np.concatenate(logits) if logits else np.empty((0, 0)), np.concatenate(chosen, axis=1) if told else None


def reserved(table: PageTable, num_tokens: int) -> PageTable:
    """The table, with room for `num_tokens` tokens."""
    table.reserve(num_tokens)
    return table


def relative(ours: np.ndarray, truth: np.ndarray) -> float:
    """Norm of the difference over norm."""
    return float(np.linalg.norm(ours - truth) / np.linalg.norm(truth))


def assert_near(ours: np.ndarray, truth: np.ndarray, bar: float) -> None:
    """Within `bar`, relative, and no row far worse than the whole."""
    assert ours.shape == truth.shape
    assert np.isfinite(ours).all()
    assert relative(ours, truth) <= bar, f"{relative(ours, truth):.2e} > {bar:.0e}"
    worst = max(relative(a, b) for a, b in zip(np.atleast_2d(ours), np.atleast_2d(truth), strict=True))
    assert worst <= 10 * bar, f"one row: {worst:.2e}"


def _differing(answer: Answer, chosen: np.ndarray | None) -> list[tuple[int, int]]:
    """(moe layer, token) where other experts were chosen. The first of them must be a near tie: later ones follow."""
    if chosen is None:
        return []
    found = [(int(m), int(t)) for m, t in np.argwhere((np.sort(chosen) != np.sort(answer.experts)).any(-1))]
    for m, t in found:
        follows = any(earlier < m and token <= t for earlier, token in found)
        assert follows or answer.gap(m, t) < NEAR_TIE, f"layer {m}, token {t}: gap {answer.gap(m, t):.1e}"
    return found


def random_shape(seed: int) -> dict[str, Any]:
    """Overrides for `make_checkpoint`: any architecture, sizes that divide by nothing in particular."""
    pick = np.random.default_rng([7, seed])
    heads, groups = int(pick.integers(1, 6)), int(pick.choice([1, 2, 3, 4]))
    size, layers = int(pick.integers(2, 9)), int(pick.integers(1, 5))
    top_groups = int(pick.integers(1, groups + 1))
    shape: dict[str, Any] = {
        "hidden_size": heads * int(pick.integers(8, 64)),  # transformers' V2 wants a multiple of the heads
        "num_hidden_layers": layers,
        "first_k_dense_replace": int(pick.integers(0, layers + 1)),
        "intermediate_size": int(pick.integers(1, 400)),
        "moe_intermediate_size": int(pick.integers(1, 300)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": pick.choice([None, int(pick.integers(1, 200))]),
        "kv_lora_rank": int(pick.integers(1, 200)),
        "qk_nope_head_dim": int(pick.integers(1, 80)),
        "qk_rope_head_dim": 2 * int(pick.integers(1, 40)),
        "v_head_dim": int(pick.integers(1, 80)),
        "n_routed_experts": groups * size,
        "n_group": groups,
        "topk_group": top_groups,
        "num_experts_per_tok": int(pick.integers(1, min(top_groups * size, 8) + 1)),
        "n_shared_experts": int(pick.integers(0, 3)),
        "norm_topk_prob": bool(pick.integers(2)),
        "routed_scaling_factor": float(pick.uniform(0.5, 3)),
        "rms_norm_eps": float(pick.choice([1e-6, 1e-5])),
        "rope_interleave": bool(pick.integers(4)),
        "tie_word_embeddings": bool(pick.integers(4) == 0),
        "vocab_size": int(pick.integers(263, 500)),
        "rope_theta": float(pick.choice([10000.0, 50000.0])),
        "rope_scaling": pick.choice([None, _random_yarn(pick)]),
        "num_nextn_predict_layers": int(pick.integers(2)),
        "shards": int(pick.integers(1, 4)),
    }
    if pick.integers(3) == 0:
        greedy = bool(pick.integers(2))
        shape |= {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "scoring_func": "softmax"}
        shape |= {"topk_method": "greedy" if greedy else "group_limited_greedy", "norm_topk_prob": False}
        for key in ("kv_lora_rank", "qk_nope_head_dim"):
            shape[key] += shape[key] % 2  # transformers' V2 views rows as complex numbers
    if pick.integers(2):
        shape["quantization_config"] = None
    else:
        shape["ue8m0"] = bool(pick.integers(2))
    return shape


def _random_yarn(pick: np.random.Generator) -> dict[str, Any]:
    fast = float(pick.choice([1, 8, 32]))
    yarn = {"type": "yarn", "factor": float(pick.choice([2, 32, 40])), "beta_fast": fast, "beta_slow": 1.0}
    yarn["original_max_position_embeddings"] = int(pick.choice([64, 4096]))
    mscale = pick.choice([None, 0.707, 1.0])
    return (
        yarn if mscale is None else yarn | {"mscale": float(mscale), "mscale_all_dim": float(pick.choice([0.707, 1]))}
    )


EVERY_WAY = [check_chunks, check_token_by_token, check_last_only, check_batch, check_fork, check_bf16_cache]
