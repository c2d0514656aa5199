"""Files, long pastes and earlier prompts while writing: what is shown, what is sent, and that nothing is lost."""

import json
import stat

import pytest
from staged import StagedChat, answered, opened, say, shown, until
from textual import events

from localmoe.tui.blocks import Blocks
from localmoe.tui.prompt_history import PromptHistory
from localmoe.tui.screens.confirm import ConfirmScreen
from localmoe.tui.widgets.prompt_box import PromptBox
from localmoe.tui.widgets.said import Said
from localmoe.tui.widgets.suggestions import Suggestions

LINES = "\n".join(f"line {number}" for number in range(40))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("one two three\nfour")
    (tmp_path / "nose.txt").write_text("n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("pass")
    return tmp_path


def edge(app):
    return str(app.query_one(PromptBox).border_subtitle)


def sent(app, place=-2):
    return app.chat.conversation.messages[place].text


async def paste(pilot, text):
    pilot.app.post_message(events.Paste(text))
    await pilot.pause()


# Files


async def test_a_named_file_shows_its_tokens_before_it_is_sent():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("What is in @notes.md?")
        await until(pilot, lambda: "notes.md 7 tok" in edge(app) and "11 tok in all" in edge(app))
        await until(pilot, lambda: "0 + 11 of 4,096" in shown(app))
        await pilot.press("enter")
        await answered(pilot)
        assert sent(app) == 'What is in notes.md?\n\n<file path="notes.md">\none two three\nfour\n</file>'
        assert "▸ notes.md, 2 lines" in shown(app) and "one two three" not in shown(app)
        assert app.prompt.text == ""
        await until(pilot, lambda: edge(app) == "")


async def test_a_click_opens_an_attached_file():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "@notes.md")
        await answered(pilot)
        await pilot.pause()
        fold = next(said for said in app.query(Said) if said._file)
        await pilot.click(fold)
        assert "▾ notes.md" in shown(app) and "one two three" in shown(app)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [("none.md", None, "there is no file"), ("a.bin", b"\0\1", "not a text file"), ("src", None, "is a folder")],
)
async def test_a_file_that_cannot_be_attached_is_said_and_nothing_is_lost(folder, name, data, said):
    if data:
        (folder / name).write_bytes(data)
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, f"See @{name} please")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert said in " ".join(shown(app).split())
        await pilot.press("escape")
        assert app.prompt.text == f"See @{name} please" and not app.scripted.requests
        await until(pilot, lambda: said.split()[-1] in edge(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("enter")
        await answered(pilot)
        assert sent(app) == f"See @{name} please"


async def test_an_at_lists_paths_and_goes_into_folders():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press(*"see @")
        await until(pilot, lambda: "src/" in shown(app) and "notes.md" in shown(app))
        await pilot.press("s", "tab")
        await until(pilot, lambda: app.prompt.text == "see @src/" and "src/app.py" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.prompt.text == "see @src/app.py ")
        assert not app.query_one(Suggestions).is_open
        await pilot.press("enter")
        await answered(pilot)
        assert '<file path="src/app.py">' in sent(app)


async def test_enter_behind_a_whole_path_sends():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await pilot.press(*"@notes.md")
        await until(pilot, lambda: app.query_one(Suggestions).is_open)
        await pilot.press("enter")
        await answered(pilot)
        assert "one two three" in sent(app)


async def test_a_question_with_a_file_comes_back_to_be_changed_with_what_was_read(folder):
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "What is in @notes.md?")
        await answered(pilot)
        before = sent(app)
        (folder / "notes.md").unlink()
        await pilot.press("ctrl+up")
        assert app.prompt.text == "What is in notes.md?\n\n[file notes.md: 2 lines]"
        await pilot.press("enter")
        await answered(pilot)
        assert sent(app) == before


# Long pastes


async def test_a_long_paste_is_folded_with_its_lines_and_tokens_and_sent_whole():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        app.prompt.insert("Explain: ")
        await paste(pilot, LINES)
        assert app.prompt.text == "Explain: [pasted 1: 40 lines]"
        await until(pilot, lambda: "pasted 1: 40 lines 80 tok" in edge(app))
        await pilot.press("enter")
        await answered(pilot)
        assert sent(app) == f"Explain: {LINES}"
        assert "line 15" in shown(app).replace("▸", "") or "24 lines more" in shown(app)
        assert "line 30" not in shown(app)


async def test_a_folded_text_is_one_piece_to_keys():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await paste(pilot, LINES)
        await pilot.press("left", "left", "x")
        assert app.prompt.text == "[pasted 1: 40 lines]x"
        await pilot.press("backspace", "backspace")
        assert app.prompt.text == ""
        await pilot.press("ctrl+z")
        assert app.prompt.whole.startswith(LINES)


async def test_a_paste_in_the_place_of_a_selection_that_cuts_a_folded_text():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await paste(pilot, LINES)
        await pilot.press("shift+left", "shift+left", "y")
        assert app.prompt.text == "y"


async def test_two_pastes_stay_apart():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await paste(pilot, LINES)
        await paste(pilot, LINES.upper())
        assert app.prompt.text == "[pasted 1: 40 lines][pasted 2: 40 lines]"
        assert app.prompt.whole == LINES + LINES.upper()


async def test_a_paste_of_a_hundred_thousand_lines_is_quick_to_type_behind():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await paste(pilot, "word\n" * 100_000)
        await pilot.press("x")
        assert app.prompt.text == "[pasted 1: 100,000 lines]x"
        await until(pilot, lambda: "tok" in edge(app))


def test_the_question_of_a_failed_answer_comes_back_as_it_can_be_changed():
    blocks = Blocks()
    text = "a\n" * 15_000
    label = blocks.fold_again(text)
    assert label == "[pasted 1: 15,000 lines]" and blocks.whole(label) == text
    assert blocks.fold_again("short") == "short"


# What was sent before


async def test_up_and_down_at_the_edges_bring_back_what_was_sent():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        for text in ("first", "second\nof two lines"):
            await say(pilot, text)
            await answered(pilot)
        app.prompt.insert("a draft")
        await pilot.press("up")
        assert app.prompt.text == "second\nof two lines"
        await pilot.press("up")
        assert app.prompt.text == "first"
        await pilot.press("up")
        assert app.prompt.text == "first"
        await pilot.press("down")
        assert app.prompt.text == "second\nof two lines"
        await pilot.press("down")
        assert app.prompt.text == "a draft"


async def test_up_within_several_lines_moves_the_cursor():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "before")
        await answered(pilot)
        await pilot.press("a", "ctrl+j", "b", "up")
        assert app.prompt.text == "a\nb"
        await pilot.press("up")
        assert app.prompt.text == "before"


