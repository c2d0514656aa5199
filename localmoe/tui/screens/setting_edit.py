"""One setting to change: its values to choose from, or a line to write."""

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localmoe.errors import LocalmoeError
from localmoe.tui.printable import printable


class SettingEditScreen(ModalScreen[str | None]):
    """Dismissed with the text that was chosen or written, once `check` takes it; None: nothing is to change."""

    DEFAULT_CSS = """
    SettingEditScreen {
        align: center middle;
        & > Vertical {
            width: 70; max-width: 95%; height: auto; max-height: 95%; border: round $accent;
            border-title-color: $accent; background: $surface; padding: 0 2;
        }
        & Static { height: auto; }
        & Input, & Input:focus { border: none; height: 1; padding: 0; margin-top: 1; background: $boost; }
        & OptionList, & OptionList:focus {
            border: none; height: auto; max-height: 12; padding: 0; margin-top: 1; background: $surface;
            background-tint: $foreground 0%; scrollbar-size-vertical: 1;
        }
        & OptionList > .option-list--option-highlighted, & OptionList:focus > .option-list--option-highlighted {
            background: $primary 25%; color: $foreground;
        }
        & .trouble { color: $text-error; }
        & .keys { color: $text-muted; margin-top: 1; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Leave it", id="setting.no")]

    def __init__(
        self, name: str, about: str, allowed: str, now: str, choices: tuple[str, ...], check: Callable[[str], object]
    ) -> None:
        """`now` is what config.toml has, or what is in force."""
        super().__init__()
        self._name, self._about, self._allowed = name, about, allowed
        self._now, self._choices, self._check = now, choices, check

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = self._name
            yield Static(self._about, markup=False)
            if self._choices:
                yield OptionList(*[Option(choice) for choice in self._choices], markup=False)
            else:
                yield Static(f"It is {self._allowed}.", markup=False)
                yield Input(self._now)
            yield Static("", classes="trouble", markup=False)
            yield Static("Enter writes it to config.toml  ·  Esc leave it", classes="keys", markup=False)

    def on_mount(self) -> None:
        if self._now in self._choices:
            self.query_one(OptionList).highlighted = self._choices.index(self._now)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._finish(self._choices[event.option_index])

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._finish(event.value)

    def _finish(self, text: str) -> None:
        try:
            self._check(text)
        except LocalmoeError as error:
            self.query_one(".trouble", Static).update(printable(error.message))
        else:
            self.dismiss(text)
