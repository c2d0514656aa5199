"""Where the turns that are shown end, and earlier or later ones begin."""

from textual.content import Content
from textual.message import Message

from localmoe.tui.widgets.line import Line


class Edge(Line):
    """`▴ 1,960 earlier`. A click brings some of them; so does scrolling here."""

    DEFAULT_CSS = """
    Edge { height: 1; width: auto; padding: 0 2; margin: 0 0 1 0; color: $text-muted; display: none; }
    Edge:hover { color: $text-accent; }
    Edge.-any { display: block; }
    """

    class Wanted(Message):
        """More of this side should be shown."""

        def __init__(self, is_earlier: bool) -> None:
            super().__init__()
            self.is_earlier = is_earlier

    def __init__(self, mark: str, words: str, *, is_earlier: bool) -> None:
        super().__init__()
        self._mark, self._words, self._is_earlier = mark, words, is_earlier

    def count(self, num_turns: int) -> None:
        """How many are not shown; none hides it."""
        self.set_class(num_turns > 0, "-any")
        self.show(Content(f"{self._mark} {num_turns:,} {self._words}"))

    def on_click(self) -> None:
        self.post_message(self.Wanted(self._is_earlier))
