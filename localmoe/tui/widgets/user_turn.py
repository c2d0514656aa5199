"""What the user said, exactly as written; files and long texts folded."""

from textual.app import ComposeResult
from textual.containers import Vertical

from localmoe.chat.attachment import sections
from localmoe.tui.printable import printable
from localmoe.tui.widgets.copy_mark import CopyMark
from localmoe.tui.widgets.line import Line
from localmoe.tui.widgets.said import Said
from localmoe.tui.widgets.settled import Settled, SettledRow


class UserTurn(Settled, Vertical):
    """Never markup, never Markdown: a question shows as it was typed."""

    DEFAULT_CSS = """
    UserTurn {
        height: auto; margin: 0 0 1 0; padding: 0 1; border-left: outer $primary; background: $surface; max-width: 110;
        & > .head { height: 1; }
        & .role { width: auto; text-style: bold; color: $primary; margin-right: 2; }
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with SettledRow(classes="head"):
            yield Line("You", classes="role")
            yield CopyMark(lambda: printable(self.text), "the question")
        place = 0
        for section in sections(self.text):
            if before := self.text[place : section.start].strip("\n"):
                yield Said(before)
            yield Said(section.text, section.name)
            place = section.end
        if not place:
            yield Said(self.text)
        elif rest := self.text[place:].strip("\n"):
            yield Said(rest)
