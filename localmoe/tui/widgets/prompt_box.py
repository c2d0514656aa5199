"""The frame around the prompt, with its mark and what the draft would cost."""

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from localmoe.tui.keymap import Keymap
from localmoe.tui.printable import printable
from localmoe.tui.prompt_history import PromptHistory
from localmoe.tui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from localmoe.tui.drafts import Draft


class PromptBox(Horizontal):
    """Lit while it has the focus, in another colour while its text waits to be sent."""

    DEFAULT_CSS = """
    PromptBox {
        height: auto; border: round $foreground 25%; padding: 0 1; border-subtitle-color: $text-muted;
        &:focus-within { border: round $primary; }
        &.-waiting { border: round $accent; }
        &.-trouble { border-subtitle-color: $text-error; }
        & > #prompt-mark { width: 2; height: 1; color: $primary; text-style: bold; }
        &.-waiting > #prompt-mark { color: $accent; }
    }
    """

    def __init__(self, keymap: Keymap, past: PromptHistory) -> None:
        super().__init__()
        self._prompt = Prompt(keymap, past)

    def compose(self) -> ComposeResult:
        yield Static("❯ ", id="prompt-mark", markup=False)
        yield self._prompt

    def show_draft(self, draft: "Draft") -> None:
        """Its files and folded texts, in tokens, in the lower edge."""
        self.set_class(draft.has_trouble, "-trouble")
        self.border_subtitle = Content(printable(draft.words))  # type: ignore[assignment]
