"""The prompt: a text area that grows, sends on Enter, folds long pastes and remembers what was sent."""

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text
from textual.events import Key, Paste
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult, Location, Selection

from localmoe.tui.blocks import Blocks
from localmoe.tui.keymap import Keymap
from localmoe.tui.printable import printable
from localmoe.tui.prompt_history import PromptHistory
from localmoe.tui.widgets.suggestions import Suggestions

if TYPE_CHECKING:
    from localmoe.tui.suggest import Suggestion


class Prompt(TextArea):
    """What is being written. `text` is as it is shown, `whole` with all that is folded in it."""

    COMPONENT_CLASSES = {"prompt--block"}  # noqa: RUF012
    DEFAULT_CSS = """
    Prompt, Prompt:focus {
        height: auto; min-height: 1; max-height: 8; border: none; padding: 0; background: transparent;
        & .text-area--cursor-line { background: transparent; }
        & .prompt--block { color: $text-accent; text-style: bold; }
    }
    """

    class Submitted(Message):
        """Enter was pressed behind `text`, which is still in the prompt; more may have been typed since."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, keymap: Keymap | None = None, history: PromptHistory | None = None) -> None:
        super().__init__(placeholder="Ask something", tab_behavior="focus", highlight_cursor_line=False)
        self.cursor_blink = False  # each blink would take a core from the answer for some milliseconds
        self.blocks = Blocks()
        self.past = history or PromptHistory(None)
        self._recalled = ""
        self._look: tuple[object, ...] = ()  # what its styles were made for
        keymap = keymap or Keymap()
        self._send_keys, self._newline_keys = keymap.keys("prompt.send"), keymap.keys("prompt.newline")

    @property
    def whole(self) -> str:
        """What would be sent."""
        return self.blocks.whole(self.text)

    @property
    def is_recalled(self) -> bool:
        """Whether it shows, unchanged, what was sent before: Up and Down go on from there."""
        return bool(self._recalled) and self.text == self._recalled

    @property
    def before_cursor(self) -> str:
        """The text up to the cursor; empty where something is selected."""
        start, end = self.selection
        return self.get_text_range((0, 0), end) if start == end else ""

    def take(self, text: str) -> None:
        """Removes `text`, not what was typed behind it."""
        self.text = self.text.removeprefix(text)
        self.move_cursor(self.document.end)

    def put(self, text: str) -> None:
        """`text` instead of what is there, as it can be changed; undo brings back what was there."""
        self.replace(self.blocks.fold_again(text), (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)
        self.history.checkpoint()

    def accept(self, suggestion: "Suggestion") -> None:
        """Writes what was suggested instead of what was typed of it."""
        row, column = self.cursor_location
        self.replace(
            suggestion.text, (row, column - suggestion.num_typed), (row, column), maintain_selection_offset=False
        )

    # Drawing

    def notify_style_update(self) -> None:
        self._look = ()
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Makes its styles when they may be others: Textual does at each draw, which is half of what a key costs."""
        look = self.app.theme, self.has_focus
        if look != self._look:
            self._look = look
            return super().render_lines(crop)
        return super(TextArea, self).render_lines(crop)

    # Folded texts are one piece

    def edit(self, edit: Edit) -> EditResult:
        """Does `edit`; one that would break a folded text takes all of it, and one within it comes behind it."""
        top, bottom = edit.top, edit.bottom
        is_insertion = top == bottom
        bottom = self._out_of_block(bottom, at_end=True)
        top = bottom if is_insertion else self._out_of_block(top, at_end=False)
        return super().edit(replace(edit, from_location=top, to_location=bottom))

    def _out_of_block(self, location: Location, *, at_end: bool) -> Location:
        row, column = location
        for start, end in self.blocks.spans(self.document.get_line(row)):
            if start < column < end:
                return row, end if at_end else start
        return location

    def get_line(self, line_index: int) -> Text:
        """A line with its folded texts marked."""
        line = super().get_line(line_index)
        for start, end in self.blocks.spans(line.plain):
            line.stylize(self.get_component_rich_style("prompt--block", partial=True), start, end)
        return line

    # What was sent before

    def action_cursor_up(self, select: bool = False) -> None:
        is_at_edge = not select and self.navigator.is_first_wrapped_line(self.selection.end)
        if not (is_at_edge and self._remember(self.past.earlier(self.whole), at_end=False)):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        is_at_edge = not select and self.navigator.is_last_wrapped_line(self.selection.end)
        if not (is_at_edge and self._remember(self.past.later(self.whole), at_end=True)):
            super().action_cursor_down(select)

    def _remember(self, text: str | None, *, at_end: bool) -> bool:
        if text is None:
            return False
        self.put(text)
        self._recalled = self.text
        if not at_end:
            self.selection = Selection.cursor((0, len(self.document.get_line(0))))
        return True

    # Textual calls these before TextArea's own. Not as bindings: those would come behind keys typed after them.

    async def _on_key(self, event: Key) -> None:
        suggestions = self.screen.query_one(Suggestions)
        if suggestions.is_for(self.before_cursor) and self._choose(event.key, suggestions):
            pass
        elif event.key in self._send_keys:
            self.post_message(self.Submitted(self.text))
        elif event.key in self._newline_keys:
            self._replace_via_keyboard("\n", *self.selection)
        else:
            return
        event.stop()
        event.prevent_default()

    def _choose(self, key: str, suggestions: Suggestions) -> bool:
        """What `key` does with the open list; False where it is for the text."""
        if key in ("up", "down"):
            suggestions.move(1 if key == "down" else -1)
        elif key == "tab":
            self.accept(suggestions.marked)
        elif key in self._send_keys and not suggestions.marked.is_typed_in(self.before_cursor):
            is_whole = suggestions.marked.is_whole
            self.accept(suggestions.marked)
            if is_whole:
                self.post_message(self.Submitted(self.text))
        else:
            return False
        return True

    async def _on_paste(self, event: Paste) -> None:
        text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        event.text = self.blocks.fold_paste(text)
