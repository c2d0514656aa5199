"""The prompt: a text area that grows, sends on Enter and scrolls the chat by page."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from localmoe.tui.printable import printable


class Prompt(TextArea):
    """What is being written. Enter sends; Ctrl+J breaks the line."""

    DEFAULT_CSS = """
    Prompt, Prompt:focus {
        height: auto; min-height: 1; max-height: 8; border: none; padding: 0; background: transparent;
        & .text-area--cursor-line { background: transparent; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", id="prompt.newline", show=False),
        Binding("pageup", "scroll_chat(-1)", "Scroll the chat up", id="chat.page_up", show=False),
        Binding("pagedown", "scroll_chat(1)", "Scroll the chat down", id="chat.page_down", show=False),
    ]

    class Submitted(Message):
        """Enter was pressed; the text is still in the prompt."""

    class PageScrolled(Message):
        """The chat should move by `pages`."""

        def __init__(self, pages: int) -> None:
            super().__init__()
            self.pages = pages

    def __init__(self) -> None:
        super().__init__(placeholder="Ask something", tab_behavior="focus", highlight_cursor_line=False)

    def action_newline(self) -> None:
        self.insert("\n")

    def action_scroll_chat(self, pages: int) -> None:
        self.post_message(self.PageScrolled(pages))

    # Textual calls these before TextArea's own.

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Submitted())

    async def _on_paste(self, event: Paste) -> None:
        event.text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"))
