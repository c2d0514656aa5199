"""Machines for the tests of doctor: recorded ones, and what its commands make of them."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from recorded import recorded

from localmoe.cli.doctor.checks import check_machine
from localmoe.cli.doctor.command import Survey
from localmoe.engine.machine_rates import rates_of
from localmoe.hardware import Machine
from localmoe.settings import Settings

FREE_BYTES = 100 * 10**9  # room for the small models; a recorded machine has as much as the one that runs this test
PAPER = "dual-epyc-9355-2x5090"


@cache
def machine(name: str) -> Machine:
    with TemporaryDirectory() as folder:
        found = recorded(name, Path(folder)).probe()
    return replace(found, disks=tuple(replace(disk, free_bytes=FREE_BYTES) for disk in found.disks))


def survey(name: str, settings: Settings = Settings()) -> Survey:  # noqa: B008 - frozen
    found = machine(name)
    return Survey(found, settings, None, rates_of(found), check_machine(found))


def statuses(found: Machine) -> dict[str, str]:
    """What is not ok."""
    return {check.id: check.status for check in check_machine(found) if check.status != "ok"}


def shell_lines(found: Machine) -> list[str]:
    """All commands among the fixes."""
    return [command for check in check_machine(found) for command in check.fix.commands]


def write_model(folder: Path, config: dict, index: dict | None = None) -> Path:
    """A folder in which nothing but the small files was downloaded."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
