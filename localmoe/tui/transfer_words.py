"""How a transfer is doing, or how it ended."""

from collections.abc import Iterator
from pathlib import Path

from textual.content import Content

from localmoe.hub.amount import amount
from localmoe.hub.verify import Report
from localmoe.tui.check_words import check_text
from localmoe.tui.printable import printable
from localmoe.tui.transfer_lines import lines
from localmoe.tui.transfers import Transfer

_FAINT = "$foreground 60%"
_MOST_LINES = 3  # two files and the total
GOES_ON = "It goes on while you chat. P pauses it, and so does leaving localmoe."
IS_CHECKED = "The check goes on while you chat. P stops it."
D_REPAIRS = "D fetches only what is damaged."


def transfer_lines(transfer: Transfer, width: int) -> Iterator[Content]:
    """Each of at most `width` cells, or to be folded."""
    if transfer.is_active:
        yield from _moving(transfer, width)
    else:
        yield from _ended(transfer)


def _moving(transfer: Transfer, width: int) -> Iterator[Content]:
    verb = "Fetching" if transfer.kind == "download" else "Checking"
    if transfer.state == "pausing":
        verb = "Pausing" if transfer.kind == "download" else "Stopping"
    yield Content.styled(f"{verb} {printable(transfer.name)}", "$primary")
    if transfer.progress:
        for line in lines(transfer.progress, width, _MOST_LINES):
            yield Content(line)
    if transfer.notice:
        yield Content.styled(printable(transfer.notice), "$text-warning")
    if transfer.state == "running":
        yield Content.styled(GOES_ON if transfer.kind == "download" else IS_CHECKED, _FAINT)


def _ended(transfer: Transfer) -> Iterator[Content]:
    report = transfer.result
    if isinstance(report, Report):
        yield from _found(transfer.name, report)
    elif isinstance(report, Path):
        yield Content.styled(complete(transfer), "$text-success")
    elif transfer.kind == "check" and transfer.state == "paused":
        yield Content.styled("The check was stopped. V begins it again.", "$text-warning")
    elif transfer.state == "paused":
        yield Content.styled(f"{_sentence(printable(transfer.message))} P goes on.", "$text-warning")
    else:
        yield Content.styled(printable(transfer.message), "$text-error")
        if transfer.hint:
            yield Content.styled(printable(transfer.hint), _FAINT)


def _found(name: str, report: Report) -> Iterator[Content]:
    for line in check_text(name, report).splitlines():
        yield Content.styled(printable(line), "$text-success" if report.is_right else "$text-error")
    if not report.is_right:
        yield Content.styled(D_REPAIRS, _FAINT)


def complete(transfer: Transfer) -> str:
    """Such as "deepseek-v3.1 is complete: 688.6 GB fetched, checksums are right."."""
    return f"{printable(transfer.name)} is complete: {amount(transfer.fetched_bytes)} fetched, checksums are right."


def ended(transfer: Transfer) -> tuple[str, str, bool]:
    """For whoever looks at another screen: what happened, what to do, and whether it is good news."""
    report = transfer.result
    if isinstance(report, Report):
        first, *_ = check_text(transfer.name, report).splitlines()
        return printable(first), "" if report.is_right else "See models", report.is_right
    if isinstance(report, Path):
        return complete(transfer), "", True
    return printable(transfer.message), printable(transfer.hint), False


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
