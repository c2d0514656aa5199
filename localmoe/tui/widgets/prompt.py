"""The prompt: a text area that grows, sends on Enter and scrolls the chat by page."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from localmoe.tui.printable import printable

NEWLINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter")


class Prompt(TextArea):
    """What is being written. Enter sends; Ctrl+J breaks the line."""

    DEFAULT_CSS = """
    Prompt, Prompt:focus {
        height: auto; min-height: 1; max-height: 8; border: none; padding: 0; background: transparent;
        & .text-area--cursor-line { background: transparent; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll_chat(-1)", "Scroll the chat up", id="chat.page_up", show=False),
        Binding("pagedown", "scroll_chat(1)", "Scroll the chat down", id="chat.page_down", show=False),
    ]

    class Submitted(Message):
        """Enter was pressed behind `text`, which is still in the prompt; more may have been typed since."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class PageScrolled(Message):
        """The chat should move by `pages`."""

        def __init__(self, pages: int) -> None:
            super().__init__()
            self.pages = pages

    def __init__(self) -> None:
        super().__init__(placeholder="Ask something", tab_behavior="focus", highlight_cursor_line=False)

    def take(self, text: str) -> None:
        """Removes `text`, not what was typed behind it."""
        rest = self.text.removeprefix(text)
        self.text = rest
        self.move_cursor(self.document.end)

    def action_scroll_chat(self, pages: int) -> None:
        self.post_message(self.PageScrolled(pages))

    # Textual calls these before TextArea's own.

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            self.post_message(self.Submitted(self.text))
        elif event.key in NEWLINE_KEYS:  # here and not as a binding: a binding would come behind keys typed after it
            self._replace_via_keyboard("\n", *self.selection)
        else:
            return
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: Paste) -> None:
        event.text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"))
