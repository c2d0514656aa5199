import json
import random
import unicodedata
from base64 import b64encode
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tiktoken
import vocabularies
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from localmoe.chat.jinja import JinjaTemplate
from localmoe.chat.message import Conversation, Message
from localmoe.errors import CheckpointError, ModelError, UnsupportedModelError
from localmoe.hub.pieces import ALPHABET
from localmoe.hub.tiktoken_model import KIMI_SPLIT
from localmoe.hub.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's what they'd DO, isn't it? HTTPServer2024 café naïve Straße",
    "人工智能正在改变世界。月之暗面发布了大模型，支持超长上下文。中国人民的生活，我们的世界",
    "한국어 텍스트입니다. 안녕하세요 세계, 모델이 대답합니다. 日本語のテキスト。漢字とひらがなとカタカナー",
    "emoji 🚀🌍🎉 👩‍👩‍👧 🇰🇷 1234567 3.14 ٣٤ Ⅷ    \n\n\t\r\n  x = [1, 2]; // <|im_end|> <think> {{}}",
]
ALPHABETS = ["abcdehilnorstuvxyz", "ABCXYZÀǅ", "'sS'll'D'VE ", "中国人世界的々〇〡⼀", "한국어가나다", "ひらカタカナー",
    "😀👩‍🏽🇰🇷", "éñüʰ́ſ", "0123٣Ⅷ²", "<|im_end|>[]{}.,!?/\\", " \n\r\t\u3000\xa0\u0085\u2028\u200b\x00"]  # fmt: skip
SPECIAL = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
    17: "<|im_middle|>", 22: "<think>", 254: "[UNK]", 255: "[PAD]"}  # fmt: skip
MOONSHOT = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]"}
AUTO_MAP = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
TEMPLATE = (
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)


@lru_cache
def trained_lines() -> list[bytes]:
    """A tiktoken.model of 580 tokens: bytes, then merges in the order they were learnt."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(KIMI_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=580, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS * 3, trainer)
    return ranks_file(sorted(backend.get_vocab(), key=backend.token_to_id))


def ranks_file(tokens: list[str]) -> list[bytes]:
    return [b64encode(bytes(map(ALPHABET.index, t))) + b" %d" % n for n, t in enumerate(tokens)]


def write_kimi(folder: Path, lines: list[bytes] | None = None, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = trained_lines() if lines is None else lines
    added = {str(len(lines) + n): {"content": text, "special": n != 22} for n, text in SPECIAL.items()}
    names = MOONSHOT | {"auto_map": AUTO_MAP, "added_tokens_decoder": added} | config
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in names.items() if v is not None}))
    return folder


def reference(folder: Path) -> tiktoken.Encoding:
    """As Moonshot's own code opens the folder."""
    ranks = load_tiktoken_bpe(str(folder / "tiktoken.model"))
    first = len(ranks)
    special = {SPECIAL.get(n, f"<|reserved_token_{first + n}|>"): first + n for n in range(256)}
    return tiktoken.Encoding("kimi", pat_str=KIMI_SPLIT, mergeable_ranks=ranks, special_tokens=special)


@lru_cache
def kimi() -> tuple[Tokenizer, tiktoken.Encoding]:
    with TemporaryDirectory() as folder:
        write_kimi(Path(folder), chat_template=TEMPLATE)
        return Tokenizer.open(folder), reference(Path(folder))


def opening_fails(folder: Path, kind: type[ModelError], part: str) -> None:
    with pytest.raises(kind) as caught:
        Tokenizer.open(folder)
    error = caught.value
    assert part in error.message, error.message
    assert error.exit_code == 4 and error.hint and "\n" not in error.message + error.hint


mixed_text = st.lists(st.sampled_from(ALPHABETS).flatmap(lambda a: st.text(a, max_size=6))).map("".join)


@settings(deadline=None, max_examples=300)
@given(st.one_of(mixed_text, st.text(st.characters(exclude_categories=["Cs", "Cn"]))))
def test_plain_text_has_tiktokens_ids_and_comes_back(text: str) -> None:
    tokenizer, oracle = kimi()
    ids = tokenizer.encode(text)
    assert ids == oracle.encode_ordinary(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_ids.isdisjoint(ids)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*SPECIAL.values(), "<|reserved_token_", "a", " ", "世", "\n"]), max_size=12).map("".join)
)
def test_trusted_text_has_tiktokens_ids(text: str) -> None:
    tokenizer, oracle = kimi()
    ids = tokenizer.encode(text, special=True)
    assert ids == oracle.encode(text, allowed_special="all")
    assert tokenizer.decode(ids, special=True) == oracle.decode(ids) == text


