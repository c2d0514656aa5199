"""What went wrong and what to do about it."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localmoe.events import Failed
from localmoe.tui.printable import printable


class Failure(Vertical):
    """A message, its hint, and what became of the question."""

    DEFAULT_CSS = """
    Failure {
        height: auto; margin: 0 0 1 0; padding: 0 1; max-width: 110; border: round $error;
        border-title-color: $text-error;
        & > Static { height: auto; }
        & > .hint { color: $text-muted; }
    }
    """

    def __init__(self, failed: Failed, title: str, remark: str = "") -> None:
        super().__init__()
        self.border_title = title
        self._lines = [(printable(failed.message), "message"), (printable(failed.hint), "hint"), (remark, "remark")]

    def compose(self) -> ComposeResult:
        for text, kind in self._lines:
            if text:
                yield Static(text, classes=kind, markup=False)
