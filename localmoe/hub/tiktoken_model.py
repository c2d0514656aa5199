"""Kimi's tokenizer: tiktoken.model and tokenizer_config.json, in folders that have no tokenizer.json.

tiktoken.model has one token a line, in base64, and its rank. It says neither how a text is split before tokens are
merged nor what the special tokens are: only for Moonshot's models (Kimi-K2, Moonlight) is that known here.
"""

from binascii import a2b_base64
from codecs import charmap_decode
from pathlib import Path
from typing import Any

from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hub.json_file import fetch_hint, read_json, require_file, shown, unreadable
from localmoe.hub.pieces import ALPHABET

TIKTOKEN_FILE = "tiktoken.model"
MAX_BYTES = 16 << 20  # Kimi's has 2.8 MB
MAX_TOKEN_BYTES = 4096  # the work per token is quadratic
MAX_ADDED = 256 + 2  # ids that Moonshot's code keeps behind the last rank

KIMI_CLASS = "TikTokenTokenizer"
KIMI_CODE = {f"tokenization_kimi.{KIMI_CLASS}", f"tokenization_moonshot.{KIMI_CLASS}"}
KIMI_VOCAB = 163_840  # Moonlight's model_type is DeepSeek's, its vocabulary is not

# What `pat_str` is in both of these files. Capitals, then small letters; letters without case and accents are either.
_HEAD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_TAIL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE, _AFTER = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_SPLIT = "|".join(
    [
        r"[\p{Han}]+",
        f"{_BEFORE}{_HEAD}*{_TAIL}+{_AFTER}",
        f"{_BEFORE}{_HEAD}+{_TAIL}*{_AFTER}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

Ranks = dict[str, int]  # tokens in GPT-2's alphabet: one character for each byte


def open_tiktoken(folder: Path) -> Any:
    """The folder's tokenizers.Tokenizer, made anew each time.

    For 163,584 tokens that is 1.5 s of CPU on a Xeon that was busy; as a kept tokenizer.json it would still be 1.0.
    UnsupportedModelError unless the folder says that it is Kimi's; CheckpointError for damaged files.
    """
    if not _is_kimi(folder):
        raise UnsupportedModelError(
            f"{shown(folder)} has no tokenizer.json, and its {TIKTOKEN_FILE} is not known to be of Kimi's kind.",
            "tokenizer_config.json tells the kind: copy the model's own into that folder, or a tokenizer.json.",
        )
    ranks = read_ranks(folder / TIKTOKEN_FILE)
    added = _added_tokens(folder / "tokenizer_config.json", len(ranks))
    return _with_added(_backend(ranks), added, folder)


def read_ranks(path: Path) -> Ranks:
    """Every token and its rank; the ranks are 0, 1, 2, ... and each byte is a token, else CheckpointError."""
    ranks: Ranks = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        try:
            token, rank = _parsed(line)
        except ValueError as error:  # binascii.Error is one
            raise _damaged(path, f"line {number:,} is not a token in base64 and its rank") from error
        if token in ranks:
            raise _damaged(path, f"line {number:,} repeats a token")
        ranks[token] = rank
    _require_dense(ranks, path)
    return ranks


def find_merges(ranks: Ranks) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, in the order of its rank.

    Of the pairs that make the same token a text only ever shows one, the last merge that leads to it, so their order
    does not matter. As transformers' TikTokenConverter does.
    """
    return [
        (left, right)
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if (left := token[:cut]) in ranks and (right := token[cut:]) in ranks
    ]


def _is_kimi(folder: Path) -> bool:
    """The code that tokenizer_config.json names decides; where it names none, the class and the model do."""
    config = _read_optional(folder / "tokenizer_config.json")
    code = _named_code(config.get("auto_map"))
    if code is not None:
        return code in KIMI_CODE
    return config.get("tokenizer_class", KIMI_CLASS) == KIMI_CLASS and _is_kimi_model(folder)


def _named_code(auto_map: Any) -> str | None:
    """`{"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}`, perhaps with "owner/repo--" before it."""
    value = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
    slow = value[0] if isinstance(value, list) and value else value
    return None if slow is None else str(slow).rpartition("--")[2]


def _is_kimi_model(folder: Path) -> bool:
    config = _read_optional(folder / "config.json")
    kind = config.get("model_type")
    return kind == "kimi_k2" or (kind == "deepseek_v3" and config.get("vocab_size") == KIMI_VOCAB)


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read(path: Path) -> bytes:
    if require_file(path).st_size > MAX_BYTES:
        raise _damaged(path, f"the file is larger than {MAX_BYTES:,} bytes")
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def _parsed(line: bytes) -> tuple[str, int]:
    token, rank = line.split()
    data = a2b_base64(token, strict_mode=True)
    if not 0 < len(data) <= MAX_TOKEN_BYTES or not rank.isdigit():
        raise ValueError
    return charmap_decode(data, "strict", ALPHABET)[0], int(rank)


def _require_dense(ranks: Ranks, path: Path) -> None:
    absent = [byte for byte, token in enumerate(ALPHABET) if token not in ranks]
    if absent:
        raise _damaged(path, f"there is no token for the byte 0x{absent[0]:02x}")
    for expected, rank in enumerate(sorted(ranks.values())):
        if rank != expected:
            twice = rank < expected
            raise _damaged(path, f"rank {rank:,} appears twice" if twice else f"rank {expected:,} is missing")


def _added_tokens(path: Path, first: int) -> list[str]:
    """The texts of the ids from `first` on; those that have none are named as Moonshot's code names them."""
    texts = {_id_of(key, path): _text_of(value, path) for key, value in _added_decoder(path).items()}
    lowest, highest = min(texts), max(texts)
    if lowest != first:
        what = f"the added tokens begin at {lowest:,}, but {TIKTOKEN_FILE} has {first:,} tokens"
        raise _damaged(path, f"{what}; one of the two files is not whole")
    if highest >= first + MAX_ADDED:
        raise _damaged(path, f"the added token {highest:,} is beyond the {MAX_ADDED} that Moonshot's models have")
    return [texts.get(i, f"<|reserved_token_{i}|>") for i in range(first, highest + 1)]


def _added_decoder(path: Path) -> dict[str, Any]:
    value = read_json(path).get("added_tokens_decoder")
    if not isinstance(value, dict) or not value:
        raise _damaged(path, "added_tokens_decoder, which names the special tokens, is missing")
    return value


def _id_of(key: str, path: Path) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise _damaged(path, f"added_tokens_decoder has '{shown(key)}' where an id is expected")
    return int(key)


def _text_of(value: Any, path: Path) -> str:
    text = value.get("content") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text:
        raise _damaged(path, "added_tokens_decoder has a token without a text")
    return text


def _backend(ranks: Ranks) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    # tiktoken takes a whole word that is a token before it thinks of merges: ignore_merges
    backend = Tokenizer(models.BPE(vocab=ranks, merges=find_merges(ranks), ignore_merges=True))
    split = pre_tokenizers.Split(Regex(KIMI_SPLIT), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _with_added(backend: Any, texts: list[str], folder: Path) -> Any:
    """`backend` with `texts` as its last ids; all are special, as they are to tiktoken."""
    from tokenizers import AddedToken

    first = backend.get_vocab_size()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts])
    for token_id, text in enumerate(texts, first):
        if backend.token_to_id(text) != token_id:  # the library gives a text only one id
            path = folder / "tokenizer_config.json"
            raise _damaged(path, f"the added token '{shown(text)}' of id {token_id:,} has another id as well")
    return backend


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path.name}: {what}.", fetch_hint(path))
