"""A question does not fit into the context: what to do is the user's choice, never ours."""

from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localmoe.tui.fit import Misfit

Way = Literal["leave_out", "shorten", "send"]


class MisfitScreen(ModalScreen[Way | None]):
    """Up, Down and Enter, or a click, choose; Esc goes back to the prompt."""

    DEFAULT_CSS = """
    MisfitScreen {
        align: center middle;
        & > Vertical {
            width: 74; max-width: 95%; height: auto; max-height: 95%;
            border: round $accent; border-title-color: $accent; background: $surface; padding: 0 2;
        }
        & Static { height: auto; margin-bottom: 1; }
        & OptionList, & OptionList:focus { height: auto; border: none; padding: 0; background: $surface; }
        & .keys { color: $text-muted; margin: 1 0 0 0; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Back", id="misfit.back")]

    def __init__(self, misfit: Misfit) -> None:
        super().__init__()
        self._misfit = misfit
        self._ways = _ways(misfit)

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "This does not fit"
            yield Static(_why(self._misfit), markup=False)
            yield OptionList(*(Option(words) for _, words in self._ways), markup=False)
            yield Static("Enter choose  ·  Esc back to the prompt", classes="keys", markup=False)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._ways[event.option_index][0])


def _why(misfit: Misfit) -> str:
    earlier = misfit.num_tokens - misfit.question_tokens
    return (
        f"Your question has {misfit.question_tokens:,} tokens and what was said before {earlier:,}: "
        f"{misfit.num_tokens:,} together. The context holds {misfit.limit:,}, "
        f"{misfit.room:,} of them for the answer. {misfit.excess:,} are too many."
    )


def _ways(misfit: Misfit) -> list[tuple[Way | None, str]]:
    ways: list[tuple[Way | None, str]] = []
    if misfit.unread_turns is not None:
        then = f"{misfit.tokens_then:,} tokens stay"
        ways.append(("leave_out", f"Leave out the first {misfit.unread_turns} turns: {then}. The chat keeps them"))
    again = "" if misfit.can_shorten else "; then turns must be left out too"
    ways.append(("shorten", f"Shorten the question, to be looked at before it is sent{again}"))
    if misfit.left_for_answer >= 1:
        ways.append(("send", f"Send it all: {misfit.left_for_answer:,} tokens are left for the answer"))
    ways.append((None, "Cancel: the question stays in the prompt"))
    return ways
