"""`localmoe verify`: which file is damaged, and fetching only that."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.cli.board import Board
from localmoe.cli.interrupt import Interrupts
from localmoe.cli.pull import Wanted as PullWanted
from localmoe.cli.pull import asked, pull
from localmoe.cli.streams import to_stdout
from localmoe.engine.arrival import known_tensors
from localmoe.errors import ModelNotFoundError, UsageError, VerificationError
from localmoe.events import Event, encode
from localmoe.hub.catalog import resolve
from localmoe.hub.hf_cache import state_of
from localmoe.hub.json_file import shown
from localmoe.hub.repair import remove_damaged, repository_of_folder
from localmoe.hub.verify import Report, Verification
from localmoe.tui.check_words import check_text


@dataclass(frozen=True, slots=True)
class Wanted:
    """How it is to be done and told."""

    repair: bool = False
    json: bool = False
    stream: bool = False
    quiet: bool = False


def verify(model: str, wanted: Wanted) -> int:
    """Prints what was found. VerificationError for a damaged model, ModelNotFoundError for one that is not here."""
    if wanted.stream and not wanted.json:
        raise UsageError("--stream belongs to --json", "add --json")
    source = resolve(model)
    if state_of(source.folder) == "absent":
        raise ModelNotFoundError(f"there is no folder {shown(source.folder)}.", "`localmoe models` lists what is here.")
    board = Board(is_quiet=wanted.quiet)
    report = _run(source.folder, board, wanted)
    if not report.is_right and _is_to_be_repaired(report, board, wanted):
        _repair(report, model, wanted)
        report = _run(source.folder, board, wanted)
    to_stdout(json.dumps(report_json(source.name, report)) + "\n" if wanted.json else check_text(source.name, report))
    if not report.is_right:
        raise _error(source.name, model, report)
    return 0


def _run(folder: Path, board: Board, wanted: Wanted) -> Report:
    def show(event: Event) -> None:
        if wanted.stream:
            to_stdout(json.dumps(encode(event)) + "\n")
        board.show(event)

    running = Verification(folder, show, known_tensors)
    try:
        with Interrupts() as interrupts, interrupts.cancelling(running):
            return running.run()
    finally:
        board.clear()


def report_json(name: str, report: Report) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "model": name,
        "path": str(report.folder),
        "ok": report.is_right,
        "files": report.num_files,
        "bytes": report.num_bytes,
        "findings": [{"file": one.file, "problem": one.problem} for one in report.findings],
        "without_checksum": list(report.unknown),
    }


def _is_to_be_repaired(report: Report, board: Board, wanted: Wanted) -> bool:
    if not repository_of_folder(report.folder):
        return False
    if wanted.repair or wanted.json or not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return wanted.repair
    for one in report.findings:
        board.say(shown(one))
    which = "that file" if len(report.findings) == 1 else f"these {len(report.findings)} files"
    return asked(f"fetch {which} again?")


def _repair(report: Report, model: str, wanted: Wanted) -> None:
    """Removes the damaged files from the cache, then pulls just this version."""
    remove_damaged(report)
    pull(
        f"{repository_of_folder(report.folder)}@{report.folder.name}",
        PullWanted(yes=True, quiet=wanted.quiet, tells=False),
    )


def _error(name: str, model: str, report: Report) -> VerificationError:
    files = report.findings
    which = shown(files[0].file) if len(files) == 1 else f"{len(files)} files, {shown(files[0].file)} first"
    hint = f"localmoe verify {shown(model)} --repair fetches only {'that file' if len(files) == 1 else 'those files'}."
    if not repository_of_folder(report.folder):
        hint = "copy or download what is damaged again."
    return VerificationError(f"{name} is damaged: {which}.", hint)
