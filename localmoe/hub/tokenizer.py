"""Text to token ids and back, as a folder's tokenizer.json has it; or Kimi's tiktoken.model.

Special tokens in text stay text unless it is trusted.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError
from localmoe.hub.json_file import MAX_JSON_BYTES, fetch_hint, require_file, shown
from localmoe.hub.pieces import TextStream, piece_reader
from localmoe.hub.tiktoken_model import TIKTOKEN_FILE, open_tiktoken
from localmoe.hub.tokenizer_config import TokenizerConfig, read_tokenizer_config

MARK_SHAPE = re.compile(r"[<\[◁｜|].*[>\]▷｜|:]", re.DOTALL)  # <think>, <｜User｜>, [INST], ｜DSML｜, <dsml:
NOT_A_WORD = re.compile(r"[^\w\s]")


class Tokenizer:
    """A model's tokenizer: ids, text, its special tokens and its chat template."""

    def __init__(self, backend: Any, config: TokenizerConfig) -> None:
        """`backend` is a tokenizers.Tokenizer, `config` what stands in the files beside it."""
        self.config = config
        self._backend = backend
        self._marks = _take_marks(backend, config.chat_template or "")
        self._mark_ids = frozenset(self._marks.values())
        self._piece = piece_reader(backend)

    @classmethod
    def open(cls, folder: Path | str) -> "Tokenizer":
        """Reads tokenizer.json or tiktoken.model, and what is beside; CheckpointError or UnsupportedModelError else."""
        folder = Path(folder)
        config = read_tokenizer_config(folder)
        tokenizer = cls(_read_backend(folder), config)
        if not tokenizer.encode("a"):
            raise CheckpointError(
                "the tokenizer has no token for ordinary text.", "take the tokenizer from the model's own repository."
            )
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text; a model's output may be wider."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def chat_template(self) -> str | None:
        """The model's own Jinja source, if it has one."""
        return self.config.chat_template

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts behind bos_token, eos_token and their like."""
        return self.config.special_tokens

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all marks: what plain text can never become, and what is never shown."""
        return self._mark_ids

    @cached_property
    def bos_id(self) -> int | None:
        """The token that begins a prompt, as tokenizer_config.json names it."""
        return self._id_of("bos_token")

    @cached_property
    def eos_id(self) -> int | None:
        """The token that ends an answer, as tokenizer_config.json names it."""
        return self._id_of("eos_token")

    def token_id(self, token: str) -> int | None:
        """The id of a token given by its text, marks included."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of `text`. Its special tokens become their ids only if `special`; else they are plain text."""
        return self.encode_parts([(text, special)])

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Token ids of the (text, trusted) parts put together; special tokens count in trusted parts only.

        Between two special tokens the parts are encoded as one text, as if their borders were not there.
        """
        ids: list[int] = []
        run: list[str] = []
        for text, trusted in parts:
            for piece in self._mark_pattern.split(text) if trusted else [text]:
                mark = self._marks.get(piece) if trusted else None
                if mark is None:
                    run.append(piece)
                    continue
                ids += self._encode_plain("".join(run))
                ids.append(mark)
                run.clear()
        return ids + self._encode_plain("".join(run))

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of `ids`, bytes that are no UTF-8 as U+FFFD; special tokens are left out unless `special`."""
        stream = self.text_stream()
        shown_ids = (i for i in ids if special or i not in self._mark_ids)
        return "".join([stream.feed(i) for i in shown_ids]) + stream.flush()

    def text_stream(self) -> TextStream:
        """A decoder that takes one id at a time."""
        return TextStream(self._piece)

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        valid = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates come from terminals and file names
        ids: list[int] = self._backend.encode(valid, add_special_tokens=False).ids
        if self._mark_ids.isdisjoint(ids):
            return ids
        if len(valid) == 1:
            return [i for i in ids if i not in self._mark_ids]
        return [i for part in _broken(valid, self._mark_pattern) for i in self._encode_plain(part)]

    @cached_property
    def _mark_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._marks, key=len, reverse=True)
        return (
            re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else re.compile("(?!)()")
        )

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.token_id(text)


def _take_marks(backend: Any, template: str) -> dict[str, int]:
    """Makes `backend` read its marks as plain text; returns their ids."""
    from tokenizers import AddedToken

    added = backend.get_added_tokens_decoder()
    marks = {token.content: i for i, token in added.items() if _is_mark(token, template)}
    backend.add_special_tokens([AddedToken(m, special=True, normalized=added[i].normalized) for m, i in marks.items()])
    backend.encode_special_tokens = True
    return marks


def _is_mark(token: Any, template: str) -> bool:
    """A DeepSeek tokenizer.json calls <｜User｜> or <think> "not special", so that flag alone does not tell.

    Others add words and runs of spaces to their vocabulary: those stay what they are.
    """
    text = token.content
    if token.special or MARK_SHAPE.fullmatch(text):
        return bool(text)
    return bool(NOT_A_WORD.search(text)) and text in template


def _broken(text: str, marks: re.Pattern[str]) -> list[str]:
    """`text` cut inside each mark: for a vocabulary that holds marks as words, which plain text would reach."""
    cut: list[str] = []
    for piece in marks.split(text):
        cut += [piece[:1], piece[1:]] if marks.fullmatch(piece) else [piece]
    return cut if len(cut) > 1 else list(text)


def _read_backend(folder: Path) -> Any:
    path = folder / "tokenizer.json"
    if not path.exists() and (folder / TIKTOKEN_FILE).exists():
        return open_tiktoken(folder)
    if require_file(path).st_size > MAX_JSON_BYTES:
        raise CheckpointError(f"tokenizer.json is larger than {MAX_JSON_BYTES:,} bytes.", fetch_hint(path))
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        reason = shown(str(error).splitlines()[0] if str(error) else type(error).__name__)
        raise CheckpointError(f"tokenizer.json cannot be read: {reason}.", fetch_hint(path)) from error
    backend.no_truncation()
    backend.no_padding()
    return backend
