import subprocess
import sys
from pathlib import Path

import pytest
import templates
import tiny
import vocabularies

from localmoe.chat.message import Conversation, Message
from localmoe.chat.template import guess_template, template_for
from localmoe.errors import CheckpointError, UnsupportedModelError
from localmoe.hub.catalog import data_path
from localmoe.hub.tokenizer import Tokenizer

V3_CONFIG = {"model_type": "deepseek_v3"}
QUESTION = Conversation(
    (
        Message("system", "Be kind."),
        Message("user", "Hi"),
    )
)


def guessed(folder: Path, source: str | None, marks: tuple[str, ...] = vocabularies.DEEPSEEK, **config: str):
    tokenizer = Tokenizer.open(vocabularies.write_bytes_tokenizer(folder, marks, chat_template=source))
    return guess_template(tokenizer, config or V3_CONFIG)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("v3", templates.V3),
        ("r1", templates.R1),
        ("v3.1", templates.V31),
        ("v3", tiny.CHAT_TEMPLATE),
    ],
    ids=["v3", "r1", "v3.1", "tiny"],
)
def test_a_template_that_writes_a_familys_format_is_that_family(tmp_path: Path, name: str, source: str) -> None:
    template = guessed(tmp_path, source)
    assert template.name == name and "exactly" in template.why


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(templates.CHATML.replace("im_", ""), id="another maker's"),
        pytest.param(templates.PLAIN, id="no marks between turns"),
        pytest.param(templates.V3 + " ", id="a space at the end"),
        pytest.param(templates.V31.replace("'</think>', 1)[1]", "'</think>')[-1]"), id="thoughts cut elsewhere"),
        pytest.param(templates.V31.replace("if thinking", "if not thinking"), id="thinks by default"),
        pytest.param(templates.V3.replace("add_generation_prompt", "not thinking"), id="a switch for thinking"),
        pytest.param(templates.R1.replace("{{ ns.system }}", "{{ ns.system | trim }}"), id="system stripped"),
        pytest.param(templates.V3.replace("+ m['content'] }}", "+ m['content'] | trim }}"), id="question stripped"),
    ],
)
def test_a_template_that_differs_in_one_rule_is_used_itself(tmp_path: Path, source: str) -> None:
    template = guessed(tmp_path, source)
    assert template.name == "jinja" and "chat_template" in template.why


def test_one_newline_at_the_end_of_a_template_means_nothing(tmp_path: Path) -> None:
    assert guessed(tmp_path, templates.V3 + "\n").name == "v3"


def test_without_a_template_deepseeks_tokens_tell(tmp_path: Path) -> None:
    template = guess_template(vocabularies.deepseek(), V3_CONFIG)
    assert template.name == "v3.1" and "guessed" in template.why
    assert guessed(tmp_path, None, vocabularies.DEEPSEEK[:5]).name == "v3"


def test_without_a_template_and_without_a_known_family_there_is_a_sentence(tmp_path: Path) -> None:
    for n, (marks, model_type) in enumerate([(("<s>", "</s>"), "deepseek_v3"), (vocabularies.DEEPSEEK, "glm")]):
        with pytest.raises(UnsupportedModelError, match="no chat template") as caught:
            guessed(tmp_path / str(n), None, marks, model_type=model_type)
        assert caught.value.exit_code == 4 and caught.value.hint


@pytest.mark.parametrize("source", ["{% if %}", "{{ messages[0].content.nothing() }}"])
def test_a_broken_template_is_a_sentence(tmp_path: Path, source: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be rendered"):
        guessed(tmp_path, source)


def test_a_random_checkpoint_answers_in_v3s_format(tmp_path: Path) -> None:
    tiny.write_tokenizer(tmp_path)
    tokenizer = Tokenizer.open(tmp_path)
    ids = guess_template(tokenizer, tiny.V3).encode(Conversation((Message("user", "Hi"),)))
    assert tokenizer.decode(ids, special=True) == "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>"


def test_the_embedded_models_own_template_writes_its_format() -> None:
    folder = data_path("guide")
    if not (folder / "tokenizer.json").exists():
        pytest.skip("the guide is not in this checkout yet")
    tokenizer = Tokenizer.open(folder)
    guess, named = guess_template(tokenizer, {}), template_for("guide", tokenizer)
    assert "exactly" in guess.why
    for think in (None, True, False):
        assert guess.encode(QUESTION, think) == named.encode(QUESTION, think)


def test_the_room_is_imported_without_its_heavy_tools() -> None:
    code = "import sys, localmoe.chat.template, localmoe.chat.stream, localmoe.hub.tokenizer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"jinja2", "tokenizers", "torch", "transformers", "subprocess"}.isdisjoint(done.stdout.split())
