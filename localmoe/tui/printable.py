"""Text from a model or a clipboard, made safe to draw: no escape sequences, no controls, no broken code points."""

_KEPT = "\n\t"
_LINE_ENDS = (0x2028, 0x2029)  # Python's splitlines sees lines here, Markdown does not
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they reorder what is read
_CONTROLS = (*range(0x20), 0x7F, *range(0x80, 0xA0))
_SURROGATES = range(0xD800, 0xE000)

_TABLE: dict[int, str | None] = {
    **{code: None for code in (*_CONTROLS, *_BIDI) if chr(code) not in _KEPT},
    **dict.fromkeys(_LINE_ENDS, "\n"),
    **dict.fromkeys(_SURROGATES, "\ufffd"),
}


def printable(text: str) -> str:
    """`text` without what a terminal would obey instead of show."""
    return text.translate(_TABLE)