def test_every_character_is_split_as_tiktoken_does() -> None:
    tokenizer, oracle = kimi()
    kinds = ((chr(n), unicodedata.category(chr(n))) for n in range(0x32400))
    known = [c for c, kind in kinds if kind not in ("Cn", "Cs", "Co") and (kind != "Lo" or ord(c) % 61 == 0)]
    for start in range(0, len(known), 1024):
        text = "".join(f"a{c}b {c}{c}1{c}\n中{c}B's" for c in known[start : start + 1024])
        assert tokenizer.encode(text) == oracle.encode_ordinary(text), f"from U+{ord(known[start]):04X}"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("使用Python调用API", ["使用", "Python", "调用", "API"]),
        ("HTTPServer camelCase isn't中's", ["HTTPServer", " camel", "Case", " isn't", "中", "'s"]),
        ("IT'S he'Ll", ["IT'S", " he'Ll"]),
        ("한국어 漢字ひら", ["한국어", " ", "漢字", "ひら"]),
        ("12345  \n\n x!\n", ["123", "45", "  \n\n", " x", "!\n"]),
    ],
)
def test_chinese_stands_alone_and_capitals_begin_words(text: str, pieces: list[str]) -> None:
    split = pre_tokenizers.Split(Regex(KIMI_SPLIT), "isolated")
    found = [piece for piece, _ in split.pre_tokenize_str(text)]
    assert found == tiktoken_pieces(text) == pieces


def tiktoken_pieces(text: str) -> list[str]:
    """The pieces as tiktoken splits them: with every word of `text` a token, each piece is one."""
    words = {text[a:b].encode() for a in range(len(text)) for b in range(a + 1, len(text) + 1)}
    ranks = {word: n for n, word in enumerate([*(bytes([b]) for b in range(256)), *(w for w in words if len(w) > 1)])}
    oracle = tiktoken.Encoding("words", pat_str=KIMI_SPLIT, mergeable_ranks=ranks, special_tokens={})
    return [oracle.decode([i]) for i in oracle.encode_ordinary(text)]


@pytest.mark.parametrize("forgery", [*SPECIAL.values(), "<|reserved_token_{}|>"])
def test_a_pasted_special_token_is_plain_text(forgery: str) -> None:
    tokenizer, oracle = kimi()
    forgery = forgery.format(len(trained_lines()) + 5)
    mark = tokenizer.token_id(forgery)
    for text in (forgery, f"see {forgery} there", forgery * 2, f"<{forgery}>"):
        ids = tokenizer.encode(text)
        assert mark in tokenizer.special_ids and mark not in ids
        assert ids == oracle.encode_ordinary(text) and tokenizer.decode(ids) == text


def test_the_ids_are_the_files() -> None:
    tokenizer, _ = kimi()
    first = len(trained_lines())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.token_id("<think>")) == (first, first + 1, first + 22)
    assert tokenizer.vocab_size == first + 256


def test_a_conversation_becomes_moonshots_prompt() -> None:
    tokenizer, oracle = kimi()
    template = JinjaTemplate(tokenizer, why="test")
    ids = template.encode(Conversation((Message("user", "你好 <|im_end|>"),)))
    head, tail = "<|im_user|>user<|im_middle|>", "<|im_end|><|im_assistant|>assistant<|im_middle|>"
    special = [oracle.encode(text, allowed_special="all") for text in (head, tail)]
    assert ids == special[0] + oracle.encode_ordinary("你好 <|im_end|>") + special[1]
    assert tokenizer.token_id("<|im_end|>") in template.stop_ids


def test_a_word_that_is_a_token_needs_no_merges(tmp_path: Path) -> None:
    folder = write_kimi(tmp_path, [*trained_lines(), b64encode(b" zqxj") + b" 580"])
    assert Tokenizer.open(folder).encode("a zqxj zqxjz") == reference(folder).encode_ordinary("a zqxj zqxjz")
    assert Tokenizer.open(folder).encode(" zqxj") == [580]


def test_lines_may_stand_in_any_order_and_end_in_any_way(tmp_path: Path) -> None:
    lines = [line + b"\r" for line in trained_lines()]
    random.Random(0).shuffle(lines)
    tokenizer = Tokenizer.open(write_kimi(tmp_path, lines))
    assert tokenizer.encode(CORPUS[1]) == kimi()[0].encode(CORPUS[1])


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ({}, {}),
        ({"auto_map": {"AutoTokenizer": ["moonshotai/Kimi-K2--tokenization_kimi.TikTokenTokenizer", None]}}, {}),
        ({"auto_map": {"AutoTokenizer": "tokenization_moonshot.TikTokenTokenizer"}}, {}),
        ({"auto_map": None}, {"model_type": "kimi_k2"}),
        ({"auto_map": None}, {"model_type": "deepseek_v3", "vocab_size": 163840}),
        ({"auto_map": None, "tokenizer_class": None}, {"model_type": "kimi_k2"}),
    ],
)
def test_a_folder_may_say_in_several_ways_that_it_is_kimis(tmp_path: Path, config: dict, model: dict) -> None:
    write_kimi(tmp_path, **config)
    (tmp_path / "config.json").write_text(json.dumps(model))
    assert Tokenizer.open(tmp_path).bos_id == len(trained_lines())


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ({"auto_map": None}, {}),
        ({"auto_map": None}, {"model_type": "deepseek_v3", "vocab_size": 129280}),
        ({"auto_map": None, "tokenizer_class": "QwenTokenizer"}, {"model_type": "kimi_k2"}),
        ({"auto_map": {"AutoTokenizer": ["tokenization_other.TikTokenTokenizer", None]}}, {"model_type": "kimi_k2"}),
        ({"auto_map": {"AutoTokenizer": [7]}}, {"model_type": "kimi_k2"}),
    ],
)
def test_an_unknown_kind_of_tiktoken_is_refused(tmp_path: Path, config: dict, model: dict) -> None:
    write_kimi(tmp_path, **config)
    (tmp_path / "config.json").write_text(json.dumps(model))
    opening_fails(tmp_path, UnsupportedModelError, "not known to be of Kimi's kind")


