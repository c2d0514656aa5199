"""The turns, one under the other. Follows new text only while its end is in view."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from localmoe.chat.history.records import Ending, Turn, unread_figure
from localmoe.chat.message import Role
from localmoe.engine.request import EngineInfo
from localmoe.events import Event, Failed, Finished, Stats, TextDelta
from localmoe.tui.widgets.edge import Edge
from localmoe.tui.widgets.greeting import Greeting
from localmoe.tui.widgets.thought import Thought
from localmoe.tui.widgets.turns import Fault, Turns
from localmoe.tui.widgets.user_turn import UserTurn

if TYPE_CHECKING:
    from localmoe.tui.widgets.answer_turn import AnswerTurn

_NEAR_LINES = 2  # so close to an end of what is mounted, more is


class Transcript(VerticalScroll, can_focus=False):
    """Stays where the reader scrolled to; goes on following when the reader is back at the end."""

    DEFAULT_CSS = """
    Transcript {
        height: 1fr; width: 1fr; scrollbar-size-vertical: 1; scrollbar-background: $background;
    }
    """

    def __init__(self, *, is_kept: bool) -> None:
        super().__init__()
        self._is_kept = is_kept
        self._greeting = Greeting(is_kept=is_kept)
        self._turns = Turns(self._greeting)  # as high as the view: an anchored view scrolls below zero
        self._answer: AnswerTurn | None = None
        self._stats: Stats | None = None  # of that answer
        self._held: tuple[Widget, int] | None = None  # a turn that must stay in its line while others come and go
        self._is_changing = False

    def compose(self) -> ComposeResult:
        yield self._turns

    @property
    def is_answering(self) -> bool:
        """Whether an answer of this chat is on its way."""
        return self._answer is not None

    @property
    def num_questions(self) -> int:
        """What would be lost."""
        return sum(isinstance(entry, Turn) and entry.role == "user" for entry in self._turns.entries)

    @property
    def turns(self) -> list[Turn]:
        """All turns, without the faults between them."""
        return [entry for entry in self._turns.entries if isinstance(entry, Turn)]

    @property
    def unread_turns(self) -> int:
        """How many turns from the first on the model does not read any more: what the last answer says."""
        for place, turn in reversed(list(enumerate(self.turns))):
            if turn.role == "assistant":
                return min(turn.unread_turns, max(0, place - 1))
        return 0

    @property
    def unfinished_text(self) -> str:
        """What there is of the answer that is being made."""
        return self._answer.text if self._answer else ""

    def introduce(self, info: EngineInfo) -> None:
        """The model is open."""
        self._greeting.introduce(info)

    # Turns as they come

    async def begin(self, question: str | None, model: str, unread: int = 0) -> None:
        """Shows `question`, unless it is there already, and makes room for its answer.

        The model does not read the first `unread` turns for it.
        """
        from localmoe.tui.widgets.answer_turn import AnswerTurn

        await self._greeting.remove()
        answer = AnswerTurn(model, unread=unread)
        answer.thought.set_class(self._turns.are_thoughts_open, "-open")
        if question is not None:
            await self._turns.add(Turn("user", question), UserTurn(question))
        figures = unread_figure(unread)
        await self._turns.add(Turn("assistant", "", model=model, ending="writing", figures=figures), answer)
        await self._turns.trim(at_top=True)
        self._answer, self._stats = answer, None
        self.follow()

    async def take_away(self, role: Role) -> None:
        """Takes the last turn of `role` away, and all that came after it."""
        entries = self._turns.entries
        is_there = False
        while entries and not is_there:
            is_there = isinstance(entries[-1], Turn) and entries[-1].role == role
            await self._turns.remove_last()

    async def show(self, event: Event) -> None:
        """Gives `event` to the answer that is being made."""
        if not self._answer:
            return
        match event:
            case TextDelta():
                await self._answer.write(event)
            case Stats():
                self._stats = event
                self._answer.measure(event)
            case Finished():
                answer, self._answer = self._answer, None
                self._note_end(event.text, event.reasoning, event.reason)
                await answer.end(event.text, event.reasoning, event.reason)

    async def fail(self, failed: Failed, title: str, remark: str = "") -> None:
        """Explains why there is no answer, or no more of it."""
        if self._answer:
            answer, self._answer = self._answer, None
            if answer.text or answer.thought.text:
                self._note_end(answer.text, answer.thought.text, "failed")
                await answer.fail()
            else:
                await self._turns.remove_last()
        await self._turns.add(Fault(failed, title, remark))

    async def show_chat(self, turns: Sequence[Turn], at: int | None, info: EngineInfo | None) -> None:
        """Another chat: from its turn `at` on, else its end; one without turns greets."""
        self._answer = None
        await self._greeting.remove()
        with self.app.batch_update():
            await self._turns.show_only(turns, at)
        if not turns:
            self._greeting = Greeting(is_kept=self._is_kept)
            await self._turns.mount(self._greeting, before=0)
            if info:
                self.introduce(info)
        if at is None:
            self.follow()
            self.call_after_refresh(self._show_more_here)
        else:
            self._go_to(at)

    def toggle_thoughts(self) -> None:
        """Opens or closes all thoughts, those still to come included."""
        self._turns.are_thoughts_open = not self._turns.are_thoughts_open
        for thought in self.query(Thought):
            thought.open(self._turns.are_thoughts_open)

    def _note_end(self, text: str, reasoning: str, ending: Ending) -> None:
        stats = self._stats
        figures = {"thought_tokens": stats.thought_tokens, "thought_s": stats.thought_s} if stats else {}
        turn = self._turns.entries[-1]
        assert isinstance(turn, Turn)
        figures = {**turn.figures, **figures}
        self._turns.entries[-1] = replace(turn, text=text, reasoning=reasoning, ending=ending, figures=figures)

    # Where the reader is

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Turns that grew are laid out already; in a view of another size, the end is to be found once more."""
        layout = layout and container_size != self.container_size
        return super()._size_updated(size, virtual_size, container_size, layout)

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self._anchor_released = False
        self.anchor()

    def page(self, pages: int) -> None:
        """Moves by whole pages."""
        (self.scroll_page_down if pages > 0 else self.scroll_page_up)(animate=False)

    def _go_to(self, index: int) -> None:
        """To the turn at `index`, which is marked."""
        self._anchor_released = True
        if turn := self._turns.widget(index):
            turn.add_class("-found")
            self.call_after_refresh(self.scroll_to_widget, turn, top=True, animate=False)

    async def go_to_end(self, *, is_first: bool) -> None:
        """To the first turn, or to the last one."""
        with self.app.batch_update():
            await self._turns.show_around(0 if is_first else len(self._turns.entries))
        if is_first:
            self.scroll_home(animate=False, immediate=False)
        else:
            self.follow()
        self.call_after_refresh(self._show_more_here)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._held:
            self._held = (self._held[0], self._held[1] + round(old_value) - round(new_value))
        if self._has_later:
            self._anchor_released = True  # the end of what is mounted is not the end
        self.call_later(self._show_more_here)

    @on(Edge.Wanted)
    async def _on_edge_wanted(self, event: Edge.Wanted) -> None:
        await self._show_more(is_earlier=event.is_earlier)

    @property
    def _has_later(self) -> bool:
        return self._turns.end < len(self._turns.entries)

    async def _show_more_here(self) -> None:
        """Where the reader is near the end of what is mounted, more is."""
        if self._is_changing or not self.size:
            return
        if self._has_later and self.scroll_y >= self.max_scroll_y - _NEAR_LINES:
            await self._show_more(is_earlier=False)
        elif self._turns.first and self.scroll_y <= _NEAR_LINES:
            await self._show_more(is_earlier=True)

    async def _show_more(self, *, is_earlier: bool) -> None:
        """Mounts more on one side, and what is in view stays where it is."""
        first, last = self._turns.widget(self._turns.first), self._turns.widget(self._turns.end - 1)
        with self._holding(first if is_earlier else last), self.app.batch_update():
            await self._turns.show_more(is_earlier=is_earlier)
            if not (is_earlier and self.is_answering):  # the answer that is being made stays
                await self._turns.trim(at_top=not is_earlier)

    @contextmanager
    def _holding(self, widget: Widget | None) -> Iterator[None]:
        """Within, and until that is drawn, `widget` stays in its line of the screen."""
        self._is_changing = True
        if widget and (self._anchor_released or not self.is_anchored):
            self._held = (widget, widget.virtual_region.y - round(self.scroll_y))
        try:
            yield
        finally:
            self.call_after_refresh(self._let_go)

    async def _let_go(self) -> None:
        self._held, self._is_changing = None, False
        await self._show_more_here()

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Textual's layout, with the scroll position moved along with the turn that is held."""
        arranged = super().arrange(size, optimal)
        if self._held and (place := self._place_of(self._held[0], arranged)) is not None:
            last = max(0, arranged.total_region.bottom - self.container_size.height)
            scroll_y = max(0, min(place - self._held[1], last))
            self.set_reactive(Widget.scroll_y, scroll_y)
            self.set_reactive(Widget.scroll_target_y, scroll_y)
            self.vertical_scrollbar.set_reactive(ScrollBar.position, scroll_y)
        return arranged

    def _place_of(self, turn: Widget, arranged: DockArrangeResult) -> int | None:
        """The line of `turn` among all lines that can be scrolled to, as it is being laid out."""
        (outer,) = arranged.placements
        inner = self._turns.arrange(outer.region.shrink(self._turns.gutter).size)
        return next((placed.region.y for placed in inner.placements if placed.widget is turn), None)
