"""`localmoe chats`, and what `ask` keeps and continues."""

import json
import signal
import sqlite3
import time

import pytest
from process import scripted
from typer.testing import CliRunner

from localmoe.chat.history.history import History
from localmoe.chat.history.pen import Pen
from localmoe.chat.history.records import Chat, new_id
from localmoe.cli.doors import app
from localmoe.events import Finished

HELLO = scripted("'Hello there.'")
ECHO = scripted("0").replace("[0]", "lambda r: ' | '.join(m.text for m in r.conversation.messages)")
TELL = scripted("0").replace("[0]", "lambda r: f'{r.conversation.system} {r.sampling.seed} {r.max_tokens}'")
SLOW = scripted("Script('one two three four five six seven eight nine ten', prefill_ticks=1)", time_scale=20)


def lines(raw: bytes) -> list[str]:
    return raw.decode().splitlines()


def history_of(home):
    return History(home.folder / ".local/share/localmoe/chats.db", lambda *notice: None)


def listed(home, *, deleted=False):
    with history_of(home) as history:
        return history.chats(deleted=deleted)


def turns(home, chat):
    with history_of(home) as history:
        return [(turn.text, turn.ending) for turn in history.tree(chat)]


def keep(home, *texts):
    """A chat of questions and answers in turn."""
    with history_of(home) as history:
        chat = Chat(new_id())
        pen = Pen(history, chat)
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            pen.ask(question, "guide")
            pen.hear(Finished("stop", answer, "", 1, 0, 1, None, None, None))
        return chat.id


def test_ask_keeps_its_chat_and_goes_on_with_it(home):
    home.run("ask", "one?", program=HELLO)
    done = home.run("ask", "-c", "two?", program=ECHO)
    assert done.stdout == b"one? | Hello there. | two?\n"
    (listing,) = json.loads(home.run("chats", "list", "--json").stdout)["chats"]
    assert list(listing) == ["id", "title", "model", "created", "updated", "turns"] and listing["turns"] == 4
    (chat,) = listed(home)
    assert (chat.title, chat.num_turns, chat.model) == ("one?", 4, "guide")
    home.run("ask", "another?", program=HELLO)
    done = home.run("ask", "--chat", chat.id[:5], "three?", program=ECHO)
    assert done.stdout.startswith(b"one? | Hello there. | two? | one? |") and done.stdout.endswith(b"| three?\n")
    assert listed(home)[0].id == chat.id


def test_no_save_keeps_nothing_and_can_still_go_on(home):
    home.run("ask", "--no-save", "one?", program=HELLO)
    assert not (home.folder / ".local").exists()
    home.run("ask", "one?", program=HELLO)
    assert home.run("ask", "-c", "--no-save", "two?", program=ECHO).stdout == b"one? | Hello there. | two?\n"
    assert listed(home)[0].num_turns == 2


def test_system_prompt_and_parameters_belong_to_the_chat(home):
    home.run("ask", "-s", "Be brief.", "--seed", "7", "--max-tokens", "50", "one?", program=HELLO)
    assert home.run("ask", "-c", "two?", program=TELL).stdout == b"Be brief. 7 50\n"
    assert home.run("ask", "-c", "two?", program=TELL, LOCALMOE_SEED="3").stdout == b"Be brief. 7 50\n"
    assert home.run("ask", "-c", "--seed", "9", "-s", "Be long.", "x?", program=TELL).stdout == b"Be long. 9 50\n"
    assert home.run("ask", "-c", "again?", program=TELL).stdout == b"Be long. 9 50\n"


def test_the_model_belongs_to_the_chat(home):
    told = scripted("'x'").replace("    return ScriptedEngine", "    print(settings.model)\n    return ScriptedEngine")
    folder = home.folder / "model"
    folder.mkdir()
    home.run("ask", "-m", "model", "one?", program=told)
    assert lines(home.run("ask", "-c", "two?", program=told).stdout)[0] == str(folder)
    assert lines(home.run("ask", "-c", "-m", "guide", "two?", program=told).stdout)[0] == "guide"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ask", "-c", "Hi"), 4, "there is no chat yet"),
        (("ask", "--chat", "zzz", "Hi"), 4, "no chat is called 'zzz'"),
        (("ask", "-c", "--chat", "zzz", "Hi"), 2, "-c and --chat name two chats"),
        (("chats", "show", "zzz"), 4, "no chat is called 'zzz'"),
        (("chats", "restore", "zzz"), 4, "no deleted chat is called 'zzz'"),
        (("chats", "export"), 2, "say which chats to export"),
        (("chats", "import", "no-such-file"), 1, "no-such-file cannot be read"),
    ],
)
def test_what_is_not_there_is_said(home, arguments, code, said):
    done = home.run(*arguments, program=HELLO)
    assert (done.returncode, done.stdout) == (code, b"")
    what, hint = lines(done.stderr)
    assert what.startswith(f"localmoe: {said}") and hint.startswith("hint: ")


