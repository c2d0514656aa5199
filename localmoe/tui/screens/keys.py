"""All keys on one page, from the table of commands."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localmoe.tui.commands import COMMANDS

_IN_THE_PROMPT = (
    ("Enter", "Send"),
    ("Ctrl+J", "New line"),
    ("PgUp PgDn", "Scroll the chat"),
    ("Tab", "Go to the questions to try"),
    ("Ctrl+Z", "Undo in the prompt"),
    ("Ctrl+C", "Copy what is selected"),
)
_KEY_CELLS = 12


class KeysScreen(ModalScreen[None]):
    """F1 or Esc closes it."""

    DEFAULT_CSS = """
    KeysScreen {
        align: center middle;
        & > VerticalScroll {
            width: 56; max-width: 95%; height: auto; max-height: 95%;
            border: round $primary; border-title-color: $primary; background: $surface; padding: 0 2;
        }
        & Static { height: auto; }
        & .note { color: $text-muted; margin-top: 1; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close", id="keys.close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = "Keys"
            yield Static(_table(), markup=False)
            yield Static("Ctrl+P finds all commands by name. Esc closes this.", classes="note", markup=False)


def _table() -> Content:
    commands = [(command.key_name, command.help) for command in COMMANDS if command.key]
    return Content("\n").join(
        [Content.assemble((key.ljust(_KEY_CELLS), "bold $primary"), text) for key, text in (*_IN_THE_PROMPT, *commands)]
    )
