"""`localmoe pull`: the plan, the transfer, and where the model is."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, Any

from localmoe.cli.board import Board
from localmoe.cli.interrupt import Interrupts
from localmoe.cli.streams import to_stderr, to_stdout
from localmoe.cli.targets import Repository, repository_of
from localmoe.engine.arrival import wanted_tensors
from localmoe.errors import HubError, LocalmoeError, OutOfMemoryError, UnsupportedModelError, UsageError
from localmoe.events import Event, encode
from localmoe.hub.amount import amount
from localmoe.hub.catalog import entry_of, folder_of
from localmoe.hub.download.patience import Patience
from localmoe.hub.download.plan import DownloadPlan, make_plan, plan_json
from localmoe.hub.download.progress import Pulled
from localmoe.hub.download.pull import Pull
from localmoe.hub.hf_cache import cache_folder, snapshot, state_of
from localmoe.hub.json_file import shown
from localmoe.model.config import read_config
from localmoe.tui.download_words import plan_lines

if TYPE_CHECKING:
    from localmoe.engine.outlook import Outlook
    from localmoe.settings import Settings

MOST_AT_ONCE = 32
patience = Patience()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How it is to be done and told."""

    at_once: int = 4
    yes: bool = False
    dry_run: bool = False
    json: bool = False
    stream: bool = False
    quiet: bool = False
    tells: bool = True  # on stdout
    xet: bool = False


def pull(model: str, wanted: Wanted) -> int:
    """Fetches what is missing; stdout has the model's folder, or JSON."""
    _check(wanted)
    if (entry := entry_of(model)) and entry.is_embedded:
        return _is_here(entry.name, folder_of(entry), wanted)
    target = repository_of(model)
    from localmoe.settings import load_settings

    board = Board(is_quiet=wanted.quiet)
    plan = _planned(target, board)
    if plan is None:
        return _is_here(target.name, snapshot(target.repository, target.revision), wanted)
    outlook = outlook_of(plan, load_settings())
    for line in plan_lines(plan, outlook):
        board.say(line)
    if wanted.dry_run:
        plan.require_room()
        if wanted.json:
            _print(plan_json(plan))
        return 0
    plan.require_room()
    if outlook.refusal and not plan.is_complete:
        _confirm(plan, outlook, wanted)
    _run(plan, board, wanted)
    return 0


def _check(wanted: Wanted) -> None:
    if wanted.stream and not wanted.json:
        raise UsageError("--stream belongs to --json", "add --json")
    if not 1 <= wanted.at_once <= MOST_AT_ONCE:
        raise UsageError(f"--parallel must be from 1 to {MOST_AT_ONCE}", "4 is a good number")


def _is_here(name: str, folder: Path | None, wanted: Wanted) -> int:
    """For a model that nothing need be asked about."""
    data = {"model": name, "path": str(folder), "state": "present", "fetched_bytes": 0}
    _print(data) if wanted.json else to_stdout(f"{folder}\n")
    return 0


def _planned(target: Repository, board: Board) -> DownloadPlan | None:
    """None: the hub may not be asked, and need not be."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and state_of(snapshot(target.repository, target.revision)) == "present":
        board.say(f"{target.name} is here; the hub was not asked, because HF_HUB_OFFLINE is set.")
        return None
    board.wait(f"asking the hub about {shown(target.repository)}")
    try:
        plan = make_plan(target.name, target.repository, target.revision, patience, Flag(), board.say)
    finally:
        board.clear()
    if plan.listing.renamed_to:
        board.say(f"{shown(target.repository)} is called {shown(plan.listing.renamed_to)} on the hub now.")
    return plan


def outlook_of(plan: DownloadPlan, settings: "Settings") -> "Outlook":
    """As doctor sees it. UnsupportedModelError before anything of it is fetched."""
    from localmoe.engine.machine_rates import rates_of
    from localmoe.engine.measured import load_measured
    from localmoe.engine.outlook import outlook
    from localmoe.hardware import probe

    try:
        config = read_config(plan.config)
    except UnsupportedModelError as error:
        hint = f"{error.hint} For other programs: hf download {plan.listing.repository}".strip()
        raise UnsupportedModelError(error.message, hint) from error
    machine = probe(paths={"models": cache_folder()})
    rates = rates_of(machine, load_measured(machine))
    return outlook(machine, settings, rates, plan.name, config, on_disk=plan.is_complete)


def _confirm(plan: DownloadPlan, outlook: "Outlook", wanted: Wanted) -> None:
    """A model that this machine cannot run may still be wanted: for another one, or for later."""
    if wanted.yes:
        return
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        assert outlook.refusal is not None
        raise OutOfMemoryError(outlook.refusal.message, f"{outlook.refusal.hint} `--yes` fetches it all the same.")
    if not asked(f"fetch {amount(plan.missing_bytes)} all the same?"):
        raise LocalmoeError("nothing was fetched.", "`localmoe doctor` lists what this machine can run.")


def asked(question: str) -> bool:
    """A question on stderr, No being the answer that is assumed."""
    to_stderr(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _run(plan: DownloadPlan, board: Board, wanted: Wanted) -> None:
    fetched = 0

    def show(event: Event) -> None:
        nonlocal fetched
        if isinstance(event, Pulled):
            fetched = event.fetched_bytes
        if wanted.stream:
            _print(encode(event))
        board.show(event)

    running = Pull(
        plan,
        show,
        expected=wanted_tensors,
        at_once=wanted.at_once,
        patience=patience,
        by_xet=wanted.xet,
    )
    try:
        with Interrupts() as interrupts, interrupts.cancelling(running):
            folder = running.run()
    except HubError as error:
        hint = f"{error.hint}; then `localmoe pull {plan.name}` goes on: what is here stays"
        raise HubError(error.message, hint) from error
    finally:
        board.clear()
    board.say(f"{plan.name} is complete: {len(plan.files)} files, {amount(plan.total_bytes)}, checksums are right.")
    if wanted.json:
        _print(plan_json(plan) | {"state": "present", "fetched_bytes": fetched})
    elif wanted.tells:
        to_stdout(f"{folder}\n")


def _print(data: dict[str, Any]) -> None:
    to_stdout(json.dumps(data) + "\n")
