"""Which tile a kernel takes, by chip and by rows: a table that is read, not a search at run time.

At DeepSeek-V3's shapes every entry keeps to the chip's shared memory and spills no register, which
tests/kernels/gpu/test_compiled.py holds. Matrices whose columns 128 does not divide
are read with masks; then some spill.
"""

from dataclasses import dataclass
from typing import Literal

from localmoe.kernels.gpu.chips import Chip

MatmulKind = Literal["gate_up", "matmul"]
Form = Literal["fp8", "decoded", "bf16"]


@dataclass(frozen=True)
class Tile:
    """Rows, columns and depth of one block's work, and how it is run."""

    block_m: int
    block_n: int  # divides 128, so that one FP8 scale holds for all columns at a depth
    block_k: int  # divides 128
    num_warps: int
    num_stages: int


# Columns: up to this many rows an expert (or of a dense matrix), the tile. The last one has no limit.
Rows = tuple[tuple[int, Tile], ...]
NO_LIMIT = 1 << 62

MATMULS: dict[tuple[MatmulKind, Form], dict[int, Rows]] = {
    ("gate_up", "fp8"): {
        89: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 4)), (NO_LIMIT, Tile(128, 64, 128, 8, 3))),
        90: ((64, Tile(64, 64, 128, 8, 4)), (NO_LIMIT, Tile(128, 64, 128, 8, 4))),
        120: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 4)), (NO_LIMIT, Tile(128, 64, 128, 8, 3))),
    },
    ("gate_up", "decoded"): {
        80: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 4)), (NO_LIMIT, Tile(128, 64, 64, 8, 4))),
        86: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 3)), (NO_LIMIT, Tile(128, 64, 64, 8, 3))),
        89: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 3)), (NO_LIMIT, Tile(128, 64, 64, 8, 3))),
        90: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 4)), (NO_LIMIT, Tile(128, 64, 64, 8, 4))),
        120: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 64, 64, 4, 3)), (NO_LIMIT, Tile(128, 64, 64, 8, 3))),
    },
    ("gate_up", "bf16"): {
        80: ((16, Tile(16, 64, 64, 4, 5)), (64, Tile(64, 64, 64, 4, 4)), (NO_LIMIT, Tile(128, 64, 64, 8, 4))),
        86: ((16, Tile(16, 64, 64, 4, 4)), (64, Tile(64, 64, 64, 8, 3)), (NO_LIMIT, Tile(128, 64, 64, 8, 3))),
        89: ((16, Tile(16, 64, 64, 4, 4)), (64, Tile(64, 64, 64, 8, 3)), (NO_LIMIT, Tile(128, 64, 64, 8, 3))),
        90: ((16, Tile(16, 64, 64, 4, 5)), (64, Tile(64, 64, 64, 4, 5)), (NO_LIMIT, Tile(128, 64, 64, 8, 4))),
        120: ((16, Tile(16, 64, 64, 4, 4)), (64, Tile(64, 64, 64, 8, 3)), (NO_LIMIT, Tile(128, 64, 64, 8, 3))),
    },
    ("matmul", "fp8"): {
        89: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 128, 8, 3))),
        90: ((64, Tile(64, 64, 128, 4, 5)), (NO_LIMIT, Tile(128, 128, 128, 8, 4))),
        120: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 128, 8, 3))),
    },
    ("matmul", "decoded"): {
        80: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 64, 8, 4))),
        86: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 64, 8, 3))),
        89: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 64, 8, 3))),
        90: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 64, 8, 4))),
        120: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 4, 3)), (NO_LIMIT, Tile(128, 128, 64, 8, 3))),
    },
    ("matmul", "bf16"): {
        80: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 64, 8, 4))),
        86: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 128, 64, 8, 3)), (NO_LIMIT, Tile(128, 128, 64, 8, 3))),
        89: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 128, 64, 8, 3)), (NO_LIMIT, Tile(128, 128, 64, 8, 3))),
        90: ((16, Tile(16, 64, 128, 4, 5)), (64, Tile(64, 128, 64, 8, 4)), (NO_LIMIT, Tile(128, 128, 64, 8, 4))),
        120: ((16, Tile(16, 64, 128, 4, 3)), (64, Tile(64, 128, 64, 8, 3)), (NO_LIMIT, Tile(128, 128, 64, 8, 3))),
    },
}


