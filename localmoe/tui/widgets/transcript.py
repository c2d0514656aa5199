"""The turns, one under the other. Follows new text only while its end is in view."""

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.await_remove import AwaitRemove
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget


class Transcript(VerticalScroll, can_focus=False):
    """Stays where the reader scrolled to; goes on following when the reader is back at the end."""

    DEFAULT_CSS = """
    Transcript {
        height: 1fr; width: 1fr; scrollbar-size-vertical: 1; scrollbar-background: $background;
        & > #turns { height: auto; min-height: 100%; padding: 1 1 0 1; }
    }
    """

    def __init__(self, *turns: Widget) -> None:
        super().__init__()
        self._turns = Vertical(*turns, id="turns")  # as high as the view, or else an anchored view scrolls below zero

    def compose(self) -> ComposeResult:
        yield self._turns

    def add(self, *turns: Widget) -> AwaitComplete:
        """Puts `turns` at the end."""
        return AwaitComplete(self._turns.mount(*turns))

    def empty(self) -> AwaitRemove:
        """Takes all turns away."""
        return self._turns.remove_children()

    def follow(self) -> None:
        """Goes to the end and stays there."""
        self._anchor_released = False
        self.anchor()

    def page(self, pages: int) -> None:
        """Moves by whole pages."""
        (self.scroll_page_down if pages > 0 else self.scroll_page_up)(animate=False)
