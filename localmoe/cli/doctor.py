"""`localmoe doctor`: what this machine is. What it could run, and how fast, is not said yet."""

import json
import re
from collections import Counter
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from localmoe.cli.checks import Check, check_machine
from localmoe.cli.streams import to_stdout
from localmoe.errors import NotReadyError
from localmoe.hardware import Machine, probe
from localmoe.hub.catalog import local_models
from localmoe.hub.hf_cache import cache_folder
from localmoe.settings import data_dir, load_settings

WIDTH = 80
_INDENT = 17
_NOISE = re.compile(
    r"\((R|TM|tm)\)|@.*|\b(AMD|Intel|NVIDIA|GeForce|Processor|CPU|\d+-Core|with Radeon.*)(?=\s|$)", re.IGNORECASE
)


def doctor(*, as_json: bool) -> int:
    """Prints the findings; the exit code tells whether localmoe can run at all."""
    settings = load_settings()
    machine = probe(paths={"models": cache_folder(), "data": data_dir()})
    checks = check_machine(machine, settings.isa)
    to_stdout(json.dumps(report_object(machine, checks)) + "\n" if as_json else report(machine, checks))
    return NotReadyError.exit_code if any(check.status == "fail" for check in checks) else 0


def report_object(machine: Machine, checks: tuple[Check, ...]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "machine": machine.to_json(),
        "checks": [{k: v for k, v in asdict(check).items() if k != "label"} for check in checks],
        "models": [
            {"name": m.entry.name, "size_bytes": m.entry.size_bytes, "present": m.state == "present"}
            for m in local_models()
        ],
    }


def report(machine: Machine, checks: tuple[Check, ...]) -> str:
    """For people, within 80 columns."""
    title = "localmoe doctor"
    lines = [f"{title}{title_of(machine):>{WIDTH - len(title)}}", ""]
    for check in checks:
        lines += _lines(check)
    return "\n".join(lines) + "\n"


def title_of(machine: Machine) -> str:
    """The machine in a few words: 2x EPYC 9355 · 2x RTX 5090."""
    cpu = _plain(machine.cpu.model or "unknown CPU")
    parts = [f"{machine.cpu.num_sockets}x {cpu}" if (machine.cpu.num_sockets or 1) > 1 else cpu]
    for name, count in Counter(_plain(gpu.name) for gpu in machine.gpus).items():
        parts.append(f"{count}x {name}" if count > 1 else name)
    return " · ".join(parts)[: WIDTH - 20]


def _plain(name: str) -> str:
    return " ".join(_NOISE.sub(" ", name).split()) or name


def _lines(check: Check) -> list[str]:
    head = f" {check.status:<5} {check.label:<9} "
    found = wrap(check.detail, WIDTH - _INDENT, break_long_words=True) or [""]
    fix = wrap(f"fix: {check.fix}", WIDTH - _INDENT) if check.fix else []
    return [f"{head}{found[0]}", *(" " * _INDENT + line for line in (*found[1:], *fix))]
