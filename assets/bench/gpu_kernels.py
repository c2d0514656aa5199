"""Compile every GPU kernel at DeepSeek-V3's shapes for every chip, and write what came out to a CSV file.

    python assets/bench/gpu_kernels.py [--csv assets/bench/gpu_kernels.csv]

Needs no GPU. `occupancy` counts the warps that registers, shared memory and the chip's limits let one multiprocessor
hold, over the most it can hold. `floor_us` is no measurement: it is the time at the card's peak rates (see
localmoe/kernels/gpu/chips.py) for the case's arithmetic or its bytes, whichever is longer, and `bound` says which.
`tile_us` is the same for one tile of an experts' product on one multiprocessor of many that are as busy: what programs
that stay (persistent_*) let others wait for. `--add` compiles only cases that the file lacks, and keeps its rows.
Takes a few minutes.
"""

import argparse
import csv
import os
from pathlib import Path

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

from localmoe.kernels.gpu.chips import CHIPS, Chip
from localmoe.kernels.gpu.compiled import compile_for
from localmoe.kernels.gpu.v3 import Case, cases

TILE = ("BLOCK_M", "BLOCK_H", "BLOCK_N", "BLOCK_K")


def row(case: Case, chip: Chip) -> dict[str, object]:
    """One line of the table."""
    launch = case.launch(chip)
    facts = compile_for(chip, launch)
    return {
        "kernel": case.kernel,
        "case": case.case,
        "chip": chip.name,
        "card": chip.card,
        "tile": "x".join(str(launch.constants[name]) for name in TILE if name in launch.constants),
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "registers": facts.registers,
        "stack_bytes": facts.stack_bytes,
        "shared_bytes": facts.shared_bytes,
        "blocks_sm": facts.blocks_sm,
        "occupancy": round(facts.occupancy, 3),
        "instructions": " ".join(sorted(facts.instructions)),
        "gflop": f"{case.flops / 1e9:.4g}",
        "mbytes": f"{case.num_bytes / 1e6:.4g}",
        "floor_us": f"{case.floor_s(chip) * 1e6:.4g}",
        "bound": "memory" if case.is_memory_bound(chip) else "arithmetic",
        "tile_us": "" if (tile_s := case.tile_s(chip)) is None else f"{tile_s * 1e6:.4g}",
    }


def rows_of(table: Path) -> dict[tuple[str, str, str], dict[str, object]]:
    """Those that are in a table, by kernel, case and chip."""
    with table.open(newline="") as file:
        return {(row["kernel"], row["case"], row["chip"]): dict(row) for row in csv.DictReader(file)}


def main() -> None:
    """Compiles and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_name("gpu_kernels.csv"))
    parser.add_argument("--add", action="store_true")
    asked = parser.parse_args()
    known = rows_of(asked.csv) if asked.add else {}
    found = [(case, chip) for case in cases() for chip in CHIPS.values() if case.runs_on(chip)]
    rows = [known.get((case.kernel, case.case, chip.name)) or row(case, chip) for case, chip in found]
    with asked.csv.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(f"{len(rows)} launches")


if __name__ == "__main__":
    main()
