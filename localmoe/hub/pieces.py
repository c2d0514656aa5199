"""Token ids to text, one at a time. A character that is split over tokens is shown when it is whole."""

import codecs
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from localmoe.errors import UnsupportedModelError

PieceReader = Callable[[int], bytes]


class TextStream:
    """An incremental UTF-8 decoder over token ids: constant work for each, at most three bytes held back."""

    def __init__(self, piece: PieceReader) -> None:
        self._piece = piece
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The text that is certain now; bytes that can no longer become a character come as U+FFFD."""
        return self._utf8.decode(self._piece(token_id))

    def flush(self) -> str:
        """What was held back, as U+FFFD, and a new beginning."""
        return self._utf8.decode(b"", final=True)


def piece_reader(backend: Any) -> PieceReader:
    """The bytes of each id of a tokenizers.Tokenizer; UnsupportedModelError unless its decoder is byte-level."""
    kinds = _decoder_kinds(backend.decoder)
    if "ByteLevel" not in kinds or not kinds <= {"ByteLevel", "Fuse", "Sequence"}:
        raise UnsupportedModelError(
            f"tokenizer.json has a decoder that is not supported: {', '.join(sorted(kinds)) or 'none'}.",
            "DeepSeek's models have a ByteLevel decoder: take the tokenizer.json that came with the model.",
        )

    @lru_cache(maxsize=1 << 16)
    def piece(token_id: int) -> bytes:
        token = backend.id_to_token(token_id)
        return b"" if token is None else _bytes_of(token)  # a model's output can be wider than its vocabulary

    return piece


def _decoder_kinds(decoder: Any) -> set[str]:
    if decoder is None:
        return set()
    top = json.loads(decoder.__getstate__())
    return {top["type"], *(d["type"] for d in top.get("decoders", []))}


def _bytes_of(token: str) -> bytes:
    """GPT-2's alphabet back to bytes; marks such as <｜User｜> are not written in it and stand for themselves."""
    try:
        return bytes([_BYTES[c] for c in token])
    except KeyError:
        return token.encode("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """Bytes that print stand for themselves; the others, in order, for the characters from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printing)
    return {chr(b): b for b in printing} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTES = _byte_alphabet()
ALPHABET = "".join(sorted(_BYTES, key=_BYTES.__getitem__))  # the character for each byte
