"""The prompt in $EDITOR: what comes back, and that a failing editor costs nothing."""

import os
from contextlib import nullcontext

import pytest
from staged import StagedChat, opened, told, until

from localmoe.errors import LocalmoeError, UsageError
from localmoe.tui.editor import edit, editor_command


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Makes $EDITOR a script of these lines; $1 is the file."""

    def make(*lines):
        path = tmp_path / "an editor"
        path.write_text("\n".join(("#!/bin/sh", *lines)))
        path.chmod(0o755)
        monkeypatch.setenv("EDITOR", f"'{path}' -x")
        monkeypatch.delenv("VISUAL", raising=False)
        return path

    return make


class Suspendable(StagedChat):
    def suspend(self):
        return nullcontext()


async def edited(pilot, text):
    app = await opened(pilot)
    app.prompt.insert(text)
    await pilot.press("ctrl+g")
    return app


async def test_what_was_written_comes_to_the_prompt(editor):
    editor('printf "and more\\n" >> "$2"')
    async with Suspendable().run_test() as pilot:
        app = await edited(pilot, "some words ")
        await until(pilot, lambda: app.prompt.text == "some words and more")
        await pilot.press("ctrl+z")
        assert app.prompt.text == "some words "


async def test_the_editor_gets_folded_texts_whole_and_they_come_back_folded(editor, tmp_path):
    editor(f'cp "$2" {tmp_path}/seen', 'printf "!" >> "$2"')
    lines = "\n".join(map(str, range(40)))
    async with Suspendable().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert(app.prompt.blocks.fold_paste(lines))
        await pilot.press("ctrl+g")
        await until(pilot, lambda: app.prompt.text == "[pasted 1: 40 lines]!")
    assert (tmp_path / "seen").read_text() == lines


async def test_the_file_is_the_users_alone_and_goes_away(editor, tmp_path):
    editor(f'ls -ld "$(dirname "$2")" > {tmp_path}/seen', f'echo "$2" > {tmp_path}/name')
    async with Suspendable().run_test() as pilot:
        await edited(pilot, "x")
        await until(pilot, (tmp_path / "name").exists)
        await until(pilot, lambda: not os.path.exists((tmp_path / "name").read_text().strip()))  # noqa: PTH110
    assert (tmp_path / "seen").read_text().startswith("drwx------")


@pytest.mark.parametrize(
    ("line", "said"),
    [("exit 3", "ended with 3"), ('printf "\\377" > "$2"', "cannot be read"), ('rm "$2"', "cannot be read")],
)
async def test_a_failing_editor_leaves_the_text(editor, line, said):
    editor(line)
    async with Suspendable().run_test(notifications=True) as pilot:
        app = await edited(pilot, "my words")
        await until(pilot, lambda: said in told(app))
        assert app.prompt.text == "my words"


async def test_an_editor_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    monkeypatch.delenv("VISUAL", raising=False)
    async with Suspendable().run_test() as pilot:
        app = await opened(pilot)
        with pytest.raises(LocalmoeError, match="/nowhere/editor cannot be started"):
            await edit(app, "x")


def test_which_editor():
    assert editor_command({"VISUAL": "code --wait", "EDITOR": "vi"}) == ["code", "--wait"]
    assert editor_command({"EDITOR": "vi", "VISUAL": " "}) == ["vi"]
    with pytest.raises(UsageError, match="there is no editor") as caught:
        editor_command({"PATH": "/nowhere"})
    assert "export EDITOR" in caught.value.hint
    with pytest.raises(UsageError, match=r"\$EDITOR cannot be read"):
        editor_command({"EDITOR": "vi '"})
