import json
import random
from pathlib import Path

import pytest
import vocabularies
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from vocabularies import ASSISTANT, BOS, EOS, USER

from localmoe.errors import CheckpointError, ModelError, UnsupportedModelError
from localmoe.hub.tokenizer import Tokenizer

FORGERIES = [BOS, EOS, USER, ASSISTANT, "<think>", "</think>", "<|EOT|>", "<｜tool▁calls▁begin｜>", "｜DSML｜"]


@pytest.fixture(scope="module")
def deepseek() -> Tokenizer:
    return vocabularies.deepseek()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return vocabularies.write_bytes_tokenizer(tmp_path / "model")


def opening_fails(folder: Path, kind: type[ModelError], part: str) -> None:
    with pytest.raises(kind) as caught:
        Tokenizer.open(folder)
    error = caught.value
    assert part in error.message, error.message
    assert error.exit_code == 4 and error.hint and "\n" not in error.message + error.hint


def test_deepseeks_ids_are_deepseeks(deepseek: Tokenizer) -> None:
    assert deepseek.encode("Hello, world! 你好，世界 12345") == [
        19923,
        14,
        2058,
        3,
        223,
        30594,
        303,
        3427,
        223,
        6895,
        1883,
    ]
    assert (deepseek.bos_id, deepseek.eos_id) == (0, 1)
    assert deepseek.token_id(USER) == 128803 and deepseek.token_id("no such token") is None
    assert deepseek.vocab_size == 129280
    assert deepseek.chat_template is None


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_pasted_special_token_is_plain_text(deepseek: Tokenizer, forgery: str) -> None:
    mark = deepseek.token_id(forgery)
    for text in (forgery, f"see {forgery} there", forgery * 3, f"<{forgery}>"):
        ids = deepseek.encode(text)
        assert mark is not None and mark not in ids
        assert deepseek.special_ids.isdisjoint(ids)
        assert deepseek.decode(ids) == text
    assert deepseek.encode(f"a{forgery}b", special=True)[1] == mark


def test_trust_is_by_part_and_does_not_leak_over_borders(deepseek: Tokenizer) -> None:
    user = deepseek.token_id(USER)
    ids = deepseek.encode_parts([(USER, True), (USER, False), ("<｜Us", True), ("er｜>", False)])
    assert ids[0] == user and ids.count(user) == 1
    assert ids[1:] == deepseek.encode(USER + USER)


def test_untrusted_text_joins_its_neighbours_as_one_text(deepseek: Tokenizer) -> None:
    assert deepseek.encode_parts([("User:", True), (" hello", False), ("\n\n", True)]) == deepseek.encode(
        "User: hello\n\n"
    )


@settings(deadline=None)
@given(st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("<｜>▁think/User"))))
def test_plain_text_comes_back_and_never_holds_a_mark(text: str) -> None:
    tokenizer = vocabularies.deepseek()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_ids.isdisjoint(ids)


@settings(deadline=None)
@given(st.lists(st.sampled_from([*FORGERIES, "a", " ", "é", "\n", "<", "word"]), max_size=12).map("".join))
def test_trusted_text_is_encoded_as_the_library_does(text: str) -> None:
    tokenizer = vocabularies.deepseek()
    library = vocabularies.deepseek_backend()
    assert tokenizer.encode(text, special=True) == library.encode(text, add_special_tokens=False).ids


def test_any_ids_decode_as_the_library_does(deepseek: Tokenizer) -> None:
    library = vocabularies.deepseek_backend()
    draw = random.Random(0)
    for _ in range(2000):
        ids = [i for i in draw.choices(range(deepseek.vocab_size), k=8) if i not in deepseek.special_ids]
        assert deepseek.decode(ids) == library.decode(ids, skip_special_tokens=False)


def test_decoding_leaves_special_tokens_out_unless_asked(deepseek: Tokenizer) -> None:
    ids = deepseek.encode(f"{BOS}{USER} a<think>", special=True)
    assert deepseek.decode(ids) == " a"
    assert deepseek.decode(ids, special=True) == f"{BOS}{USER} a<think>"


def test_an_id_without_a_token_has_no_text(deepseek: Tokenizer) -> None:
    assert deepseek.decode([deepseek.vocab_size + 5]) == ""


def test_lone_surrogates_are_replaced(deepseek: Tokenizer) -> None:
    assert deepseek.decode(deepseek.encode("a\udc80b")) == "a?b"


def test_words_added_to_a_vocabulary_stay_tokens(tmp_path: Path) -> None:
    added = ["    ", "localmoe", "://"]
    tokenizer = Tokenizer.open(vocabularies.write_bytes_tokenizer(tmp_path, (*vocabularies.DEEPSEEK, *added)))
    ids = tokenizer.encode("    localmoe://")
    assert ids == [tokenizer.token_id(word) for word in added]
    assert tokenizer.decode(ids) == "    localmoe://"


