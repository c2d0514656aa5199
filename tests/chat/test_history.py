"""Chats stay: what is kept, found, continued and brought back."""

import os
import sqlite3
import stat
from dataclasses import replace

import pytest

from localmoe.chat.history.history import KEPT_AFTER_DELETE_MS, History, now_ms
from localmoe.chat.history.parameters import configured, settings_in
from localmoe.chat.history.pen import KEEP_EVERY_S, Pen
from localmoe.chat.history.records import Chat, conversation_of, new_id
from localmoe.chat.history.schema import MIGRATIONS, VERSION
from localmoe.chat.history.search import search
from localmoe.chat.message import Message
from localmoe.errors import ChatNotFoundError, LocalmoeError, NotReadyError, UsageError
from localmoe.events import Failed, Finished, Stats, TextDelta
from localmoe.settings import Settings


def no_notice(message, hint):
    raise AssertionError(message)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def history(path):
    with History(path, no_notice) as history:
        yield history


def finished(text="An answer.", reason="stop", reasoning=""):
    return Finished(reason, text, reasoning, 10, 0, 3, 0.5, 20.0, 30.0)


def talk(history, *texts, chat=None, reasoning="", **more):
    """A chat of questions and answers in turn."""
    chat = chat or Chat(new_id(), **more)
    pen = Pen(history, chat)
    for question, answer in zip(texts[::2], texts[1::2], strict=True):
        pen.ask(question, "guide")
        pen.hear(finished(answer, reasoning=reasoning))
    return history.chat(chat.id)


def texts(history, chat):
    return [turn.text for turn in history.line(chat)]


def test_a_chat_is_there_with_its_first_question(history):
    chat = Chat(new_id(), model="guide", system="Be brief.", parameters={"temperature": 0.2})
    Pen(history, chat).ask("What  is\na router?", "guide")
    kept = history.chat(chat.id)
    assert (kept.title, kept.system, kept.parameters) == ("What is a router?", "Be brief.", {"temperature": 0.2})
    question, answer = history.line(kept)
    assert (question.role, question.text) == ("user", "What  is\na router?")
    assert (answer.role, answer.text, answer.ending) == ("assistant", "", "writing")


def test_an_answer_is_kept_with_its_thought_figures_and_ending(history):
    chat = Chat(new_id())
    pen = Pen(history, chat)
    pen.ask("Hm?", "guide")
    pen.hear(Stats(10, 0, 3, 2, 13, 100, thought_s=1.5))
    pen.hear(finished("Yes.", "length", reasoning="I think so."))
    answer = history.line(chat)[-1]
    assert (answer.text, answer.reasoning, answer.ending, answer.model) == ("Yes.", "I think so.", "length", "guide")
    assert (answer.figures["thought_tokens"], answer.figures["thought_s"]) == (2, 1.5)


def test_what_the_engine_reads_next_is_the_whole_branch(history):
    chat = talk(history, "One?", "1", "Two?", "2", reasoning="hm", system="Count.")
    assert conversation_of(chat.system, history.line(chat)).messages == (
        Message("system", "Count."),
        Message("user", "One?"),
        Message("assistant", "1", "hm"),
        Message("user", "Two?"),
        Message("assistant", "2", "hm"),
    )


def test_a_growing_answer_is_at_most_half_a_second_behind(history):
    clock = [100.0]
    chat = Chat(new_id())
    pen = Pen(history, chat, clock=lambda: clock[0])
    pen.ask("Hm?", "guide")
    assert pen.due_s() is None
    clock[0] += 0.2
    pen.hear(TextDelta("a thought", "thought"))
    assert pen.due_s() == pytest.approx(KEEP_EVERY_S - 0.2)
    pen.keep_what_is_due()
    assert history.line(chat)[-1].reasoning == ""
    clock[0] += 0.3
    pen.hear(TextDelta("text"))
    pen.keep_what_is_due()
    answer = history.line(chat)[-1]
    assert (answer.text, answer.reasoning, answer.ending) == ("text", "a thought", "writing")
    assert pen.due_s() is None