def matmul_tile(kind: MatmulKind, form: Form, chip: Chip, rows: int) -> Tile:
    """The tile for `rows` rows an expert, or of a dense matrix."""
    assert form != "fp8" or chip.has_fp8, f"{chip.name} has no FP8 matrix units"
    return next(tile for limit, tile in MATMULS[kind, form][chip.capability] if rows <= limit)


# Of products by programs that stay: one size for any number of rows. What waits for a tile's end waits as long as a
# tile takes, so where a multiprocessor is slow tiles are half as high as for many rows above.
PERSISTENT: dict[tuple[MatmulKind, Form], dict[int, Tile]] = {
    ("gate_up", "fp8"): {89: Tile(64, 64, 128, 8, 3), 90: Tile(128, 64, 128, 8, 4), 120: Tile(64, 64, 64, 8, 4)},
    ("gate_up", "decoded"): {
        80: Tile(64, 64, 64, 8, 4),
        86: Tile(64, 64, 64, 8, 3),
        89: Tile(64, 64, 64, 8, 3),
        90: Tile(128, 64, 64, 8, 4),
        120: Tile(64, 64, 32, 8, 4),
    },
    ("gate_up", "bf16"): {
        80: Tile(64, 64, 64, 8, 4),
        86: Tile(64, 64, 64, 8, 3),
        89: Tile(64, 64, 64, 8, 3),
        90: Tile(128, 64, 64, 8, 4),
        120: Tile(64, 64, 64, 8, 3),
    },
    ("matmul", "fp8"): {89: Tile(64, 128, 128, 8, 3), 90: Tile(128, 128, 128, 8, 4), 120: Tile(64, 128, 128, 8, 3)},
    ("matmul", "decoded"): {
        80: Tile(64, 128, 64, 8, 4),
        86: Tile(64, 128, 64, 8, 3),
        89: Tile(64, 128, 64, 8, 3),
        90: Tile(128, 128, 64, 8, 3),
        120: Tile(64, 128, 64, 8, 3),
    },
    ("matmul", "bf16"): {
        80: Tile(64, 128, 64, 8, 4),
        86: Tile(64, 128, 64, 8, 3),
        89: Tile(64, 128, 64, 8, 3),
        90: Tile(128, 128, 64, 8, 4),
        120: Tile(64, 128, 64, 8, 3),
    },
}


def persistent_tile(kind: MatmulKind, form: Form, chip: Chip) -> Tile:
    """The tile that programs which stay take."""
    assert form != "fp8" or chip.has_fp8, f"{chip.name} has no FP8 matrix units"
    return PERSISTENT[kind, form][chip.capability]


@dataclass(frozen=True)
class AttentionTile:
    """Queries (prefill) or heads of one query (decode), cached tokens a step, and how a block is run."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


DECODE_ATTENTION = {
    80: AttentionTile(32, 32, 8, 2),
    86: AttentionTile(32, 32, 8, 2),
    89: AttentionTile(32, 32, 8, 2),
    90: AttentionTile(32, 32, 8, 2),
    120: AttentionTile(32, 32, 8, 2),
}

PREFILL_ATTENTION = {
    80: AttentionTile(128, 32, 8, 3),
    86: AttentionTile(128, 32, 8, 3),
    89: AttentionTile(128, 32, 8, 3),
    90: AttentionTile(128, 64, 8, 3),
    120: AttentionTile(128, 32, 8, 3),
}
