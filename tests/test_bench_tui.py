"""Suite tui: the real chat on a pseudo-terminal, beside the same model without a screen."""

from contextlib import closing
from dataclasses import replace

import pytest
from test_bench import TINY, Ears

from localmoe.bench import tui
from localmoe.bench.checkpoint import write_checkpoint
from localmoe.bench.terminal import Terminal, plain
from localmoe.errors import LocalmoeError
from localmoe.settings import Settings


def test_what_is_written_together_stays_together():
    assert plain(b"\x1b[1;2H\x1b[38;2;1;2;3mDecode\x1b[0m   21.4 tok/s\x1b]0;title\x07 \xe2\x91\xa0\x1b[?25l") == (
        "Decode   21.4 tok/s ①"
    )


def test_a_terminal_shows_what_comes_after_the_keys():
    echo = "import sys\nfor line in sys.stdin: print('<' + line.strip() + '>', flush=True)"
    with closing(Terminal(echo)) as terminal:
        for word in ("one", "two"):
            terminal.press(f"{word}\n")
            assert terminal.shows(lambda seen, word=word: f"<{word}>" in plain(seen), 20)
        assert b"one" not in terminal.seen
        assert not terminal.shows(lambda seen: b"three" in seen, 0.05)


def test_a_program_that_ends_shows_nothing_more():
    with closing(Terminal("print('bye')")) as terminal:
        assert not terminal.shows(lambda seen: b"hello" in seen, 20)
        assert b"bye" in terminal.seen


def test_rows_of_the_real_chat(tmp_path, monkeypatch):
    lengths = {"tui-overhead": 512, "tui-overhead-short": 256}
    for name, value in {"NUM_ROUNDS": 1, "NUM_KEYS": 3, "LENGTHS": lengths, "BETWEEN_KEYS_S": 0.01}.items():
        monkeypatch.setattr(tui, name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_checkpoint(tmp_path / "model", replace(TINY, num_hidden_layers=8, vocab_size=8192), seed=1)
    overhead, echo, late, short = tui.measure(Settings(threads=1), str(tmp_path / "model"), Ears())
    assert [row.case for row in (overhead, short)] == list(lengths)
    assert [row.case for row in (echo, late)] == ["tui-echo", "tui-echo-p90"]
    for row in overhead, short:
        assert row.value > 0 and row.ratio == pytest.approx(row.value / row.reference)
    assert 0 < echo.value <= late.value and echo.reference == 50
    assert echo.ratio == pytest.approx(echo.value / 50)


def test_a_model_too_fast_to_type_into_has_no_echo(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(tui, "LENGTHS", {"tui-overhead": 4})
    monkeypatch.setattr(tui, "NUM_ROUNDS", 1)
    write_checkpoint(tmp_path / "model", TINY, seed=1)
    ears = Ears()
    rows = list(tui.measure(Settings(threads=1), str(tmp_path / "model"), ears))
    assert not any("echo" in row.case for row in rows)
    assert "tui-echo is left out: the model ends its answers before a key can be typed" in ears.warned


def test_a_chat_that_cannot_open_is_said(tmp_path):
    with pytest.raises(LocalmoeError, match="did not open"):
        tui._Chat(str(tmp_path / "nowhere"), Settings(), str(tmp_path), 4)
