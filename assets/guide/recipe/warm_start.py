"""Starts a network from an earlier export of the guide that had another tokenizer."""

from pathlib import Path

import torch
from answer import load_model
from network import Guide
from tokenizers import Tokenizer
from torch import Tensor


def warm_start(model: Guide, earlier_folder: Path, tokenizer: Tokenizer) -> None:
    """Copy all weights; a token new to the vocabulary starts as the mean of the earlier tokens that spell it."""
    earlier, earlier_tokenizer = load_model(earlier_folder)
    sources = _spellings(tokenizer, earlier_tokenizer)
    state = earlier.state_dict()
    for name in ("embed_tokens.weight", "lm_head.weight"):
        state[name] = torch.stack([_mean(state[name], source) for source in sources])
    model.load_state_dict(state)


def _spellings(tokenizer: Tokenizer, earlier: Tokenizer) -> list[list[int]]:
    known = earlier.get_vocab()
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [_spelling(token, known, earlier) for token, _ in tokens]


def _spelling(token: str, known: dict[str, int], earlier: Tokenizer) -> list[int]:
    if token in known:
        return [known[token]]
    text = earlier.decoder.decode([token])
    if "\ufffd" in text:  # part of a character: byte by byte
        return [known[byte] for byte in token]
    return earlier.encode(text, add_special_tokens=False).ids


def _mean(rows: Tensor, indices: list[int]) -> Tensor:
    return rows[indices].mean(0)