async def test_commands_are_remembered_too_and_open_no_list():
    async with StagedChat().run_test() as pilot:
        app = await opened(pilot)
        await say(pilot, "first")
        await answered(pilot)
        await say(pilot, "/set seed 7")
        await pilot.pause()
        await pilot.press("up")
        await pilot.pause()
        assert app.prompt.text == "/set seed 7" and not app.query_one(Suggestions).is_open
        await pilot.press("up")
        assert app.prompt.text == "first"


async def test_what_was_sent_is_there_in_the_next_run_and_for_nobody_else(folder):
    for text, before in (("first", None), ("second", "first")):
        async with StagedChat(history=folder / "data" / "chats.db").run_test() as pilot:
            app = await opened(pilot)
            await pilot.press("up")
            assert app.prompt.text == (before or "")
            app.prompt.text = ""
            await say(pilot, text)
            await answered(pilot)
    kept = folder / "data" / "prompts.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [json.loads(line) for line in kept.read_text().splitlines()] == ["first", "second"]


async def test_without_keeping_nothing_is_written(folder):
    async with StagedChat().run_test() as pilot:
        await opened(pilot)
        await say(pilot, "secret")
        await answered(pilot)
    assert not list(folder.rglob("prompts.jsonl"))


def test_a_line_that_a_crash_cut_costs_only_itself(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'"one"\n"tw\n"\xff"\n7\n"three"\n')
    past = PromptHistory(path)
    seen = [past.earlier("") for _ in range(4)]
    assert seen[0] == "three" and "one" in seen and seen[-1] is None


def test_a_file_that_grew_is_put_aside_and_still_read(tmp_path):
    path = tmp_path / "prompts.jsonl"
    past = PromptHistory(path)
    for number in range(15):
        past.add(f"{number} " + "x" * 90_000)
    assert path.stat().st_size < 1_100_000
    again = PromptHistory(path)
    assert again.earlier("").startswith("14 ")
    assert [again.earlier("")[:3] for _ in range(13)][-1].startswith("1 ")


def test_a_folder_that_cannot_be_written_costs_nothing_now(tmp_path):
    (tmp_path / "data").write_text("a file")
    past = PromptHistory(tmp_path / "data" / "prompts.jsonl")
    past.add("first")
    assert past.earlier("") == "first"
