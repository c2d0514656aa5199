"""One finding about the machine: how it is, what was found, and what to change."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from localmoe.tui.printable import printable
from localmoe.tui.surveyor import Finding

_COLOURS = {"ok": "$text-success", "warn": "$text-warning", "fail": "$text-error"}


class FindingRow(Vertical):
    """Folds to its width. Commands begin far left, so that each stays in one piece, to be copied whole."""

    DEFAULT_CSS = """
    FindingRow {
        height: auto;
        & > Horizontal { height: auto; }
        & .status { width: 6; }
        & .label { width: 11; }
        & .found { width: 1fr; height: auto; }
        & > .commands { height: auto; padding-left: 4; text-style: bold; }
    }
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self.finding = finding

    def compose(self) -> ComposeResult:
        finding = self.finding
        with Horizontal():
            yield Static(Content.styled(finding.status, _COLOURS[finding.status]), classes="status")
            yield Static(printable(finding.label), classes="label", markup=False)
            yield Static(_found(finding), classes="found")
        if finding.fix.commands:
            yield Static(printable("\n".join(finding.fix.commands)), classes="commands", markup=False)


def _found(finding: Finding) -> Content:
    lines = [Content(printable(finding.detail))]
    fix = finding.fix
    if fix.text or fix.commands:
        words = (fix.text or "run").removesuffix(":") + ":" * bool(fix.commands)
        lines.append(Content.styled(f"fix: {printable(words)}", "$text-warning"))
    return Content("\n").join(lines)
