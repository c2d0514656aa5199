"""`copy`, where a click copies what stands beside it."""

from collections.abc import Callable

from textual.events import Click
from textual.message import Message

from localmoe.tui.widgets.line import Line


class CopyMark(Line):
    """One word, faint until the mouse is on it."""

    DEFAULT_CSS = """
    CopyMark { width: auto; height: 1; color: $text-disabled; }
    CopyMark:hover { color: $text-accent; text-style: bold; }
    """

    class Clicked(Message):
        """`text`, which is `which` in words, should go to the clipboard."""

        def __init__(self, text: str, which: str) -> None:
            super().__init__()
            self.text, self.which = text, which

    def __init__(self, text: Callable[[], str], which: str) -> None:
        """`text` is asked at the click: answers grow."""
        super().__init__("copy")
        self._text, self._which = text, which

    def on_click(self, event: Click) -> None:
        event.stop()
        if text := self._text():
            self.post_message(self.Clicked(text, self._which))
