"""Markdown of a model: shown as written, never obeyed, and streamed without surprises."""

from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from pygments.token import Token  # type: ignore[import-untyped]
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.highlight import HighlightTheme, highlight
from textual.widget import Widget
from textual.widgets import Label, Markdown
from textual.widgets._markdown import (
    MarkdownBlock,
    MarkdownFence,
    MarkdownHeader,
    MarkdownParagraph,
    MarkdownTable,
    MarkdownTableContent,
)

from localmoe.tui.printable import printable
from localmoe.tui.widgets.copy_mark import CopyMark
from localmoe.tui.widgets.line import Line
from localmoe.tui.widgets.settled import Settled


class Paragraph(Settled, MarkdownParagraph):
    """Text that grows at its end: a new layout only for a new line, since a layout costs as much as ten repaints."""

    def set_content(self, content: Content) -> None:
        is_laid_out = self.is_attached and self.size.width > 0
        stays = is_laid_out and content.get_height({}, self.size.width) == self.size.height
        self._content = content
        self.update(content, layout=not stays)


class CodeColours(HighlightTheme):
    """Textual's, calmer: no underlined names, no bold operators."""

    STYLES = {  # noqa: RUF012
        **HighlightTheme.STYLES,
        Token.Name: "",
        Token.Name.Function: "$text-primary",
        Token.Name.Function.Magic: "$text-primary",
        Token.Name.Class: "$text-primary bold",
        Token.Operator: "",
        Token.Operator.Word: "$text-accent",
        Token.Keyword.Namespace: "$text-accent",
    }


class Fence(MarkdownFence):
    """Code. Its language is the one that was named; guessing costs up to a second and is mostly wrong."""

    _drawn = (0, 0)

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        if ansi:
            return super().highlight(code, language or "text", ansi, dark)
        return highlight(code, language=language or "text", theme=CodeColours)

    def compose(self) -> ComposeResult:
        with Horizontal(classes="fence-head"):
            yield Line(printable(self.lexer.split(" ")[0]), classes="fence-language")
            yield CopyMark(lambda: self.code.removesuffix("\n"), "this block of code")
        yield from super().compose()

    def set_content(self, content: Content) -> None:
        self._content = content
        for label in self.query(Label):
            was, self._drawn = self._drawn, _extent(content)
            label.update(content, layout=self._drawn != was)


class TableContent(MarkdownTableContent):
    """Cells without tooltips: Textual reads a tooltip's text as markup."""

    def compose(self) -> Any:
        for cell in super().compose():
            yield cell.with_tooltip(None)


class Table(MarkdownTable):
    """A table that is built anew when it grows; Textual's way of adding rows breaks when a row turns out to be none."""

    def compose(self) -> Any:
        self._headers, self._rows = self._get_headers_and_rows()
        yield TableContent(self._headers, self._rows)

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        await MarkdownBlock._update_from_block(self, block)


class AnswerMarkdown(Settled, Markdown):
    """An answer. Links are shown and not followed; HTML is text."""

    DEFAULT_CSS = """
    AnswerMarkdown {
        padding: 0;
        MarkdownFence { margin: 0 0 1 0; background: $surface; border-left: outer $primary 40%; }
        MarkdownFence > Label { padding: 0 1; }
        .fence-head { dock: top; height: 1; padding: 0 1; align-horizontal: right; }
        .fence-language { width: auto; height: 1; color: $text-disabled; margin-right: 2; }
        MarkdownH1, MarkdownH2, MarkdownH3, MarkdownH4, MarkdownH5, MarkdownH6 {
            margin: 0 0 1 0; content-align: left middle; text-style: bold; color: $primary; background: transparent;
        }
        MarkdownBlockQuote { margin: 0 0 1 0; background: transparent; border-left: outer $secondary 50%; }
        MarkdownTable { background: transparent; }
        MarkdownHorizontalRule { border-bottom: solid $foreground 20%; padding-top: 0; }
        & > .-last { margin-bottom: 0; }
    }
    """

    BLOCKS = {  # noqa: RUF012
        **Markdown.BLOCKS,
        "fence": Fence,
        "code_block": Fence,
        "table_open": Table,
        "paragraph_open": Paragraph,
    }

    def __init__(self) -> None:
        super().__init__(parser_factory=cache(_parser), open_links=False)
        self._last: Widget | None = None

    async def write(self, text: str) -> None:
        """Adds `text` at the end."""
        await self.append(text)
        self._mark_last()

    async def write_anew(self, text: str) -> None:
        """Shows `text` instead of what is there, parsed as a whole."""
        if not (text == self.source and self._is_settled):
            await self.update(text)
            self._mark_last()

    @property
    def _is_settled(self) -> bool:
        """Whether what is there, written bit by bit, is what its text makes as a whole."""
        is_plain = all(isinstance(block, Paragraph | MarkdownHeader) for block in self.children)
        return is_plain and "]:" not in self.source  # what a link refers to may come behind it

    def _mark_last(self) -> None:
        """A class, since Textual styles all blocks again whenever one comes where a rule has `:last-child`."""
        last = self.children[-1] if self.children else None
        if last is not self._last:
            if self._last:
                self._last.remove_class("-last")
            if last:
                last.add_class("-last")
            self._last = last


def _extent(code: Content) -> tuple[int, int]:
    lines = code.split()
    return len(lines), max((line.cell_length for line in lines), default=0)


def _parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False})
