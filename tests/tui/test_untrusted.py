"""A model's text is shown, never obeyed; and whatever it streams, the screen stands."""

import random

import pytest
from staged import StagedChat, answered, opened, say, shown, until
from textual.widgets import Markdown

from localmoe.engine.script import Script
from localmoe.errors import LocalmoeError
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.failure import Failure
from localmoe.tui.widgets.markdown import AnswerMarkdown

HOSTILE = "[bold red]x[/] [/nope] [@click=app.quit]q[/] $primary [link=http://x]y[/link]"
PIECES = [
    "# Title\n",
    "text ",
    "**bold** ",
    "`code` ",
    "\n\n",
    "\n",
    "- item\n",
    "1. one\n",
    "```python\n",
    "x = 1\n",
    "```\n",
    "| a | b |\n|---|---|\n",
    "| 1 | 2 |\n",
    "| ",
    "|",
    "> quote\n",
    "---\n",
    "* ",
    "*",
    "[link](http://x) ",
    "![img](y) ",
    "<b>html</b> ",
    "<div>\n",
    "&amp; ",
    "[/red] ",
    "한국어 ",
    "🎉",
    "    indented\n",
    "\\",
    "~~",
    "http://a.b ",
    "[^1]",
    "\t",
    "[x]: http://z\n",
    "- [ ] task\n",
    "$$x$$",
    "\x1b[31m",
    "\u2028",
]


async def show(pilot, text, thought=""):
    app = await opened(pilot)
    await say(pilot, "?")
    await answered(pilot)
    return app


@pytest.mark.parametrize("where", ["answer", "thought", "question", "error", "title"])
async def test_markup_is_text_everywhere(where):
    script = Script(HOSTILE if where == "answer" else "fine", HOSTILE if where == "thought" else "")
    if where == "error":
        script = Script(error=LocalmoeError(HOSTILE, HOSTILE))
    async with StagedChat([script]).run_test(size=(150, 40)) as pilot:
        app = await opened(pilot)
        await pilot.press("ctrl+t")
        await say(pilot, HOSTILE if where == "question" else "?")
        await until(pilot, lambda: app.query(Failure) if where == "error" else len(app.chat.conversation.messages) == 2)
        if where in ("answer", "thought", "question", "error"):
            assert "[bold red]x[/] [/nope] [@click=app.quit]q[/] $primary" in shown(app)


async def test_html_is_text():
    async with StagedChat(["A List<int> and <b>bold</b>.\n\n<div>block</div>"]).run_test() as pilot:
        app = await show(pilot, "")
        assert "List<int>" in shown(app) and "<b>bold</b>" in shown(app) and "<div>block</div>" in shown(app)


async def test_escape_sequences_never_reach_the_terminal():
    async with StagedChat([Script("a\x1b[2Jb\x07 `c\x9bd`", "t\x1b]0;x\x07")]).run_test() as pilot:
        await opened(pilot)
        await pilot.press("ctrl+t")
        app = await show(pilot, "")
        assert "a[2Jb" in shown(app)
        assert not any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 for c in shown(app))


async def test_links_are_not_followed(monkeypatch):
    async with StagedChat(["[click me](http://evil.example)"]).run_test() as pilot:
        app = await show(pilot, "")
        monkeypatch.setattr(app, "open_url", lambda *a, **k: pytest.fail("opened"))
        markdown = app.query_one(AnswerMarkdown)
        markdown.post_message(Markdown.LinkClicked(markdown, "http://evil.example"))
        await pilot.pause()


async def test_a_table_cell_under_the_mouse_is_no_markup():
    async with StagedChat(["| [/x] | [bold] |\n|---|---|\n| [/y] | z |"]).run_test(tooltips=True) as pilot:
        app = await show(pilot, "")
        assert all(cell.tooltip is None for cell in app.query("MarkdownTableCellContents"))
        await pilot.hover("MarkdownTableCellContents.header")
        await pilot.pause(0.6)


@pytest.mark.parametrize("seed", range(12))
async def test_any_markdown_in_any_pieces_ends_as_if_it_came_whole(seed):
    rng = random.Random(seed)
    text = "".join(rng.choices(PIECES, k=rng.randint(20, 80)))
    cuts = sorted(rng.sample(range(len(text)), min(len(text) - 1, 25)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    async with StagedChat(["fine"]).run_test(size=(100, 60)) as pilot:
        app = await show(pilot, "")
        turn = AnswerTurn("m")
        await app.chat.query_one("#turns").mount(turn)
        from localmoe.events import TextDelta

        for piece in pieces:
            await turn.write(TextDelta(piece))
            await pilot.pause(0.01)
        await turn.end(text, "", "stop")
        await pilot.pause()
        whole = AnswerTurn("m")
        await app.chat.query_one("#turns").mount(whole)
        await whole.end(text, "", "stop")
        await pilot.pause()
        assert turn.size == whole.size
        assert len(turn.query("*")) == len(whole.query("*"))
