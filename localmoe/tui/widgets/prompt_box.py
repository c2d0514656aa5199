"""The frame around the prompt, with its mark."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Static

from localmoe.tui.widgets.prompt import Prompt


class PromptBox(Horizontal):
    """Lit while it has the focus, in another colour while its text waits to be sent."""

    DEFAULT_CSS = """
    PromptBox {
        height: auto; border: round $foreground 25%; padding: 0 1;
        &:focus-within { border: round $primary; }
        &.-waiting { border: round $accent; }
        & > #prompt-mark { width: 2; height: 1; color: $primary; text-style: bold; }
        &.-waiting > #prompt-mark { color: $accent; }
    }
    """

    def compose(self) -> ComposeResult:
        yield Static("❯ ", id="prompt-mark", markup=False)
        yield Prompt()
