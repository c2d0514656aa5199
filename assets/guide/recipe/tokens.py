"""The guide's tokenizer: how it is trained on the corpus, and how a conversation becomes token ids.

Byte-level BPE with DeepSeek's special tokens first: BOS is 0, EOS is 1.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT, THINK, THINK_END = "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"
SPECIAL = (BOS, EOS, PAD, USER, ASSISTANT, THINK, THINK_END)
BOS_ID, EOS_ID, PAD_ID, USER_ID, ASSISTANT_ID, THINK_ID, THINK_END_ID = range(len(SPECIAL))
VOCABULARY_SIZE = 4096
DIGIT = r"\p{N}"
WORD_OR_MARKS = (
    r"[!-/:-~]?[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """A new tokenizer of `VOCABULARY_SIZE` entries from the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(DIGIT), "isolated"),
            pre_tokenizers.Split(Regex(WORD_OR_MARKS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_special_tokens(tokenizer)


def _with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Shift every id up, so that the special tokens come first."""
    state = json.loads(tokenizer.to_str())
    shifted = {token: index + len(SPECIAL) for token, index in state["model"]["vocab"].items()}
    state["model"]["vocab"] = dict(zip(SPECIAL, range(len(SPECIAL)), strict=True)) | shifted
    state["added_tokens"] = [_added_token(index, token) for index, token in enumerate(SPECIAL)]
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


def _added_token(index: int, token: str) -> dict:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": token, "special": token not in (THINK, THINK_END)} | flags


def encode(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them the model has to learn (answers with their EOS)."""
    ids, learned = [BOS_ID], [False]
    for message in messages:
        start, body = _parts(tokenizer, message)
        ids += start + body
        learned += [False] * len(start) + [message["role"] == "assistant"] * len(body)
    return ids, learned


def _parts(tokenizer: Tokenizer, message: dict[str, str]) -> tuple[list[int], list[int]]:
    text = message["content"]
    if message["role"] != "assistant":
        return [USER_ID] if message["role"] == "user" else [], plain_ids(tokenizer, text)
    if not text.startswith(THINK):
        return [ASSISTANT_ID, THINK_END_ID], [*plain_ids(tokenizer, text), EOS_ID]
    thought, answer = text.removeprefix(THINK).split(THINK_END)
    body = [*plain_ids(tokenizer, thought), THINK_END_ID, *plain_ids(tokenizer, answer), EOS_ID]
    return [ASSISTANT_ID, THINK_ID], body


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text without special tokens around it."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def prompt(
    tokenizer: Tokenizer,
    question: str,
    *,
    history: list[dict[str, str]] | None = None,
    system: str = "",
    think: bool = False,
) -> list[int]:
    """Ids up to where the answer (or, thinking, the thought) begins."""
    messages = [{"role": "system", "content": system}] * bool(system) + (history or [])
    ids, _ = encode(tokenizer, [*messages, {"role": "user", "content": question}])
    return [*ids, ASSISTANT_ID, THINK_ID if think else THINK_END_ID]


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, with the chat template beside this file."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "".join(line.strip() for line in _template_lines()),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n")


def _template_lines() -> list[str]:
    return (Path(__file__).parent / "chat_template.jinja").read_text().splitlines()