def test_typer_refuses_the_rest(home):
    for arguments in (("chats", "frobnicate"), ("chats", "list", "-n", "0"), ("chats", "show")):
        done = home.run(*arguments)
        assert (done.returncode, done.stdout) == (2, b"")


def test_chats_are_listed_in_80_columns(home):
    keep(home, "한국어 질문입니다 " * 10, "1")
    time.sleep(0.01)
    keep(home, "short?", "2")
    head, first, second = lines(home.run("chats", "list").stdout)
    assert head.split() == ["chat", "used", "last", "turns", "title"]
    assert first.endswith("  2  short?") and "한국어" in second and second.endswith("…")
    assert sum(2 if "가" <= c <= "힣" else 1 for c in second) <= 80
    assert len(lines(home.run("chats", "list", "-n", "1").stdout)) == 2


def test_no_chats_are_no_failure(home):
    done = home.run("chats", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"localmoe: there is no chat yet\n")
    assert json.loads(home.run("chats", "list", "--json").stdout) == {"chats": []}
    assert home.run("chats", "search", "x").returncode == 0


def test_show_prints_what_was_said(home):
    home.run("ask", "-s", "Be brief.", "one?", program=scripted(repr("a\x1b[31mb\n")))
    (chat,) = listed(home)
    out = home.run("chats", "show", chat.id).stdout.decode()
    assert out.startswith("# one?\n") and "## System\n\nBe brief.\n" in out
    assert out.endswith("## You\n\none?\n\n## scripted\n\na[31mb\n")


def test_search_finds_in_titles_and_texts(home):
    keep(home, "Where is the needle?", "There.")
    keep(home, "Hm?", "A needle, 바늘, lies here.")
    assert len(lines(home.run("chats", "search", "needle").stdout)) == 5  # a title alone, two turns with their chats
    hits = json.loads(home.run("chats", "search", "--json", "바늘").stdout)["hits"]
    assert [(hit["title"], hit["in"], hit["match"]) for hit in hits] == [("Hm?", "turn", "바늘")]
    assert json.loads(home.run("chats", "search", "--json", "needle", "there").stdout)["hits"] == []


def test_rename_delete_and_undo(home):
    keep(home, "one?", "Hello there.")
    (chat,) = listed(home)
    done = home.run("chats", "rename", chat.id, "Another name")
    assert (done.stdout, done.returncode) == (b"", 0) and b"renamed" in done.stderr
    assert listed(home)[0].title == "Another name"
    done = home.run("chats", "rm", chat.id)
    assert done.stdout == b"" and f"localmoe chats restore {chat.id}" in done.stderr.decode()
    assert listed(home) == () and [c.id for c in listed(home, deleted=True)] == [chat.id]
    done = home.run("chats", "restore", "-q", chat.id)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert listed(home)[0].title == "Another name"


def test_forever_is_forever(home):
    for question in ("one?", "two?"):
        keep(home, question, "Hello there.")
        time.sleep(0.01)
    two, one = (chat.id for chat in listed(home))
    home.run("chats", "rm", one)
    done = home.run("chats", "rm", "--forever", "--json", "-q", one, two)
    assert [chat["id"] for chat in json.loads(done.stdout)["chats"]] == [one, two]
    assert listed(home) == listed(home, deleted=True) == ()


