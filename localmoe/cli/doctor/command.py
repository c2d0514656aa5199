"""`localmoe doctor`: probe or measure, plan, predict, print."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from localmoe.cli.doctor.check import Check
from localmoe.cli.doctor.checks import check_machine
from localmoe.cli.doctor.page import WIDTH, check_lines, head
from localmoe.cli.doctor.table import table_json, table_lines
from localmoe.cli.streams import Aside, to_stdout
from localmoe.engine.cost.rates import Rates
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.measured import Measured, load_measured
from localmoe.engine.outlook import Outlook, outlooks, plannable
from localmoe.errors import NotReadyError, UsageError
from localmoe.hardware import Machine, probe
from localmoe.hub.catalog import load_catalog, local_models
from localmoe.hub.hf_cache import cache_folder
from localmoe.settings import Settings, data_dir, load_settings
from localmoe.tui.figures import size


@dataclass(frozen=True)
class Wanted:
    """What is to be said, and how."""

    model: str | None = None  # None: the catalogue
    measure: bool = False
    explain: bool = False
    json: bool = False
    quiet: bool = False


@dataclass(frozen=True)
class Survey:
    """What all reports are made from."""

    machine: Machine
    settings: Settings
    measured: Measured | None
    rates: Rates
    checks: tuple[Check, ...]


def doctor(flags: Mapping[str, Any], wanted: Wanted) -> int:
    """Prints the report; the exit code. NotReadyError when the model that is asked for cannot run."""
    if wanted.explain and wanted.model is None:
        raise UsageError("--explain explains the predictions of one model", "localmoe doctor --explain -m MODEL")
    settings = load_settings(flags)
    machine = probe(paths={"models": cache_folder(), "data": data_dir()})
    measured = _measure(machine, settings, quiet=wanted.quiet) if wanted.measure else load_measured(machine)
    survey = Survey(
        machine, settings, measured, rates_of(machine, measured), check_machine(machine, settings.isa, measured)
    )
    if wanted.model is not None:
        from localmoe.cli.doctor.one_model import report_model

        return report_model(survey, wanted.model, explain=wanted.explain, as_json=wanted.json)
    return report_catalogue(survey, as_json=wanted.json)


def report_catalogue(survey: Survey, *, as_json: bool) -> int:
    """The machine and the whole catalogue."""
    local = local_models()
    present = [model.entry.name for model in local if model.state == "present"]
    found = () if _cannot_run(survey) else outlooks_of(survey, present)
    if as_json:
        sizes = {m.entry.name: {"size_bytes": m.entry.size_bytes, "present": m.state == "present"} for m in local}
        models = [table_json(one) | sizes[one.name] for one in found]
        to_stdout(json.dumps(machine_json(survey) | {"models": models, "notes": notes_json(survey, found)}) + "\n")
    else:
        to_stdout("\n".join(page(survey, found)) + "\n")
    return exit_code(survey)


def _measure(machine: Machine, settings: Settings, *, quiet: bool) -> Measured:
    """About ten seconds, its progress on a terminal's stderr."""
    from localmoe.bench.machine import measure_and_save

    watcher = _Watcher(is_quiet=quiet)
    try:
        return measure_and_save(machine, settings, watcher)
    finally:
        watcher.clear()


class _Watcher:
    """Progress on one line that goes away, for a terminal; warnings for everybody but who wants none."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._aside, self._is_quiet = Aside(is_quiet=is_quiet), is_quiet
        self.clear = self._aside.clear

    def progress(self, text: str) -> None:
        self._aside.clear()  # the next one is to be seen at once
        self._aside.progress(f"measuring {text}")

    def warn(self, text: str) -> None:
        if not self._is_quiet:
            self._aside.line(text)


def outlooks_of(survey: Survey, present: list[str]) -> tuple[Outlook, ...]:
    """Of all catalogue models."""
    return outlooks(survey.machine, survey.settings, survey.rates, plannable(load_catalog().values()), present)


def page(survey: Survey, found: tuple[Outlook, ...]) -> Iterator[str]:
    """For people, within 80 columns."""
    yield from head(survey.machine)
    yield from check_lines(survey.checks)
    if found:
        yield ""
        yield from table_lines(found)
        yield ""
        yield from footnotes(survey, found)


def footnotes(survey: Survey, found: tuple[Outlook, ...]) -> Iterator[str]:
    """What to know of the table, within 80 columns."""
    for note in notes_of(found, survey.measured):
        yield from (f" {line}" for line in wrap(note, WIDTH - 1, break_on_hyphens=False))


def notes_json(survey: Survey, found: tuple[Outlook, ...]) -> list[str]:
    """The same, each in one piece."""
    return list(notes_of(found, survey.measured))


def notes_of(found: Sequence[Outlook], measured: Measured | None) -> Iterator[str]:
    """What `footnotes` are made from."""
    yield from (one.refusal.message for one in found if isinstance(one.refusal, UsageError))
    if large := [one for one in found if one.missing_disk_bytes]:
        most = max(one.missing_disk_bytes for one in large)
        what = large[0].name if len(large) == 1 else f"{len(large)} of these models"
        yield f"the models' disk has no room for {what}: {size(most)} more would do"
    if any(one.plan and one.plan.gpus for one in found):
        yield "plans with GPUs have not run on a real card yet: --plan cpu goes without"
    if any(one.plan and one.plan.kind == "disk" for one in found):
        yield "disk + DRAM runs with --plan disk: what memory does not hold is read as needed"
    if any(one.is_estimate and one.plan for one in found):
        yield "~ are estimates from data sheets: `localmoe doctor --measure` measures"
    elif measured:
        yield f"measured on this machine on {measured.when[:10]}"


def machine_json(survey: Survey) -> dict[str, Any]:
    """What every report begins with."""
    return {
        "machine": survey.machine.to_json(),
        "checks": [check.to_json() for check in survey.checks],
        "measured": survey.measured.to_json() if survey.measured else None,
    }


def exit_code(survey: Survey) -> int:
    """Whether localmoe can run here at all."""
    return NotReadyError.exit_code if _cannot_run(survey) else 0


def _cannot_run(survey: Survey) -> bool:
    return any(check.status == "fail" for check in survey.checks)
