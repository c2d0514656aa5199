"""The turns, one under the other. Follows new text only while its end is in view."""

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from localmoe.engine.request import EngineInfo
from localmoe.events import Event, Failed, Finished, Stats, TextDelta
from localmoe.tui.widgets.failure import Failure
from localmoe.tui.widgets.greeting import Greeting
from localmoe.tui.widgets.thought import Thought
from localmoe.tui.widgets.user_turn import UserTurn

if TYPE_CHECKING:
    from localmoe.tui.widgets.answer_turn import AnswerTurn


class Transcript(VerticalScroll, can_focus=False):
    """Stays where the reader scrolled to; goes on following when the reader is back at the end."""

    DEFAULT_CSS = """
    Transcript {
        height: 1fr; width: 1fr; scrollbar-size-vertical: 1; scrollbar-background: $background;
        & > #turns { height: auto; min-height: 100%; padding: 1 1 0 1; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._greeting = Greeting()
        self._turns = Vertical(self._greeting, id="turns")  # as high as the view: an anchored view scrolls below zero
        self._answer: AnswerTurn | None = None
        self._are_thoughts_open = False

    def compose(self) -> ComposeResult:
        yield self._turns

    @property
    def is_answering(self) -> bool:
        """Whether an answer of this chat is on its way."""
        return self._answer is not None

    @property
    def num_questions(self) -> int:
        """What would be lost."""
        return len(self.query(UserTurn))

    @property
    def unfinished_text(self) -> str:
        """What there is of the answer that is being made."""
        return self._answer.text if self._answer else ""

    def introduce(self, info: EngineInfo) -> None:
        """The model is open."""
        self._greeting.introduce(info)

    async def begin(self, question: str, model: str) -> None:
        """Shows `question` and makes room for its answer."""
        from localmoe.tui.widgets.answer_turn import AnswerTurn

        await self._greeting.remove()
        self._answer = AnswerTurn(model)
        self._answer.thought.set_class(self._are_thoughts_open, "-open")
        await self._turns.mount(UserTurn(question), self._answer)
        self.follow()

    async def show(self, event: Event) -> None:
        """Gives `event` to the answer that is being made."""
        if not self._answer:
            return
        match event:
            case TextDelta():
                await self._answer.write(event)
            case Stats():
                self._answer.measure(event)
            case Finished():
                answer, self._answer = self._answer, None
                await answer.finish(event)

    async def fail(self, failed: Failed, title: str, remark: str = "") -> None:
        """Explains why there is no answer, or no more of it."""
        if self._answer:
            answer, self._answer = self._answer, None
            await (answer.fail() if answer.text or answer.thought.text else answer.remove())
        await self._turns.mount(Failure(failed, title, remark))

    async def start_over(self, info: EngineInfo | None) -> None:
        """Takes all turns away and greets."""
        self._answer = None
        await self._turns.remove_children()
        self._greeting = Greeting()
        await self._turns.mount(self._greeting)
        if info:
            self.introduce(info)

    def toggle_thoughts(self) -> None:
        """Opens or closes all thoughts, those still to come included."""
        self._are_thoughts_open = not self._are_thoughts_open
        for thought in self.query(Thought):
            thought.open(self._are_thoughts_open)

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self._anchor_released = False
        self.anchor()

    def page(self, pages: int) -> None:
        """Moves by whole pages."""
        (self.scroll_page_down if pages > 0 else self.scroll_page_up)(animate=False)
