"""`localmoe config`: every value with its origin, and changing one without harm to the others."""

import json

import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.settings import RULES


@pytest.fixture
def file(inside):
    path = inside.folder / ".config/localmoe/config.toml"
    path.parent.mkdir(parents=True)
    return path


def shown(inside, *flags) -> dict[str, dict]:
    done = inside.run("config", "show", "--json", *flags)
    assert (done.returncode, done.stderr) == (0, b"")
    return {one["name"]: one for one in json.loads(done.stdout)["settings"]}


def test_every_setting_is_shown_with_where_it_comes_from(inside, file, monkeypatch):
    file.write_text("# mine\nthreads = 2\n\ncontext = 8192  # enough\n")
    monkeypatch.setenv("LOCALMOE_CONTEXT", "4096")
    found = shown(inside)
    assert list(found) == list(RULES)
    assert found["threads"] == {
        "name": "threads",
        "value": 2,
        "origin": "config.toml",
        "where": "config.toml, line 2",
        "line": 2,
    }
    assert (found["context"]["value"], found["context"]["origin"]) == (4096, "environment")
    assert found["context"]["where"] == "LOCALMOE_CONTEXT"
    assert (found["plan"]["value"], found["plan"]["origin"]) == ("auto", "default")
    assert (found["seed"]["value"], found["seed"]["where"]) == (None, "left to the engine")


def test_what_the_model_brings_with_it_is_told(inside, tmp_path):
    model = make_checkpoint(tmp_path / "mine", **SHAPES["v3"])
    found = shown(inside, "-m", str(model))
    assert (found["model"]["origin"], found["model"]["where"]) == ("flag", "--model")
    assert found["temperature"] == {
        "name": "temperature",
        "value": 0.3,
        "origin": "model",
        "where": "generation_config.json of mine",
        "line": None,
    }
    assert found["min_p"]["where"] == "left to the model"


def test_for_people_it_fits_80_columns(inside, file):
    file.write_text("temperature = 0.5\n")
    done = inside.run("config", "show")
    lines = done.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == list(RULES)
    assert all(len(line) <= 80 for line in lines)
    assert lines[list(RULES).index("temperature")].split(maxsplit=2)[1:] == ["0.5", "config.toml, line 1"]


def test_keys_of_ones_own_are_settings_too(inside, file):
    file.write_text('seed = 1\n\n[keys]\nanswer.copy = "f4"\n')
    found = shown(inside)
    assert list(found) == [*RULES, "keys.answer.copy"]
    assert (found["keys.answer.copy"]["value"], found["keys.answer.copy"]["line"]) == ("f4", 4)


@pytest.mark.parametrize("model", ["deepseek-v3", "no-such-model"])
def test_a_model_that_is_not_here_is_no_reason_to_say_nothing(inside, model):
    assert shown(inside, "-m", model)["temperature"]["origin"] == "default"


def test_path_names_the_file_there_or_not(inside, file):
    assert inside.run("config", "path").stdout.decode() == f"{file}\n"
    assert json.loads(inside.run("config", "path", "--json").stdout) == {"path": str(file), "exists": False}


def test_set_writes_one_value_and_leaves_the_rest(inside, file):
    file.write_text("# mine\ncontext = 8192  # enough\n")
    done = inside.run("config", "set", "context", "4096")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == f"localmoe: context = 4096 in {file}\n"
    assert file.read_text() == "# mine\ncontext = 4096  # enough\n"
    done = inside.run("config", "set", "think", "off", "--json", "--quiet")
    assert json.loads(done.stdout) == {"path": str(file), "name": "think", "value": False} and done.stderr == b""
    assert shown(inside)["think"]["value"] is False
    assert inside.run("config", "unset", "context", "-q").stderr == b""
    assert file.read_text() == "# mine\nthink = false\n"


def test_a_variable_that_wins_is_told(inside, monkeypatch):
    monkeypatch.setenv("LOCALMOE_SEED", "1")
    done = inside.run("config", "set", "seed", "7")
    assert "LOCALMOE_SEED is set and wins over it" in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "temprature", "1"), "unknown key 'temprature'"),
        (("set", "temperature", "warm"), "temperature must be a number from 0 to 100"),
        (("unset", "temprature"), "unknown key 'temprature'"),
        (("set", "temperature"), "Missing argument"),
        (("frobnicate",), "No such command"),
    ],
)
def test_a_wrong_change_is_refused_and_nothing_written(inside, file, arguments, message):
    done = inside.run("config", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()
    assert not file.exists()


@pytest.mark.parametrize("arguments", [("show",), ("set", "seed", "1"), ("unset", "seed")])
def test_a_broken_file_is_named_and_left_alone(inside, file, arguments):
    file.write_text("seed = \n")
    done = inside.run("config", *arguments)
    assert done.returncode == 2 and "config.toml" in done.stderr.decode()
    assert file.read_text() == "seed = \n"
