"""Changing one value of config.toml: what else is in it stays, and a broken file is not touched."""

import errno
import os
import subprocess
import sys
import tomllib

import pytest

from localmoe.errors import LocalmoeError, OutOfMemoryError, UsageError
from localmoe.settings_file import write_value

TEXT = """# mine

model = "guide"   # the tiny one
threads = 3

# keys
[keys]
send = "enter"  # as it was
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    return path


def test_comments_and_order_stay(file):
    write_value(file, "model", "deepseek-v3")
    assert file.read_text() == TEXT.replace('"guide"', '"deepseek-v3"')
    write_value(file, "keys.send", "ctrl+j")
    assert 'send = "ctrl+j"  # as it was' in file.read_text()


def test_a_new_value_is_put_before_the_tables(file):
    write_value(file, "temperature", 0.5)
    data = tomllib.loads(file.read_text())
    assert data["temperature"] == 0.5 and data["keys"] == {"send": "enter"}
    write_value(file, "keys.stop", "f4")
    assert tomllib.loads(file.read_text())["keys"] == {"send": "enter", "stop": "f4"}


@pytest.mark.parametrize("value", [True, 7, 0.25, 'a "b" \\ ü \x1b\nc', ""])
def test_every_kind_of_value_comes_back(file, value):
    write_value(file, "x", value)
    assert tomllib.loads(file.read_text())["x"] == value


def test_a_value_can_be_taken_out(file):
    write_value(file, "threads", None)
    assert file.read_text() == TEXT.replace("threads = 3\n", "")
    before = file.read_text()
    write_value(file, "threads", None)
    write_value(file, "no.such", None)
    assert file.read_text() == before


def test_a_file_that_is_not_there_is_made(tmp_path):
    write_value(tmp_path / "a" / "config.toml", "threads", 2)
    assert (tmp_path / "a" / "config.toml").read_text() == "threads = 2\n"


def test_lines_that_end_in_other_ways_and_no_end_at_all(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"a = 1\r\nb = 2 # x\r\n")
    write_value(path, "b", 3)
    assert path.read_bytes() == b"a = 1\r\nb = 3 # x\r\n"
    path.write_bytes(b"a = 1")
    write_value(path, "b", 2)
    assert tomllib.loads(path.read_text()) == {"a": 1, "b": 2}


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_broken_file_stays_as_it_is(file, content):
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot be read|is not valid TOML"):
        write_value(file, "threads", 2)
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_a_value_in_the_place_of_a_table_stays(file):
    with pytest.raises(UsageError, match="model is no table"):
        write_value(file, "model.name", "x")
    assert file.read_text() == TEXT


def test_a_link_stays_one_and_permissions_stay(file, tmp_path):
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "localmoe.toml"
    file.rename(real)
    real.chmod(0o600)
    file.symlink_to(real)
    write_value(file, "threads", 2)
    assert file.is_symlink() and "threads = 2" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o600


def test_what_an_interrupted_write_left_is_no_hindrance(file):
    file.with_name(".config.toml.new").write_text("half")
    write_value(file, "threads", 2)
    assert list(file.parent.iterdir()) == [file]


def test_a_pipe_in_its_place_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(UsageError, match="not a regular file"):
        write_value(tmp_path / "config.toml", "threads", 2)


def test_where_nothing_can_be_written_it_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalmoeError, match="cannot be written"):
        write_value(tmp_path / "file" / "config.toml", "threads", 2)


def test_on_a_full_disk_the_file_is_as_it_was(file, monkeypatch):
    def refuse(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("localmoe.settings_file.os.fsync", refuse)
    with pytest.raises(OutOfMemoryError, match="is full") as caught:
        write_value(file, "threads", 2)
    assert caught.value.exit_code == 5
    assert file.read_text() == TEXT and list(file.parent.iterdir()) == [file]


def test_two_writers_lose_nothing(file):
    program = (
        "import sys\nfrom pathlib import Path\nfrom localmoe.settings_file import write_value\n"
        "for n in range(20): write_value(Path(sys.argv[1]), f'{sys.argv[2]}{n}', n)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(file), name]) for name in ("a", "b")]
    assert [one.wait(60) for one in writers] == [0, 0]
    data = tomllib.loads(file.read_text())
    assert all(data[f"{name}{n}"] == n for name in ("a", "b") for n in range(20))
