"""One question before something is lost."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


class ConfirmScreen(ModalScreen[bool]):
    """Enter for yes, Esc for no."""

    DEFAULT_CSS = """
    ConfirmScreen {
        align: center middle;
        & > Vertical {
            width: 52; max-width: 90%; height: auto; border: round $accent; background: $surface; padding: 0 2;
        }
        &.-wide > Vertical { width: 84; }
        & Static { height: auto; }
        & .keys { color: $text-muted; margin-top: 1; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("escape,n", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(self, question: str, yes: str, no: str, *, is_wide: bool = False) -> None:
        super().__init__(classes="-wide" if is_wide else "")
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Static(f"Enter {self._yes}  ·  Esc {self._no}", classes="keys", markup=False)

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)
