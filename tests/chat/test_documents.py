"""What goes out as JSON or Markdown comes back."""

import json

import pytest

from localmoe.chat.history.documents import chat_object, document, take_chats, take_document
from localmoe.chat.history.history import History
from localmoe.chat.history.markdown import is_markdown, markdown, read_markdown
from localmoe.chat.history.pen import Pen
from localmoe.chat.history.records import Chat, Turn, new_id
from localmoe.chat.history.search import search
from localmoe.errors import UsageError
from localmoe.events import Finished, Stats, TextDelta

HOSTILE = (
    "# A heading\n\n## You\n\n<!-- localmoe: user -->\n\\<!-- localmoe: user -->\n```\ncode\n```\n--> \n\n",
    "",
    "\n\nedges\n",
    "한국어 中文 🎉 \u2028 \t tab\x00",
    "  indented\n\n\n",
)


def no_notice(message, hint):
    raise AssertionError(message)


@pytest.fixture
def history(tmp_path):
    with History(tmp_path / "one" / "chats.db", no_notice) as history:
        yield history


@pytest.fixture
def other(tmp_path):
    with History(tmp_path / "other" / "chats.db", no_notice) as history:
        yield history


def rich_chat(history, **more):
    """Branches, thoughts, figures, an answer that was stopped and one that is being written."""
    chat = Chat(new_id(), model="guide", system="Be brief.\n", parameters={"seed": 7, "think": False}, **more)
    pen = Pen(history, chat)
    for text in HOSTILE:
        pen.ask(text, "guide")
        pen.hear(Stats(10, 0, 3, 2, 13, 100, thought_s=0.1 + 0.2))
        pen.hear(Finished("stop", text, text, 1, 0, 1, None, None, 1 / 3))
    pen.ask(None, "deepseek-v3.1", at=3)
    pen.hear(TextDelta("needle"))
    pen.finish("cancelled")
    return history.chat(chat.id)


def test_json_comes_back_exactly(history, other):
    chats = (rich_chat(history), rich_chat(history, title="Named"))
    written = json.dumps(document(history, chats))
    taken = take_document(other, json.loads(written))
    assert json.dumps(document(other, taken)) == written
    assert [other.line(chat) for chat in taken] != []
    assert len(search(other, "needle")) == 2


def test_a_chat_that_is_here_comes_back_beside_it(history):
    chat = rich_chat(history)
    (copy,) = take_document(history, document(history, (chat,)))
    assert copy.id != chat.id and len(history.chats()) == 2
    one, two = (chat_object(history, c) | {"id": ""} for c in (chat, copy))
    assert one == two


def test_an_answer_that_was_being_written_was_killed_elsewhere(history, other):
    chat = Chat(new_id())
    Pen(history, chat).ask("Hm?", "guide")
    (taken,) = take_document(other, document(history, (chat,)))
    assert other.line(taken)[-1].ending == "killed"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: [],
        lambda d: d | {"format": "other"},
        lambda d: d | {"version": 2},
        lambda d: d | {"chats": [{}]},
        lambda d: d | {"chats": [d["chats"][0] | {"last": 99}]},
        lambda d: d | {"chats": [d["chats"][0] | {"created": "yesterday"}]},
        lambda d: d | {"chats": [d["chats"][0] | {"parameters": {"temperature": -1}}]},
        lambda d: d | {"chats": [d["chats"][0] | {"parameters": {"isa": "scalar"}}]},
        lambda d: d | {"chats": [d["chats"][0], d["chats"][0] | {"turns": [{"role": "tool"}]}]},
        lambda d: d | {"chats": [d["chats"][0] | {"turns": [d["chats"][0]["turns"][0] | {"parent": 0}]}]},
    ],
)
def test_what_is_no_export_is_refused_whole(history, other, change):
    data = json.loads(json.dumps(document(history, (rich_chat(history),))))
    with pytest.raises(UsageError):
        take_document(other, change(data))
    assert other.chats() == ()


def test_markdown_comes_back_with_its_texts(history):
    chat = rich_chat(history, title="A title")
    turns = tuple(turn for turn in history.line(chat) if "\x00" not in turn.text)
    ((again, read),) = read_markdown(markdown(chat, turns))
    assert (again.id, again.title, again.system, again.parameters) == (
        chat.id,
        chat.title,
        chat.system,
        chat.parameters,
    )
    kept = [(t.role, t.text, t.reasoning, t.model, t.ending) for t in turns]
    assert [(t.role, t.text, t.reasoning, t.model, t.ending) for t in read] == kept


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_survives_markdown(text):
    turns = (Turn("user", text), Turn("assistant", text, text, model="a -- b --> c"), Turn("user", text))
    ((_, read),) = read_markdown(markdown(Chat("abcdef", "Title", system=text), turns))
    assert [(t.text, t.reasoning, t.model) for t in read] == [(t.text, t.reasoning, t.model) for t in turns]


def test_markdown_reads_well():
    chat = Chat("abcdef", "Routers", "guide", "Be brief.")
    turns = (Turn("user", "Hm?"), Turn("assistant", "Yes.", "I think so.", "guide"))
    assert markdown(chat, turns) == (
        '<!-- localmoe: chat {"id": "abcdef", "model": "guide", "parameters": {}} -->\n# Routers\n\n'
        "<!-- localmoe: system -->\n## System\n\nBe brief.\n\n"
        "<!-- localmoe: user -->\n## You\n\nHm?\n\n"
        "<!-- localmoe: thought -->\n### Thought\n\nI think so.\n\n"
        '<!-- localmoe: assistant {"model": "guide", "ending": "stop"} -->\n## guide\n\nYes.\n'
    )


def test_markdown_is_kept_as_a_chat(history, other):
    chat = rich_chat(history)
    text = markdown(chat, history.line(chat))
    assert is_markdown(text) and not is_markdown("# Another file\n")
    (taken,) = take_chats(other, read_markdown(text))
    assert taken.id == chat.id
    assert [t.text for t in other.line(taken)] == [t.text for t in history.line(chat)]


@pytest.mark.parametrize("text", ["", "# Another file\n", "<!-- localmoe: chat {broken} -->\n# x\n"])
def test_other_markdown_is_refused(text):
    with pytest.raises(UsageError):
        read_markdown(text)


def test_several_chats_fit_in_one_markdown_file(history):
    chats = [rich_chat(history, title=title) for title in ("One", "Two")]
    read = read_markdown("\n".join(markdown(chat, history.line(chat)) for chat in chats))
    assert [chat.title for chat, _ in read] == ["One", "Two"]
    assert [[t.text for t in turns] for _, turns in read] == [[t.text for t in history.line(chat)] for chat in chats]
