"""One answer: who answers, the thought, the text as it comes, and how it ended."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from localmoe.chat.history.records import Ending, Turn
from localmoe.events import Stats, TextDelta
from localmoe.tui.printable import printable
from localmoe.tui.widgets.copy_mark import CopyMark
from localmoe.tui.widgets.line import Line
from localmoe.tui.widgets.markdown import AnswerMarkdown
from localmoe.tui.widgets.settled import Settled, SettledRow
from localmoe.tui.widgets.thought import Thought

_ENDINGS: dict[Ending, str] = {
    "cancelled": "stopped",
    "failed": "broken off",
    "killed": "broken off: localmoe was ended in the middle of it",
    "writing": "another localmoe is writing this",
    "length": "cut here: as many tokens as were allowed",
    "context": "cut here: the context is full. What to leave out is asked with the next question",
}


class AnswerTurn(Settled, Vertical):
    """Streams while it is made, rests once it is finished."""

    DEFAULT_CSS = """
    AnswerTurn {
        height: auto; padding: 0 1 0 2; margin: 0 0 1 0; max-width: 110;
        & > .head { height: 1; }
        & .role { width: auto; text-style: bold; color: $accent; margin-right: 2; }
        & > .unread { height: auto; color: $text-muted; }
        & > .ending { height: auto; display: none; margin-top: 1; color: $text-warning; }
        & > .ending.-any { display: block; }
    }
    """

    def __init__(self, model: str, ended: Turn | None = None, unread: int = 0) -> None:
        """An answer that begins, made without the first `unread` turns, or one that has `ended`."""
        super().__init__()
        self.text = ""
        self.thought = Thought()
        self._model = model
        self._ended = ended
        self._unread = ended.unread_turns if ended else unread
        self._markdown = AnswerMarkdown()

    def compose(self) -> ComposeResult:
        with SettledRow(classes="head"):
            yield Line(printable(self._model), classes="role")
            yield CopyMark(lambda: self.text, "the answer")
        if self._unread:
            yield Line(f"made without the first {self._unread} turns: they did not fit", classes="unread")
        yield self.thought
        yield self._markdown
        yield Line(classes="ending")

    async def on_mount(self) -> None:
        if turn := self._ended:
            self.thought.measure(turn.figures.get("thought_tokens", 0), turn.figures.get("thought_s"))
            await self.end(turn.text, turn.reasoning, turn.ending)

    async def write(self, delta: TextDelta) -> None:
        """Shows new text where it belongs."""
        if delta.channel == "thought":
            self.thought.write(delta.text)
            return
        self.thought.end()
        fresh = printable(delta.text)
        self.text += fresh
        await self._markdown.write(fresh)

    def measure(self, stats: Stats) -> None:
        """The thought's share of the figures."""
        self.thought.measure(stats.thought_tokens, stats.thought_s)

    async def end(self, text: str, reasoning: str, ending: Ending) -> None:
        """Settles on the whole text, parsed as a whole."""
        self.text = printable(text)
        self.thought.finish(reasoning)
        await self._settle(_ENDINGS.get(ending, ""))

    async def fail(self) -> None:
        """Keeps what came before the failure."""
        self.thought.end()
        await self._settle(_ENDINGS["failed"])

    async def _settle(self, ending: str) -> None:
        await self._markdown.write_anew(self.text)
        line = self.query_one(".ending", Line)
        line.show(Content(f"■ {ending}"))
        line.set_class(bool(ending), "-any")