def test_another_answer_keeps_the_first_as_a_branch(history):
    chat = Chat(new_id())
    pen = Pen(history, chat)
    for question, answer in (("One?", "1"), ("Two?", "2")):
        pen.ask(question, "guide")
        pen.hear(finished(answer))
    first = history.line(chat)
    pen.ask(None, "guide", at=1)  # another answer to the first question
    pen.hear(finished("uno"))
    assert texts(history, chat) == ["One?", "uno"]
    pen.ask("One??", "guide", at=0)  # the first question in other words
    pen.hear(finished("1!"))
    assert texts(history, chat) == ["One??", "1!"]
    history.use(chat, first[-1].id)
    assert history.line(chat) == first
    assert len(history.tree(chat)) == history.chat(chat.id).num_turns == 7


def test_a_failure_without_a_word_leaves_nothing(history):
    chat = Chat(new_id())
    pen = Pen(history, chat)
    pen.ask("Hm?", "guide")
    pen.hear(Failed("no memory"))
    assert history.chats() == ()
    pen.ask("Hm?", "guide")
    pen.hear(finished("Better."))
    pen.ask("And?", "guide")
    pen.hear(Failed("no memory"))
    assert texts(history, chat) == ["Hm?", "Better."]


def test_a_failure_in_the_middle_keeps_what_came_beside_the_next_try(history):
    chat = talk(history, "Hm?", "Yes.")
    pen = Pen(history, chat, tuple(turn.id for turn in history.line(chat)))
    pen.ask("And?", "guide")
    pen.hear(TextDelta("Well, "))
    pen.hear(Failed("no memory"))
    assert [(t.text, t.ending) for t in history.line(chat)][2:] == [("And?", "stop"), ("Well, ", "failed")]
    pen.ask("And then?", "guide")
    pen.hear(finished("That."))
    assert texts(history, chat) == ["Hm?", "Yes.", "And then?", "That."]
    assert "Well, " in [turn.text for turn in history.tree(chat)]


def test_two_who_continue_one_chat_lose_nothing(history):
    chat = talk(history, "Hm?", "Yes.")
    line = tuple(turn.id for turn in history.line(chat))
    one, two = Pen(history, chat, line), Pen(history, chat, line)
    one.ask("One?", "guide")
    two.ask("Two?", "guide")
    one.hear(finished("1"))
    two.hear(finished("2"))
    assert texts(history, chat) == ["Hm?", "Yes.", "Two?", "2"]
    assert {"One?", "1"} < {turn.text for turn in history.tree(chat)}


def test_chats_are_listed_by_use_and_found_by_the_beginning_of_their_id(history):
    first = talk(history, "First?", "1", chat=Chat("abcdef"))
    talk(history, "Second?", "2", chat=Chat("abxyz2"))
    with history.writing() as db:
        db.execute("UPDATE chats SET updated_ms = updated_ms - CASE id WHEN 'abcdef' THEN 2000 ELSE 1000 END")
    assert [chat.id for chat in history.chats()] == ["abxyz2", "abcdef"]
    assert history.last().id == "abxyz2"
    Pen(history, first, tuple(turn.id for turn in history.line(first))).ask("More?", "guide")
    assert history.last().id == history.chat("ABC").id == "abcdef"
    with pytest.raises(UsageError, match="several chats begin with 'ab'") as several:
        history.chat("ab")
    assert "abcdef" in several.value.hint and "abxyz2" in several.value.hint
    for unknown in ("zzz", "", "%"):
        with pytest.raises(ChatNotFoundError):
            history.chat(unknown)


def test_without_chats_there_is_no_last_one(history):
    with pytest.raises(ChatNotFoundError, match="no chat yet"):
        history.last()


def test_a_chat_is_renamed(history):
    chat = talk(history, "Hm?", "Yes.")
    history.rename(chat, "  A better\nname ")
    assert history.chat(chat.id).title == "A better name"
    with pytest.raises(UsageError):
        history.rename(chat, " ")


def test_a_deleted_chat_comes_back_whole(history):
    chat = talk(history, "Hm?", "Yes, a router.")
    history.delete(chat)
    assert history.chats() == () and not search(history, "router")
    with pytest.raises(ChatNotFoundError):
        history.chat(chat.id)
    assert [c.id for c in history.chats(deleted=True)] == [chat.id]
    history.restore(history.chat(chat.id, deleted=True))
    assert history.chat(chat.id) == chat and texts(history, chat) == ["Hm?", "Yes, a router."]
    assert search(history, "router")


