"""One answer: who answers, the thought, the text as it comes, and how it ended."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static
from textual.widgets.markdown import MarkdownStream

from localmoe.events import Finished, FinishReason, Stats, TextDelta
from localmoe.tui.printable import printable
from localmoe.tui.widgets.markdown import AnswerMarkdown
from localmoe.tui.widgets.thought import Thought

_ENDINGS: dict[FinishReason, str] = {
    "cancelled": "stopped",
    "length": "cut here: as many tokens as were allowed",
    "context": "cut here: the context is full. Ctrl+N starts a new chat",
}


class AnswerTurn(Vertical):
    """Streams while it is made, rests once it is finished."""

    DEFAULT_CSS = """
    AnswerTurn {
        height: auto; padding: 0 1 0 2; margin: 0 0 1 0; max-width: 110;
        & > .role { height: 1; text-style: bold; color: $accent; }
        & > .ending { height: auto; display: none; margin-top: 1; color: $text-warning; }
        & > .ending.-any { display: block; }
        & > AnswerMarkdown > *:last-child { margin-bottom: 0; }
    }
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        self.text = ""
        self.thought = Thought()
        self._model = model
        self._markdown = AnswerMarkdown()
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        yield Static(printable(self._model), classes="role", markup=False)
        yield self.thought
        yield self._markdown
        yield Static("", classes="ending", markup=False)

    async def write(self, delta: TextDelta) -> None:
        """Shows new text where it belongs."""
        if delta.channel == "thought":
            self.thought.write(delta.text)
            return
        self.thought.end()
        fresh = printable(delta.text)
        self.text += fresh
        if self._stream is None:
            self._stream = AnswerMarkdown.get_stream(self._markdown)
        await self._stream.write(fresh)

    def measure(self, stats: Stats) -> None:
        """The thought's share of the figures."""
        self.thought.measure(stats.thought_tokens, stats.thought_s)

    async def finish(self, finished: Finished) -> None:
        """Settles on the engine's own text, parsed as a whole."""
        self.text = printable(finished.text)
        self.thought.finish(finished.reasoning)
        await self._settle(_ENDINGS.get(finished.reason, ""))

    async def fail(self) -> None:
        """Keeps what came before the failure."""
        self.thought.end()
        await self._settle("broken off")

    async def _settle(self, ending: str) -> None:
        if self._stream:
            await self._stream.stop()
            self._stream = None
        await self._markdown.update(self.text)
        line = self.query_one(".ending", Static)
        line.update(f"■ {ending}")
        line.set_class(bool(ending), "-any")
