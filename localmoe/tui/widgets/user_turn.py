"""What the user said, exactly as written."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localmoe.tui.printable import printable


class UserTurn(Vertical):
    """Never markup, never Markdown: a question shows as it was typed."""

    DEFAULT_CSS = """
    UserTurn {
        height: auto; margin: 0 0 1 0; padding: 0 1; border-left: outer $primary; background: $surface; max-width: 110;
        & > .role { height: 1; text-style: bold; color: $primary; }
        & > .said { height: auto; }
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Static("You", classes="role", markup=False)
        yield Static(printable(self.text), classes="said", markup=False)
