"""What the model thought before it answered: folded to one line, opened by key or click."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from localmoe.tui import figures
from localmoe.tui.printable import printable
from localmoe.tui.widgets.line import Line
from localmoe.tui.widgets.settled import Settled


class Thought(Settled, Vertical):
    """`▸ Thought 812 tok, 41 s`."""

    DEFAULT_CSS = """
    Thought {
        height: auto; margin-bottom: 1; display: none;
        & > .thought-line { height: 1; width: auto; color: $text-muted; }
        & > .thought-line:hover { color: $text-accent; }
        & > .thought-text {
            display: none; height: auto; padding-left: 1; border-left: outer $foreground 20%;
            color: $text-muted; text-style: italic;
        }
        &.-open > .thought-text { display: block; }
        &.-any { display: block; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._num_tokens = 0
        self._duration_s: float | None = None
        self._is_done = False

    def compose(self) -> ComposeResult:
        yield Line(classes="thought-line")
        yield Static("", classes="thought-text", markup=False)

    @property
    def is_open(self) -> bool:
        """Whether its text is shown."""
        return self.has_class("-open")

    def write(self, text: str) -> None:
        """Adds what was just thought."""
        self._show_text(self.text + printable(text))

    def measure(self, num_tokens: int, duration_s: float | None) -> None:
        """Its length, in tokens and time."""
        self._num_tokens, self._duration_s = num_tokens, duration_s
        self._draw_line()

    def finish(self, text: str) -> None:
        """The whole thought, as the engine has it."""
        self._is_done = True
        self._show_text(printable(text))
        self._draw_line()

    def end(self) -> None:
        """The answer has begun."""
        if not self._is_done:
            self._is_done = True
            self._draw_line()

    def open(self, is_open: bool) -> None:
        """Shows or hides its text."""
        self.set_class(is_open, "-open")
        if is_open:
            self.query_one(".thought-text", Static).update(self.text.strip())
        self._draw_line()

    def on_click(self) -> None:
        self.open(not self.is_open)

    def _show_text(self, text: str) -> None:
        self.text = text
        is_first = bool(text.strip()) and not self._is_any
        self.set_class(bool(text.strip()), "-any")
        if is_first:
            self._draw_line()
        if self.is_open:
            self.query_one(".thought-text", Static).update(text.strip())

    @property
    def _is_any(self) -> bool:
        return self.has_class("-any")

    def _draw_line(self) -> None:
        """A line that is not seen stays as it is: each of its widths would be laid out."""
        if not self._is_any:
            return
        arrow, word = ("▾" if self.is_open else "▸"), ("Thought" if self._is_done else "Thinking")
        tokens = f" {figures.tokens(self._num_tokens)} tok" if self._num_tokens else ""
        time = f", {_whole(self._duration_s)}" if tokens and self._duration_s is not None else ""
        self.query_one(".thought-line", Line).show(Content(f"{arrow} {word}{tokens}{time}"))


def _whole(duration_s: float) -> str:
    """Seconds without decimals where they would flicker."""
    return f"{round(duration_s)} s" if 10 <= duration_s < 60 else figures.seconds(duration_s)
