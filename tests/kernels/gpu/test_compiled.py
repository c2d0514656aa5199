"""What the kernels are once compiled, at DeepSeek-V3's shapes and the shipped tiles. No GPU is needed."""

import csv
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from localmoe.errors import NotReadyError
from localmoe.kernels.gpu import (
    absorb,
    combine,
    decode_attention,
    experts,
    latent,
    linear,
    norm,
    persistent,
    prefill_attention,
    quantise,
    route,
)
from localmoe.kernels.gpu.board import Board
from localmoe.kernels.gpu.chips import CHIPS, Chip, chip_for
from localmoe.kernels.gpu.compiled import compile_for
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.matrix import FP8, Activations, Weights
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.gpu.tiles import DECODE_ATTENTION, MATMULS, NO_LIMIT, PERSISTENT, PREFILL_ATTENTION
from localmoe.kernels.gpu.v3 import Case, cases, empty
from localmoe.kernels.ops import MlaShape, Router

TABLE = Path(__file__).parents[3] / "assets/bench/gpu_kernels.csv"
ALL = [(case, chip) for case in cases() for chip in CHIPS.values() if case.runs_on(chip)]
QUICK = 10  # compiled in a quick run, drawn with the seed
SEED = 0

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")


def check(case: Case, chip: Chip) -> None:
    facts = compile_for(chip, case.launch(chip))
    where = f"{case.name} on {chip.name}: {facts}"
    assert facts.shared_bytes <= chip.shared_bytes, where
    assert not facts.spills, where
    assert facts.blocks_sm >= 1, where
    types = {kind for kind in ("e4m3", "bf16", "f16", "tf32") for i in facts.instructions if f".{kind}." in f"{i}."}
    assert types == ({case.matrix_type} if case.matrix_type else set()), where


@pytest.mark.parametrize(
    ("case", "chip"),
    random.Random(SEED).sample(ALL, QUICK),
    ids=lambda value: value.name,
)
def test_a_kernel_fits_its_chip(case, chip):
    check(case, chip)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "chip"), ALL, ids=lambda value: value.name)
def test_every_kernel_fits_every_chip(case, chip):
    check(case, chip)


def board(chip: Chip) -> Board:
    return Board(Gpu(torch.device("meta"), chip), *(empty(1, dtype=torch.int32) for _ in range(3)))


def single() -> dict[str, Callable[[Chip], Launch]]:
    """One of everything: Triton compiles arguments that are 1, and those that 16 does not divide, in other ways."""
    f32, i32 = torch.float32, torch.int32
    shape, one = MlaShape(1, 24, 2, 40, 72, 0.1), Weights(empty(1, 1, 7))
    fp8 = Weights(empty(1, 33, 7, dtype=FP8), empty(1, 1, 1, dtype=f32))
    codes, scale = empty(1, 7, dtype=FP8), empty(1, 1, dtype=f32)
    ids, shares, offsets = empty(1, 1, dtype=i32), empty(1, 1, dtype=f32), empty(2, dtype=i32)
    kv_b, row = Weights(empty(1, 64, 72)), empty(1, 7)
    attention = empty(1, 1, 74), empty(1, 64, 74), empty(1, 1, dtype=i32), empty(1, dtype=i32)
    work = empty(1, 1, 1, 72, dtype=f32), empty(1, 1, 1, dtype=f32), empty(1, 1, 72)
    return {
        "gate_up": lambda chip: experts.gate_up(
            chip, Activations(codes, scale), empty(1, dtype=i32), offsets, fp8, fp8, empty(1, 33), 1
        ),
        "down": lambda chip: experts.down(chip, Activations(row), offsets, one, empty(1, 1), 1),
        "persistent": lambda chip: persistent.persistent(
            experts.down(chip, Activations(row), offsets, one, empty(1, 1), 1, stays=True), board(chip), chip, 1
        ),
        "linear": lambda chip: linear.linear(chip, Activations(row), fp8, empty(1, 33))[0],
        "add_splits": lambda chip: linear.linear(chip, Activations(row), one, empty(1, 1), empty(1, 1, 1, dtype=f32))[
            1
        ],
        "decode_attention": lambda chip: decode_attention.decode_attention(chip, *attention, 0.1, *work)[0],
        "merge_splits": lambda chip: decode_attention.decode_attention(chip, *attention, 0.1, *work)[1],
        "prefill_attention": lambda chip: prefill_attention.prefill_attention(
            chip, empty(1, 26), empty(1, 64), empty(1, 2), shape, empty(1, 40)
        ),
        "absorb_queries": lambda _: absorb.absorb_queries(empty(1, 1, 24), kv_b, shape, empty(1, 1, 72)),
        "expand_outputs": lambda _: absorb.expand_outputs(empty(1, 1, 72), kv_b, shape, empty(1, 1, 40)),
        "quantise": lambda _: quantise.quantise(row, codes, scale),
        "combine": lambda _: combine.combine(row, ids, shares, row),
        "silu_mul": lambda _: norm.silu_mul(row, row),
        "route": lambda _: route.route(shares, Router(1, 1), None, ids, shares),
        "rms_norm": lambda _: norm.rms_norm(row, empty(7, dtype=f32), 1e-6, row),
        "rotate": lambda _: norm.rotate(empty(1, 2), empty(1, 2, dtype=f32), 2, False),
        "append_latent": lambda _: latent.append_latent(
            row, empty(5, dtype=f32), 1.0, empty(1, 2, dtype=f32), True, empty(1, dtype=i32), empty(1, 64, 7)
        ),
    }