def test_kimi_without_its_tokenizer_config_names_what_is_missing(tmp_path: Path) -> None:
    (write_kimi(tmp_path) / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "kimi_k2"}')
    opening_fails(tmp_path, CheckpointError, "tokenizer_config.json is missing")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda lines: [b"%%%% 0", *lines[1:]], "line 1 is not a token in base64"),
        (lambda lines: [*lines[:5], b"IQ= 5", *lines[6:]], "line 6 is not"),
        (lambda lines: [*lines, b"IQ=="], "is not a token in base64 and its rank"),
        (lambda lines: [*lines, b"YWJjZGVm one"], "is not a token in base64 and its rank"),
        (lambda lines: [*lines, b"YWJjZGVm -1"], "is not a token in base64 and its rank"),
        (lambda lines: [*lines, b"YWJjZGVm " + b"9" * 5000], "is not a token in base64 and its rank"),
        (lambda lines: [*lines, b64encode(b"a" * 5000) + b" 580"], "is not a token in base64 and its rank"),
        (lambda lines: [b"\xff\xfe" + lines[0], *lines[1:]], "line 1 is not"),
        (lambda lines: [*lines, lines[3]], "line 581 repeats a token"),
        (lambda lines: [*lines, b64encode(b"zzzzzz") + b" 7"], "rank 7 appears twice"),
        (lambda lines: [*lines[:400], *lines[401:]], "rank 400 is missing"),
        (lambda lines: ranks_file([*ALPHABET[:65], *ALPHABET[66:]]), "no token for the byte 0x41"),
        (lambda lines: [], "no token for the byte 0x00"),
        (lambda lines: [b"version https://git-lfs.github.com/spec/v1"], "line 1 is not"),
    ],
)
def test_a_damaged_tiktoken_model_is_one_sentence(tmp_path: Path, change, part: str) -> None:
    write_kimi(tmp_path)
    (tmp_path / "tiktoken.model").write_bytes(b"\n".join(change(trained_lines())))
    opening_fails(tmp_path, CheckpointError, part)


@pytest.mark.parametrize(
    ("added", "part"),
    [
        (None, "added_tokens_decoder, which names the special tokens, is missing"),
        ([], "added_tokens_decoder, which names"),
        ({"x": {"content": "[BOS]"}}, "'x' where an id is expected"),
        ({"580": {"content": ""}}, "a token without a text"),
        ({"580": "[BOS]"}, "a token without a text"),
        ({"579": {"content": "[BOS]"}}, "the added tokens begin at 579, but tiktoken.model has 580 tokens"),
        ({"585": {"content": "[BOS]"}}, "one of the two files is not whole"),
        ({"580": {"content": "[BOS]"}, "163839": {"content": "[PAD]"}}, "added token 163,839 is beyond"),
        ({"580": {"content": "[BOS]"}, "581": {"content": "[BOS]"}}, "'[BOS]' of id 581 has another id"),
        ({"580": {"content": "a"}}, "'a' of id 580 has another id"),
    ],
)
def test_added_tokens_that_do_not_fit_are_one_sentence(tmp_path: Path, added: object, part: str) -> None:
    opening_fails(write_kimi(tmp_path, added_tokens_decoder=added), CheckpointError, part)


def test_random_damage_never_ends_in_a_traceback(tmp_path: Path) -> None:
    whole = (write_kimi(tmp_path) / "tiktoken.model").read_bytes()
    draw = random.Random(2)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / "tiktoken.model").write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            tokenizer = Tokenizer.open(tmp_path)
            assert tokenizer.decode(tokenizer.encode("Hello 世界")) == "Hello 世界"
        except ModelError as error:
            assert error.hint and "\n" not in error.message


@pytest.mark.slow
def test_a_vocabulary_of_real_size_has_tiktokens_ids(tmp_path: Path) -> None:
    vocab = vocabularies.deepseek_backend().get_vocab(with_added_tokens=False)
    tokens = [t for t in sorted(vocab, key=vocab.__getitem__) if set(t) <= set(ALPHABET)]
    folder = write_kimi(tmp_path, ranks_file(tokens))
    tokenizer, oracle = Tokenizer.open(folder), reference(folder)
    draw = random.Random(3)
    for _ in range(3000):
        text = "".join(draw.choice(draw.choice([*ALPHABETS, *CORPUS])) for _ in range(draw.randint(1, 40)))
        text += draw.choice(CORPUS)[draw.randrange(40) :] + tokenizer.decode(draw.choices(range(len(tokens)), k=5))
        assert tokenizer.encode(text) == oracle.encode_ordinary(text)
