"""All turns of a chat, of which only some near the view are widgets: two thousand of them would take a minute."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from localmoe.chat.history.records import Turn
from localmoe.events import Failed
from localmoe.tui.widgets.edge import Edge
from localmoe.tui.widgets.failure import Failure
from localmoe.tui.widgets.settled import Settled
from localmoe.tui.widgets.user_turn import UserTurn

NUM_AT_ONCE = 8  # entries that are mounted together
NUM_SHOWN = 32  # most entries that stay mounted


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong between two turns."""

    failed: Failed
    title: str
    remark: str = ""


Entry = Turn | Fault


class Turns(Settled, Vertical):
    """The entries from `first` to `end` are mounted, the oldest at the top."""

    DEFAULT_CSS = """
    Turns {
        height: auto; min-height: 100%; padding: 1 1 0 1;
        & > .-found { background: $primary 15%; }
    }
    """

    def __init__(self, greeting: Widget) -> None:
        super().__init__(id="turns")
        self.entries: list[Entry] = []
        self.first = self.end = 0
        self.are_thoughts_open = False
        self._greeting = greeting
        self._shown: list[Widget] = []  # for the entries from first to end
        self._earlier = Edge("▴", "earlier", is_earlier=True)
        self._later = Edge("▾", "later", is_earlier=False)

    def compose(self) -> ComposeResult:
        yield self._greeting
        yield self._earlier
        yield self._later

    def widget(self, index: int) -> Widget | None:
        """What shows the entry at `index`, if it is mounted."""
        return self._shown[index - self.first] if self.first <= index < self.end else None

    async def add(self, entry: Entry, widget: Widget | None = None) -> None:
        """A new last entry, shown by `widget` or as it is."""
        if self.end < len(self.entries):
            await self.show_around(len(self.entries))
        self.entries.append(entry)
        self.end += 1
        await self._mount([widget or self._widget_of(entry)], at_top=False)

    async def remove_last(self) -> None:
        """Takes the last entry away."""
        self.entries.pop()
        if self.end > len(self.entries):
            self.end -= 1
            await self._shown.pop().remove()

    async def show_only(self, entries: Sequence[Entry], index: int | None = None) -> None:
        """These entries instead of all others; those around `index` are mounted, or the last ones."""
        self.entries = list(entries)
        await self.show_around(len(self.entries) if index is None else index)

    async def show_around(self, index: int) -> None:
        """Mounts the entries around `index`, and no others."""
        gone, self._shown = self._shown, []
        self.first = max(0, min(index - NUM_AT_ONCE // 2, len(self.entries) - NUM_AT_ONCE))
        self.end = min(len(self.entries), self.first + 2 * NUM_AT_ONCE)
        await self.remove_children(gone)
        await self._mount(list(map(self._widget_of, self.entries[self.first : self.end])), at_top=False)

    async def show_more(self, *, is_earlier: bool) -> None:
        """Mounts the next entries on one side."""
        if is_earlier:
            end, self.first = self.first, max(0, self.first - NUM_AT_ONCE)
            new = self.entries[self.first : end]
        else:
            first, self.end = self.end, min(len(self.entries), self.end + NUM_AT_ONCE)
            new = self.entries[first : self.end]
        await self._mount(list(map(self._widget_of, new)), at_top=is_earlier)

    async def trim(self, *, at_top: bool) -> None:
        """Unmounts what is too much, on one side."""
        if (excess := len(self._shown) - NUM_SHOWN) <= 0:
            return
        if at_top:
            gone, self._shown = self._shown[:excess], self._shown[excess:]
            self.first += excess
        else:
            gone, self._shown = self._shown[-excess:], self._shown[:-excess]
            self.end -= excess
        await self.remove_children(gone)
        self._count()

    async def _mount(self, widgets: list[Widget], *, at_top: bool) -> None:
        before = self._shown[0] if at_top and self._shown else self._later
        self._shown = widgets + self._shown if at_top else self._shown + widgets
        await self.mount(*widgets, before=before)
        self._count()

    def _count(self) -> None:
        self._earlier.count(self.first)
        self._later.count(len(self.entries) - self.end)

    def _widget_of(self, entry: Entry) -> Widget:
        from localmoe.tui.widgets.answer_turn import AnswerTurn

        if isinstance(entry, Fault):
            return Failure(entry.failed, entry.title, entry.remark)
        if entry.role == "user":
            return UserTurn(entry.text)
        answer = AnswerTurn(entry.model, entry)
        answer.thought.set_class(self.are_thoughts_open, "-open")
        return answer
