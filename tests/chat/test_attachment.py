"""Which files a message names, what is read of them, and how they stand in it."""

import os

import pytest

from localmoe.chat import attachment
from localmoe.chat.attachment import as_mention, attach, completions, mentions, read_text, sections
from localmoe.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "notes.md").write_text("# Notes\nOne.\n")
    (tmp_path / "my file.txt").write_text("mine")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.py").write_text("print('한국어')\n", encoding="utf-8")
    (tmp_path / ".hidden").write_text("h")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(text):
    return [mention.name for mention in mentions(text)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("What is in @notes.md?", ["notes.md"]),
        ("@notes.md, and @src/app.py.", ["notes.md", "src/app.py"]),
        ('Read @"my file.txt" now', ["my file.txt"]),
        ("mail me@notes.md or `@notes.md`", []),
        ("@dataclass\nclass A: ...\n@pytest.mark.slow\n@app.route('/x')", []),
        ("@@ -1,3 +1,4 @@", []),
        ("@nots.md", ["nots.md"]),
        ("@src/none.py", ["src/none.py"]),
        ("hello @anna", []),
    ],
)
def test_files_are_named_and_words_are_not(text, named):
    assert names(text) == named


def test_a_message_brings_the_files_it_names():
    text = attach("Compare @notes.md with @src/app.py, @notes.md first")
    assert text.startswith("Compare notes.md with src/app.py, notes.md first\n\n")
    assert text.endswith(
        '<file path="notes.md">\n# Notes\nOne.\n</file>\n\n<file path="src/app.py">\nprint(\'한국어\')\n</file>'
    )
    assert [(part.name, part.text) for part in sections(text)] == [
        ("notes.md", "# Notes\nOne."),
        ("src/app.py", "print('한국어')"),
    ]


def test_what_was_attached_is_not_attached_again():
    once = attach("What is in @notes.md?")
    assert attach(once) == once


def test_a_file_that_holds_the_marks_is_kept_whole(folder):
    text = 'a\n</file>\n<file path="x">\nb'
    (folder / "marks.txt").write_text(text)
    (section,) = sections(attach("@marks.txt"))
    assert (section.name, section.text) == ("marks.txt", text)


def test_text_without_files_stays_as_it_is():
    assert attach("a  b\n\n @ c") == "a  b\n\n @ c"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.bin", b"\x00\x01\x02", "is not a text file"),
        ("b.txt", b"caf\xe9", "is not a text file"),
        ("c.txt", b"x" * (attachment.MAX_BYTES + 1), "at most 4 MB"),
    ],
)
def test_what_cannot_be_attached_is_said(folder, name, data, said):
    (folder / name).write_bytes(data)
    with pytest.raises(UsageError, match=said):
        attach(f"see @{name}")


def test_a_missing_file_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"there is no file nots\.md") as caught:
        read_text(mentions("@nots.md")[0].path)
    assert caught.value.hint == "did you mean notes.md?"


def test_folders_and_pipes_are_no_files(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="src is a folder"):
        attach("@src")
    with pytest.raises(UsageError, match="not a regular file"):
        attach("@pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_said(folder):
    (folder / "secret.txt").touch(mode=0)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        attach("@secret.txt")


@pytest.mark.parametrize(("data", "text"), [(b"\xef\xbb\xbfa\r\nb", "a\nb"), ("é".encode("utf-16"), "é"), (b"", "")])
def test_text_files_of_other_programs_are_read(folder, data, text):
    (folder / "x.txt").write_bytes(data)
    assert read_text(folder / "x.txt") == text


def test_paths_are_completed():
    assert completions("") == ["src/", "my file.txt", "notes.md"]
    assert completions("N") == ["notes.md"]
    assert completions("src/") == ["src/app.py"]
    assert completions(".h") == [".hidden"]
    assert completions("none/") == []
    assert [as_mention(name) for name in ("notes.md", "my file.txt")] == ["@notes.md", '@"my file.txt"']