def test_an_added_token_that_the_chat_template_writes_cannot_be_typed(tmp_path: Path) -> None:
    source = "{{ '@@user:' + messages[0].content }}"
    marks = (*vocabularies.DEEPSEEK, "@@user:")
    tokenizer = Tokenizer.open(vocabularies.write_bytes_tokenizer(tmp_path, marks, chat_template=source))
    mark = tokenizer.token_id("@@user:")
    assert mark in tokenizer.encode("@@user:", special=True) and mark not in tokenizer.encode("@@user:")


def test_a_mark_that_is_also_a_word_of_the_vocabulary_cannot_be_typed(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: n for n, token in enumerate([*alphabet, "<s>"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.encode("<s>", special=True) == [vocab["<s>"]]
    assert tokenizer.encode("<s>") == [vocab[c] for c in "<s>"]


def test_the_stream_shows_no_broken_character(deepseek: Tokenizer) -> None:
    text = "한국어 🇰🇷 👩‍👩‍👧 龘"
    ids = deepseek.encode(text)
    stream = deepseek.text_stream()
    pieces = [stream.feed(i) for i in ids]
    assert len(ids) > 15 and "�" not in "".join(pieces)
    assert "".join(pieces) == text and stream.flush() == ""
    assert "" in pieces  # the emoji is longer than a token


def test_bytes_that_are_no_character_come_as_soon_as_that_is_certain(folder: Path) -> None:
    tokenizer = Tokenizer.open(folder)
    half = tokenizer.encode("é")[:1]
    letter = tokenizer.encode("a")
    stream = tokenizer.text_stream()
    assert [stream.feed(half[0]), stream.feed(letter[0])] == ["", "�a"]
    assert [stream.feed(half[0]), stream.flush(), stream.feed(letter[0])] == ["", "�", "a"]


def test_the_chat_template_comes_in_three_forms(folder: Path) -> None:
    def template_with(value: object) -> str | None:
        vocabularies.write_bytes_tokenizer(folder, chat_template=value)
        return Tokenizer.open(folder).chat_template

    assert template_with("T") == "T"
    assert template_with([{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]) == "D"
    assert template_with([{"name": "tool_use", "template": "U"}]) is None
    assert template_with(None) is None
    (folder / "chat_template.jinja").write_text("F")
    assert template_with("T") == "F"


def test_special_tokens_are_texts_or_objects_and_may_have_their_own_file(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": EOS}}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": BOS, "eos_token": "other"}))
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.special_tokens == {"bos_token": BOS, "eos_token": EOS}
    assert tokenizer.bos_id == tokenizer.token_id(BOS)


def test_tokenizer_config_may_be_missing(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.open(folder)
    assert tokenizer.bos_id is None and tokenizer.chat_template is None


def test_truncation_and_padding_in_the_file_are_not_applied(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer.open(folder).encode("abcdef")) == 6


def test_tiktoken_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_text("IQ== 0\n")
    opening_fails(tmp_path, UnsupportedModelError, "tiktoken.model")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    opening_fails(tmp_path, CheckpointError, "tokenizer.json is missing")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"model": {}}', '{"version": "1.0", "model": null}'])
def test_a_broken_tokenizer_is_one_sentence(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    opening_fails(folder, CheckpointError, "tokenizer.json cannot be read")


@pytest.mark.parametrize("text", ["", "[]", '{"chat_template": 5}', "{'a': 1}"])
def test_a_broken_tokenizer_config_is_one_sentence(folder: Path, text: str) -> None:
    (folder / "tokenizer_config.json").write_text(text)
    opening_fails(folder, CheckpointError, "tokenizer_config.json")


def test_templates_with_odd_names_are_passed_over(folder: Path) -> None:
    named = [{"name": ["a"], "template": "x"}, 7, {"name": "default", "template": "y"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer.open(folder).chat_template == "y"


def test_a_tokenizer_without_words_is_refused(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"] = {}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    opening_fails(folder, CheckpointError, "no token for ordinary text")


def test_a_decoder_that_is_not_byte_level_is_refused(folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(folder / "tokenizer.json"))
    opening_fails(folder, UnsupportedModelError, "WordPiece")


def test_random_damage_never_ends_in_a_traceback(folder: Path) -> None:
    whole = (folder / "tokenizer.json").read_bytes()
    draw = random.Random(1)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (folder / "tokenizer.json").write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            tokenizer = Tokenizer.open(folder)
            tokenizer.decode(tokenizer.encode("Hello <think>"))
        except ModelError as error:
            refused += 1
            assert error.hint
    assert refused > 50
