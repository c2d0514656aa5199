"""One line to change."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class RenameScreen(ModalScreen[str | None]):
    """Enter takes the new title, Esc leaves the old one."""

    DEFAULT_CSS = """
    RenameScreen {
        align: center middle;
        & > Vertical {
            width: 70; max-width: 90%; height: auto; border: round $accent; background: $surface; padding: 0 2;
        }
        & Static { height: auto; }
        & Input, & Input:focus { border: none; height: 1; padding: 0; background: $boost; }
        & .keys { color: $text-muted; margin-top: 1; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave it", id="rename.no")]

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("The chat's title", markup=False)
            yield Input(self._title)
            yield Static("Enter rename  ·  Esc leave it", classes="keys", markup=False)

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)
