"""config.toml as its user left it, but for one value."""

import os
import stat
import tomllib

import pytest

from localmoe.config_toml import remove_setting, value_in_file, write_setting
from localmoe.errors import LocalmoeError, UsageError
from localmoe.settings import ABOUT, RULES, config_file, load_settings

MINE = """# My settings. Do not lose this line!
model = "guide"   # small, for the train
context   =  2_048

# a seed that I like
seed = 0x2a
theme = 'nord'
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in RULES:
        monkeypatch.delenv(f"LOCALMOE_{name.upper()}", raising=False)
    return tmp_path


def write(text, newline="\n"):
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_bytes(text.replace("\n", newline).encode())


def text():
    return config_file().read_bytes().decode()


def test_a_new_value_leaves_every_other_character():
    write(MINE)
    assert write_setting("context", " 4096 ") == 4096
    assert text() == MINE.replace("2_048", "4096")
    assert load_settings().context == 4096


def test_the_comment_behind_a_value_stays():
    write(MINE)
    write_setting("model", "deepseek-v3.1")
    assert 'model = "deepseek-v3.1"   # small, for the train\n' in text()


def test_a_value_that_was_not_there_comes_to_the_others():
    write(MINE)
    write_setting("temperature", "0.5")
    write_setting("think", "no")
    assert text().startswith(MINE)
    assert (load_settings().temperature, load_settings().think) == (0.5, False)


def test_a_new_value_comes_before_the_first_table():
    write('seed = 1\n\n[keys]\n"chat.new" = "ctrl+b"  # mine\n')
    write_setting("context", "512")
    assert tomllib.loads(text()) == {"seed": 1, "context": 512, "keys": {"chat.new": "ctrl+b"}}
    assert text().endswith('[keys]\n"chat.new" = "ctrl+b"  # mine\n')


def test_without_a_file_there_is_one_afterwards():
    write_setting("seed", "7")
    assert (text(), value_in_file("seed")) == ("seed = 7\n", 7)


def test_what_is_removed_has_its_default_again():
    write(MINE)
    remove_setting("seed")
    remove_setting("top_p")  # was never there
    assert load_settings().seed is None
    assert text() == MINE.replace("seed = 0x2a\n", "")


def test_line_ends_stay_as_they_are():
    write(MINE, "\r\n")
    write_setting("context", "4096")
    assert text() == MINE.replace("2_048", "4096").replace("\n", "\r\n")


@pytest.mark.parametrize(("name", "value"), [("context", "many"), ("plan", "fast"), ("top_p", "0"), ("seed", "")])
def test_a_bad_value_is_said_and_nothing_is_written(name, value):
    write(MINE)
    before = config_file().stat()
    with pytest.raises(UsageError, match=f"{name} must be"):
        write_setting(name, value)
    after = config_file().stat()
    assert (text(), before.st_mtime_ns, before.st_ino) == (MINE, after.st_mtime_ns, after.st_ino)


def test_a_broken_file_is_left_alone():
    write("seed = \n")
    with pytest.raises(UsageError, match=r"config\.toml is not valid TOML"):
        write_setting("seed", "1")
    assert text() == "seed = \n"


def test_a_link_stays_a_link_and_the_mode_a_mode(home):
    mine = home / "dotfiles" / "localmoe.toml"
    mine.parent.mkdir()
    mine.write_text(MINE)
    mine.chmod(0o640)
    config_file().parent.mkdir(parents=True)
    config_file().symlink_to(mine)
    write_setting("seed", "5")
    assert config_file().is_symlink() and "seed = 5" in mine.read_text()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert [path.name for path in mine.parent.iterdir()] == ["localmoe.toml"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said():
    write(MINE)
    config_file().parent.chmod(0o500)
    try:
        with pytest.raises(LocalmoeError, match="cannot be written"):
            write_setting("seed", "5")
    finally:
        config_file().parent.chmod(0o700)
    assert text() == MINE


def test_every_setting_is_explained():
    assert list(ABOUT) == list(RULES)
    assert all(sentence.endswith(".") for sentence in ABOUT.values())