@pytest.mark.parametrize("kernel", list(single()))
def test_one_of_everything_compiles(kernel):
    chip = CHIPS[120]
    assert compile_for(chip, single()[kernel](chip)).shared_bytes <= chip.shared_bytes


def test_every_chip_has_a_tile_for_any_number_of_rows():
    for (_, form), by_chip in MATMULS.items():
        assert set(by_chip) == {c for c, chip in CHIPS.items() if chip.has_fp8 or form != "fp8"}
        for rows in by_chip.values():
            limits = [limit for limit, _ in rows]
            assert limits == sorted(limits)
            assert limits[-1] == NO_LIMIT
            assert all(128 % tile.block_n == 0 and 128 % tile.block_k == 0 for _, tile in rows)
    for key, by_chip in PERSISTENT.items():
        assert set(by_chip) == set(MATMULS[key])
        assert all(128 % tile.block_n == 0 and 128 % tile.block_k == 0 for tile in by_chip.values())
    assert set(DECODE_ATTENTION) == set(PREFILL_ATTENTION) == set(CHIPS)


def test_an_unknown_gpu_is_refused_or_runs_what_its_elders_do():
    assert chip_for(8, 7).capability == 86
    assert chip_for(12, 1).capability == 120
    with pytest.raises(NotReadyError, match=r"compute capability 7\.5"):
        chip_for(7, 5)


def test_the_table_of_facts_has_every_case():
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kernel"], row["case"], row["chip"]) for row in rows] == [
        (case.kernel, case.case, chip.name) for case, chip in ALL
    ]
    assert all(int(row["stack_bytes"]) == 0 for row in rows)


def test_the_longest_wait_is_told_beside_the_kernel():
    """A line for each chip: microseconds of a gate and up tile, and of a down tile, in each form that it takes."""
    told = {line.split()[0]: line.split() for line in persistent.__doc__.splitlines() if line.startswith("    sm_")}
    found = {case.name: case for case in cases()}
    for chip in CHIPS.values():
        forms = ["fp8", "decoded"] if chip.has_fp8 else ["decoded"]
        tiles = [found[f"persistent_{k}-{form}-1024"].tile_s(chip) for form in forms for k in ("gate_up", "down")]
        assert told[chip.name][-len(tiles) :] == [f"{1e6 * tile_s:.1f}" for tile_s in tiles]