def test_a_missing_chat_among_others_deletes_none(home):
    keep(home, "one?", "Hello there.")
    (chat,) = listed(home)
    assert home.run("chats", "rm", chat.id, "zzz").returncode == 4
    assert len(listed(home)) == 1


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_what_is_exported_comes_back(home, form):
    for question in ("one?", "two?"):
        keep(home, question, "Hello there.")
        time.sleep(0.01)
    out = home.run("chats", "export", "--all", "--format", form).stdout
    (home.folder / "all").write_bytes(out)
    ids = [chat.id for chat in listed(home)]
    home.run("chats", "rm", "--forever", *ids)
    done = home.run("chats", "import", "all")
    assert sorted(lines(done.stdout)) == sorted(ids)
    assert b"took 2 chats" in done.stderr
    assert {chat.title for chat in listed(home)} == {"one?", "two?"}
    assert turns(home, Chat(ids[0])) == [("two?", "stop"), ("Hello there.", "stop")]
    if form == "json":
        assert sorted(home.run("chats", "export", *ids, "--json").stdout) == sorted(out)
    copies = lines(home.run("chats", "import", "-q", "-", stdin=out).stdout)
    assert len(copies) == 2 and not set(copies) & set(ids) and len(listed(home)) == 4


def test_what_is_no_export_is_refused(home):
    (home.folder / "file").write_text("# Notes\n")
    done = home.run("chats", "import", "file")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"localmoe: file is neither JSON nor Markdown")


def test_an_interrupted_answer_is_kept_as_a_part(home):
    process = home.start("ask", "Hi", program=SLOW)
    assert process.stdout.read(3) == b"one"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    (_, (text, ending)) = turns(home, listed(home)[0])
    assert text.startswith("one") and "ten" not in text and ending == "cancelled"


def test_a_killed_answer_is_kept_as_a_part(home):
    process = home.start("ask", "Hi", program=SLOW)
    assert process.stdout.read(3) == b"one"
    time.sleep(1.5)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    (_, (text, ending)) = turns(home, listed(home)[0])
    assert text.startswith("one") and ending == "killed"
    assert home.run("ask", "-c", "And?", program=ECHO).stdout.decode() == f"Hi | {text} | And?\n"


def test_a_closed_pipe_keeps_a_part(home):
    endless = scripted("Script('line\\n' * 5000, token_s=0.001)", time_scale=1)
    process = home.start("ask", "Hi", program=endless)
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.wait(20) == 0
    ((_, _), (text, ending)) = turns(home, listed(home)[0])
    assert text.startswith("line\nline\n") and ending == "cancelled"


def test_a_closed_pipe_is_no_error(home):
    keep(home, "Hi", "line\n" * 40000)
    process = home.start("chats", "export", "--all")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr.read() == b""


def test_an_answer_that_failed_at_once_leaves_no_chat(home):
    failing = scripted("Script('x', error=OutOfMemoryError('too big', 'take a smaller one'), error_after=0)")
    assert home.run("ask", "Hi", program=failing).returncode == 5
    assert listed(home) == ()


def test_a_damaged_file_is_said_and_the_answer_still_comes(home):
    data = home.folder / ".local/share/localmoe"
    data.mkdir(parents=True)
    (data / "chats.db").write_bytes(b"no database " * 500)
    done = home.run("ask", "Hi", program=HELLO)
    assert (done.returncode, done.stdout) == (0, b"Hello there.\n")
    assert b"it was set aside, and a new one begun" in done.stderr
    assert len(listed(home)) == 1 and len(list(data.glob("chats.damaged-*.db"))) == 1


def test_where_nothing_can_be_written_the_answer_still_comes(home):
    (home.folder / ".local").write_text("a file where a folder should be")
    done = home.run("ask", "Hi", program=HELLO)
    assert (done.returncode, done.stdout) == (0, b"Hello there.\n")
    assert b"chats cannot be kept" in done.stderr and b"--no-save" in done.stderr
    assert home.run("chats", "list").returncode == 1


def test_the_data_directory_is_the_users_choice(home):
    home.run("ask", "Hi", program=HELLO, XDG_DATA_HOME=str(home.folder / "data"))
    file = home.folder / "data/localmoe/chats.db"
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT title FROM chats").fetchone() == ("Hi",)
    db.close()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", ["list", "show", "search", "export", "import", "rename", "rm", "restore"])
def test_every_command_explains_itself_with_an_example(command):
    text = CliRunner().invoke(app, ["chats", command, "--help"], prog_name="localmoe", env={"COLUMNS": "80"}).output
    assert text.startswith(f"Usage: localmoe chats {command} ") and "Example" in text
    assert all(len(line) <= 80 for line in text.splitlines())
