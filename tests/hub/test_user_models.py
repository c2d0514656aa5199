"""A user's own models: what models.toml may say, and where it says something wrong."""

import pytest
import shards
import tiny

from localmoe.engine.outlook import plannable
from localmoe.errors import ModelNotFoundError, UsageError
from localmoe.hub.catalog import load_catalog, local_models, resolve
from localmoe.hub.small_files import find_small_files
from localmoe.hub.user_models import _RULES
from localmoe.settings import config_dir


@pytest.fixture
def write(cache):
    def write(text: str) -> None:
        config_dir().mkdir(parents=True, exist_ok=True)
        (config_dir() / "models.toml").write_text(text)

    return write


def test_without_a_file_there_is_the_catalogue(cache):
    assert "deepseek-v3" in load_catalog() and all(not entry.folder for entry in load_catalog().values())


def test_a_folder_and_a_repository_are_models_like_the_others(write, tmp_path):
    made = tiny.make_checkpoint(tmp_path / "made")
    write(f'[mine]\nfolder = "{made}"\n\n["theirs-1.5"]\nrepo = "org/Theirs"\nrevision = "v2"\ntemplate = "v3"\n')
    mine, theirs = (load_catalog()[name] for name in ("mine", "theirs-1.5"))
    assert resolve("mine").folder == made and not mine.is_embedded and mine.fetch_command == ""
    assert (theirs.title, theirs.revision, theirs.template) == ("theirs-1.5", "v2", "v3")
    assert mine.config["model_type"] == "deepseek_v3" and theirs.config == {}
    with pytest.raises(ModelNotFoundError, match=r"theirs-1\.5 is not on this machine at revision v2") as caught:
        resolve("theirs-1.5")
    assert caught.value.hint == "localmoe pull theirs-1.5 fetches it."
    states = {model.entry.name: model.state for model in local_models()}
    assert (states["mine"], states["theirs-1.5"]) == ("present", "absent")
    names = [entry.name for entry in plannable(load_catalog().values())]
    assert "mine" in names and "theirs-1.5" not in names
    assert find_small_files("mine").state == "present"


def test_a_shape_of_the_catalogue_makes_predictions_possible(write):
    write('[theirs]\nrepo = "org/Theirs"\nshape = "deepseek-v3"\n')
    assert load_catalog()["theirs"].config == load_catalog()["deepseek-v3"].config


def test_a_config_that_does_not_run_is_no_reason_to_say_nothing(write, tmp_path):
    made = shards.make(tmp_path / "made")
    write(f'[mine]\nfolder = "{made}"\n')
    assert "mine" not in [entry.name for entry in plannable(load_catalog().values())]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[a]\nrepo = "x/y"\n\n[b]\nrepo = "x"\n', 5, "repo must be org/name, not 'x'"),
        ('[a]\nrepo = "x/y"\ntemperatur = 1\n', 3, "unknown key 'temperatur'"),
        ('[a]\nrepo = "x/y"\n"top_p" = 0\n', 3, "top_p must be a number above 0"),
        ('[a]\nrepo = "x/y"\ncontext = true\n', 3, "context must be a number of tokens, not True"),
        ('[a]\nrepo = "x/y"\nsize_bytes = -1\n', 3, "size_bytes must be"),
        ('[a]\nrepo = "x/y"\nshape = "v9"\n', 3, "shape must be one of deepseek-v3"),
        ('[a]\nrepo = "x/y"\ntemplate = "chatml"\n', 3, "template must be one of v3"),
        ('[a]\nrepo = "x/y"\nformat = "gguf"\n', 3, "format must be fp8 or bf16"),
        ('[a]\nrepo = "x/y"\ntitle = "two\\nlines"\n', 3, "title must be a line of text"),
        ('# mine\n\n["a"]\ntitle = "x"\n', 3, "[a] needs either repo or folder"),
        ('[a]\nrepo = "x/y"\nfolder = "z"\n', 1, "needs either repo or folder"),
        ('\n[deepseek-v3]\nrepo = "x/y"\n', 2, "the catalogue has a model deepseek-v3 already"),
        ('\n["My Model"]\nrepo = "x/y"\n', 2, "'My Model' is no name for a model"),
        ('title = "x"\n', 1, "title is no model"),
        ('[a.b]\nrepo = "x/y"\n', 1, "unknown key 'b'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write, text, line, message):
    write(text)
    with pytest.raises(UsageError) as caught:
        load_catalog()
    assert f"models.toml, line {line}: " in caught.value.message and message in caught.value.message
    assert caught.value.hint and caught.value.exit_code == 2


def test_text_that_is_no_toml(write):
    write('[a]\nrepo = x/y"\n')
    with pytest.raises(UsageError, match=r"models\.toml is not valid TOML: .* line 2"):
        load_catalog()


def test_every_key_is_documented():
    import localmoe.hub.user_models as room

    assert all(key in room.__doc__ for key in (*_RULES, "shape"))
