"""`localmoe quantize`: a BF16 model as FP8, and how near to it that is."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.cli.board import Board
from localmoe.cli.interrupt import Interrupts
from localmoe.cli.streams import to_stdout
from localmoe.conversion.accuracy import by_layer, overall
from localmoe.conversion.convert import Conversion
from localmoe.conversion.plan import ConversionPlan, plan_conversion
from localmoe.errors import UsageError
from localmoe.events import Event, encode
from localmoe.hub.amount import amount
from localmoe.hub.catalog import resolve
from localmoe.hub.json_file import shown

_ROW = "{:>5}  {:>8}  {:>7}  {:>7}  {}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How it is to be done and told."""

    dry_run: bool = False
    json: bool = False
    stream: bool = False
    quiet: bool = False


def quantize(model: str, out: Path | None, wanted: Wanted) -> int:
    """Writes the new folder; stdout has the error of each layer, or JSON."""
    if wanted.stream and not wanted.json:
        raise UsageError("--stream belongs to --json", "add --json")
    source = resolve(model)
    plan = plan_conversion(model, source.folder, (out or _default_out(source.name)).expanduser().absolute())
    board = Board(is_quiet=wanted.quiet)
    for line in plan_lines(plan):
        board.say(line)
    plan.require_room()
    if not wanted.dry_run:
        _run(plan, board, wanted)
    elif wanted.json:
        _print(plan_json(plan))
    return 0


def _default_out(name: str) -> Path:
    """In the current folder: moonlight-16b-a3b-instruct-fp8."""
    return Path(f"{name.partition('@')[0].rpartition('/')[2]}-fp8")


def plan_lines(plan: ConversionPlan) -> Iterator[str]:
    """What would be written, and where to."""
    made = f"; {len(plan.targets) - len(plan.missing)} are made already" if plan.journal.shards else ""
    yield f"{shown(plan.name)}: {amount(plan.source_bytes)} in BF16 become {amount(plan.total_bytes)} in FP8"
    yield f"{len(plan.targets)} files{made} · to {shown(plan.out)} · free there: {amount(plan.free_bytes)}"


def plan_json(plan: ConversionPlan) -> dict[str, Any]:
    """The plan as `--json` has it."""
    return {
        "model": plan.name,
        "source": str(plan.source),
        "path": str(plan.out),
        "source_bytes": plan.source_bytes,
        "total_bytes": plan.total_bytes,
        "missing_bytes": plan.missing_bytes,
        "free_bytes": plan.free_bytes,
        "files": [{"name": t.name, "bytes": t.nbytes, "is_made": plan.has(t)} for t in plan.targets],
    }


def _run(plan: ConversionPlan, board: Board, wanted: Wanted) -> None:
    def show(event: Event) -> None:
        if wanted.stream:
            _print(encode(event))
        board.show(event)

    running = Conversion(plan, show)
    try:
        with Interrupts() as interrupts, interrupts.cancelling(running):
            running.run()
    finally:
        board.clear()
    if wanted.json:
        _print(result_json(plan))
    else:
        to_stdout(table(plan))
    board.say(f"{shown(plan.name)} is converted: localmoe chat -m {shown(plan.out)}")


def result_json(plan: ConversionPlan) -> dict[str, Any]:
    """What `--json` prints in the end; errors are parts of the weights' own norm."""
    matrices = plan.journal.matrices
    return {
        "model": plan.name,
        "source": str(plan.source),
        "path": str(plan.out),
        "source_bytes": plan.source_bytes,
        "total_bytes": plan.total_bytes,
        "matrices": len(matrices),
        "relative_error": overall(matrices),
        "layers": [
            {
                "layer": one.layer,
                "matrices": one.num_matrices,
                "relative_error": one.relative,
                "worst": {"name": one.worst.name, "relative_error": one.worst.relative},
            }
            for one in by_layer(matrices)
        ],
    }


def table(plan: ConversionPlan) -> str:
    """For people, within 80 columns: the error of each layer's weights, and of the worst matrix in it."""
    matrices = plan.journal.matrices
    rows = [_ROW.format("layer", "matrices", "error", "worst", "which")]
    for one in by_layer(matrices):
        name = one.worst.name.removeprefix(f"model.layers.{one.layer}.").removesuffix(".weight")
        rows.append(
            _ROW.format(one.layer, one.num_matrices, _percent(one.relative), _percent(one.worst.relative), name)
        )
    rows.append(_ROW.format("all", len(matrices), _percent(overall(matrices)), "", ""))
    return "\n".join(row.rstrip() for row in rows) + "\n"


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def _print(data: dict[str, Any]) -> None:
    to_stdout(json.dumps(data) + "\n")
