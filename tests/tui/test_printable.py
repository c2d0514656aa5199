from hypothesis import given
from hypothesis import strategies as st

from localmoe.tui.printable import printable


def test_words_of_all_languages_stay():
    text = "한국어 中文 日本語 🎉👩‍👩‍👧 ﷽ e\u0301\n\tcode"
    assert printable(text) == text


def test_escape_sequences_become_text():
    assert printable("\x1b[31mred\x1b]52;c;aGk=\x07\x9b2J") == "[31mred]52;c;aGk=2J"


def test_line_separators_become_lines():
    assert printable("a\u2028b\u2029c") == "a\nb\nc"


def test_carriage_returns_go():
    assert printable("a\r\nb\rc") == "a\nbc"


def test_bidirectional_overrides_go():
    assert printable("a\u202eb\u2066c") == "abc"


@given(st.text(st.characters(codec=None)))
def test_whatever_comes_can_be_written(text):
    clean = printable(text)
    clean.encode("utf-8")
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in clean)
    assert clean.splitlines() == clean.removesuffix("\n").split("\n") or not clean
    assert printable(clean) == clean
