"""What the kernels are once compiled, at DeepSeek-V3's shapes and the shipped tiles. No GPU is needed."""

import csv
import os
import random
from pathlib import Path

import pytest

from localmoe.errors import NotReadyError
from localmoe.kernels.gpu.chips import CHIPS, Chip, chip_for
from localmoe.kernels.gpu.tiles import DECODE_ATTENTION, MATMULS, NO_LIMIT, PREFILL_ATTENTION
from localmoe.kernels.gpu.v3 import Case, cases

TABLE = Path(__file__).parents[3] / "assets/bench/gpu_kernels.csv"
ALL = [(case, chip) for case in cases() for chip in CHIPS.values() if case.runs_on(chip)]
QUICK = 10  # compiled in a quick run, drawn with the seed
SEED = int(os.environ.get("LOCALMOE_TEST_SEED", "0"))

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")


def check(case: Case, chip: Chip) -> None:
    from localmoe.kernels.gpu.compiled import compile_for

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


def test_every_chip_has_a_tile_for_any_number_of_rows():
    for (_, form), by_chip in MATMULS.items():
        assert set(by_chip) == {c for c, chip in CHIPS.items() if chip.has_fp8 or form != "fp8"}
        for rows in by_chip.values():
            limits = [limit for limit, _ in rows]
            assert limits == sorted(limits)
            assert limits[-1] == NO_LIMIT
            assert all(128 % tile.block_n == 0 and 128 % tile.block_k == 0 for _, tile in rows)
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
