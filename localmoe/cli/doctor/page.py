"""The report for people: findings and fixes within 80 columns."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import wrap

from localmoe.cli.doctor.check import Check
from localmoe.hardware import Machine

WIDTH = 80
TITLE = "localmoe doctor"
COMMAND_INDENT = 4  # so that the longest one stays on its line, to be copied whole
_INDENT = 17
_NOISE = re.compile(
    r"\((R|TM|tm)\)|@.*|\b(AMD|Intel|NVIDIA|GeForce|Processor|CPU|\d+-Core|with Radeon.*)(?=\s|$)", re.IGNORECASE
)


def head(machine: Machine) -> Iterator[str]:
    """The title's line and an empty one."""
    yield f"{TITLE}{title_of(machine):>{WIDTH - len(TITLE)}}"
    yield ""


def title_of(machine: Machine) -> str:
    """The machine in a few words: 2x EPYC 9355 · 2x RTX 5090."""
    cpu = _plain(machine.cpu.model or "unknown CPU")
    parts = [f"{machine.cpu.num_sockets}x {cpu}" if (machine.cpu.num_sockets or 1) > 1 else cpu]
    for name, count in Counter(_plain(gpu.name) for gpu in machine.gpus).items():
        parts.append(f"{count}x {name}" if count > 1 else name)
    return " · ".join(parts)[: WIDTH - len(TITLE) - 2]


def check_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Each finding with its fix."""
    for check in checks:
        found = wrap(check.detail, WIDTH - _INDENT, break_long_words=True) or [""]
        yield f" {check.status:<5} {check.label:<9} {found[0]}"
        yield from (" " * _INDENT + line for line in found[1:])
        if check.fix:
            text = (check.fix.text or "run").removesuffix(":") + ":" * bool(check.fix.commands)
            yield from (" " * _INDENT + line for line in wrap(f"fix: {text}", WIDTH - _INDENT))
            yield from (" " * COMMAND_INDENT + command for command in check.fix.commands)


def _plain(name: str) -> str:
    return " ".join(_NOISE.sub(" ", name).split()) or name