def test_after_thirty_days_a_deleted_chat_is_gone(path):
    with History(path, no_notice) as history:
        old = talk(history, *["question", "answer"] * 1000)  # deeper than SQLite lets cascades go
        recent = talk(history, "Hm?", "Yes.")
        history.delete(old)
        history.delete(recent)
        with history.writing() as db:
            then = now_ms() - KEPT_AFTER_DELETE_MS - 1
            db.execute("UPDATE chats SET deleted_ms = ? WHERE id = ?", (then, old.id))
    with History(path, no_notice) as history:
        assert [chat.id for chat in history.chats(deleted=True)] == [recent.id]
        assert history.rows("SELECT count(*) AS n FROM turns")[0]["n"] == 2


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ("router", "router"),
        ("ROUTER", "router"),
        ("oute", "oute"),
        ("混合专家", "混合专家"),
        ("专家", "专家"),
        ("家", "家"),
        ("전문가", "전문가"),
        ("GRÖß", "größ"),
        ("100%", "100%"),
        ('"quoted"', '"quoted"'),
        ("a_b", "a_b"),
        ("OR", "or"),
        ("NEAR(", "NEAR("),
    ],
)
def test_search_finds(history, wanted, match):
    chat = talk(history, "Hm?", 'A router or two; 混合专家 모델의 전문가, größe: 100% of "quoted" a_b NEAR(x)')
    (hit,) = search(history, wanted)
    assert (hit.chat.id, hit.turn, hit.match.lower()) == (chat.id, history.line(chat)[-1].id, match.lower())
    assert hit.before + hit.match + hit.after


def test_search_wants_every_word_and_takes_none_for_a_pattern(history):
    talk(history, "Which router?", "The first of two.")
    assert search(history, "which router") and search(history, "router wh")
    for wanted in ("router gate", "ro%er", "r_uter", "%", "_", "", "  ", "zz"):
        assert not search(history, wanted), wanted


def test_search_shows_what_is_around(history):
    chat = talk(history, "Hm?", "x " * 50 + "before\n\n  needle\tafter " + "y " * 50)
    (hit,) = search(history, "needle")
    assert hit.before.startswith("…") and hit.before.endswith("before ")
    assert hit.after.startswith(" after y") and hit.after.endswith("…")
    history.rename(chat, "A needle in the title")
    title, turn = search(history, "needle")
    assert (title.turn, turn.turn) == (None, hit.turn)


def test_search_finds_an_answer_once_it_has_ended(history):
    pen = Pen(history, Chat(new_id()))
    pen.ask("Hm?", "guide")
    pen.hear(TextDelta("a needle"))
    pen.finish("cancelled")
    assert len(search(history, "needle")) == 1


def test_the_file_is_private(path):
    before = os.umask(0)
    try:
        with History(path, no_notice) as history:
            talk(history, "Hm?", "Yes.")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
            assert modes["chats.db-wal"] == modes["chats.db"] == 0o600
            assert set(modes.values()) == {0o600}
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    path.chmod(0o644)
    History(path, no_notice).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_has_a_log_and_a_version(history, path):
    assert history.rows("PRAGMA journal_mode")[0][0] == "wal"
    assert history.rows("PRAGMA foreign_keys")[0][0] == 1
    assert history.rows("PRAGMA user_version")[0][0] == VERSION


def older_file(path, version):
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as db:
        for step in MIGRATIONS[:version]:
            db.executescript(step)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("INSERT INTO chats VALUES (1, 'abcdef', 'Old', 'guide', '', '{}', NULL, 1, 1, NULL)")
        columns = "chat, parent, role, text, reasoning, model, ending, figures, created_ms"
        db.execute(f"INSERT INTO turns ({columns}) VALUES (1, NULL, 'user', 'a needle?', '', '', 'stop', '{{}}', 1)")
        db.execute("UPDATE chats SET leaf = 1")
    db.close()


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_an_older_file_is_brought_up_to_date(path, version):
    older_file(path, version)
    with History(path, no_notice) as history:
        assert history.rows("PRAGMA user_version")[0][0] == VERSION
        assert texts(history, history.chat("abcdef")) == ["a needle?"]
        assert [hit.chat.title for hit in search(history, "needle")] == ["Old"]


def test_a_step_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    older_file(path, 1)
    from localmoe.chat.history import schema

    broken = (MIGRATIONS[0], "CREATE TABLE half (x); INSERT INTO nothing VALUES (1);")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", broken)
        with pytest.raises(LocalmoeError, match="nothing"):
            History(path, no_notice)
    with sqlite3.connect(path) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        assert "half" not in tables and db.execute("PRAGMA user_version").fetchone() == (1,)
    db.close()
    with History(path, no_notice) as history:
        assert search(history, "needle")


def test_a_newer_file_is_left_alone(path):
    History(path, no_notice).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(NotReadyError, match="newer localmoe"):
        History(path, no_notice)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["not a database", "a torn page", "cut short"])
def test_a_damaged_file_is_set_aside_and_said(path, damage):
    with History(path, no_notice) as history:
        for _ in range(30):
            talk(history, "Hm? " * 50, "Yes. " * 100)
    whole = path.read_bytes()
    damaged = {
        "not a database": b"this is no database at all" * 100,
        "a torn page": whole[:4096] + b"\xff" * 8192 + whole[12288:],
        "cut short": whole[: len(whole) // 2],
    }[damage]
    path.write_bytes(damaged)
    said = []
    with History(path, lambda *notice: said.append(notice)) as history:
        assert history.chats() == ()
        talk(history, "Hm?", "Yes.")
    (aside,) = path.parent.glob("chats.damaged-*.db")
    assert aside.read_bytes() == damaged
    ((message, hint),) = said
    assert "damaged" in message and str(aside) in hint
    History(path, no_notice).close()


def test_a_file_that_cannot_be_written_is_explained(path):
    path.mkdir(parents=True)
    with pytest.raises(LocalmoeError, match="chats cannot be kept in") as error:
        History(path, no_notice)
    assert "--no-save" in error.value.hint


def test_halves_of_characters_are_kept_as_question_marks(history):
    chat = talk(history, "a\ud800b", "c\udfffd 🎉")
    assert texts(history, chat) == ["a?b", "c?d 🎉"]


def test_answers_of_a_process_that_is_gone_are_closed(path):
    with History(path, no_notice) as history:
        chats = [Chat(new_id()) for _ in range(3)]
        for chat in chats:
            Pen(history, chat).ask("Hm?", "guide")
        writers = ("999999999.1", f"{os.getpid()}.1")  # no such process; another process had this id
        with history.writing() as db:
            for writer, chat in zip(writers, chats, strict=False):
                db.execute(
                    "UPDATE turns SET writer = ? WHERE role = 'assistant' AND chat ="
                    " (SELECT pk FROM chats WHERE id = ?)",
                    (writer, chat.id),
                )
    with History(path, no_notice) as history:
        assert [history.line(chat)[-1].ending for chat in chats] == ["killed", "killed", "writing"]


def test_what_is_in_force_for_a_question_belongs_to_the_chat(history):
    chat = talk(history, "Hm?", "Yes.", system="Be brief.", parameters={"seed": 1})
    talk(history, "And?", "No.", chat=replace(chat, system="Be long.", parameters={"seed": 2, "think": False}))
    kept = history.chat(chat.id)
    assert (kept.system, kept.parameters) == ("Be long.", {"seed": 2, "think": False})


def test_the_settings_of_a_chat_win_except_over_a_flag():
    before = Settings(temperature=0.5, seed=3, origins={"temperature": "flag", "seed": "environment"})
    chat = Chat("one", model="deepseek-v3.1", parameters={"temperature": 0.1, "seed": 1, "max_tokens": 9})
    settings = settings_in(chat, before)
    assert (settings.model, settings.temperature, settings.seed, settings.max_tokens) == ("deepseek-v3.1", 0.5, 1, 9)
    assert configured(chat, settings).parameters == {"temperature": 0.5, "seed": 1, "max_tokens": 9}


def test_a_folder_is_remembered_wherever_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert configured(Chat("one"), Settings(model=".")).model == str(tmp_path)
    assert configured(Chat("one"), Settings(model="guide")).model == "guide"


def test_times_are_in_order(history):
    chat = talk(history, "Hm?", "Yes.")
    assert chat.created_ms <= chat.updated_ms <= now_ms()
