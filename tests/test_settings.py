"""Where settings come from, and what is said about bad ones."""

import os
from pathlib import Path

import pytest

from localmoe.errors import UsageError
from localmoe.settings import RULES, Settings, cache_dir, config_dir, config_file, data_dir, load_settings


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    for name in RULES:
        monkeypatch.delenv(f"LOCALMOE_{name.upper()}", raising=False)
    for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def write_config(text: str) -> Path:
    config_dir().mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)
    return config_file()


def test_without_anything_settings_are_defaults():
    settings = load_settings()
    assert settings == Settings()
    assert settings.origin("context") == "default"


def test_a_flag_wins_over_the_environment_over_the_file(monkeypatch):
    write_config('context = 1000\nthreads = 3\nmodel = "kimi"\n')
    monkeypatch.setenv("LOCALMOE_CONTEXT", "2000")
    monkeypatch.setenv("LOCALMOE_THREADS", "4")
    settings = load_settings({"context": 4000, "threads": None})
    assert (settings.context, settings.threads, settings.model) == (4000, 4, "kimi")
    assert [settings.origin(n) for n in ("context", "threads", "model", "seed")] == [
        "flag",
        "environment",
        "config.toml",
        "default",
    ]


def test_an_empty_variable_is_not_set(monkeypatch):
    monkeypatch.setenv("LOCALMOE_CONTEXT", "")
    assert load_settings().context is None


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("No", False), ("1", True), ("off", False)], ids=lambda x: str(x)
)
def test_switches_are_read_from_the_environment(monkeypatch, text, value):
    monkeypatch.setenv("LOCALMOE_THINK", text)
    assert load_settings().think is value


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("LOCALMOE_THREADS", "many", "from 1 to 1,024"),
        ("LOCALMOE_THREADS", "0", "from 1 to 1,024"),
        ("LOCALMOE_TEMPERATURE", "nan", "from 0 to 100"),
        ("LOCALMOE_TOP_P", "0", "above 0 and at most 1"),
        ("LOCALMOE_ISA", "sse9", "scalar or avx2 or avx2_zen or avx512"),
        ("LOCALMOE_CACHE_DTYPE", "int4", "float32 or bf16"),
        ("LOCALMOE_PLAN", "gpu", "auto or cpu or slp or dslp or disk"),
        ("LOCALMOE_THINK", "maybe", "true or false"),
        ("LOCALMOE_SEED", "-1", "from 0"),
        ("LOCALMOE_TTFT_TARGET_S", "0", "above 0 and at most 86400"),
        ("LOCALMOE_TPOT_TARGET_MS", "fast", "above 0 and at most 60000"),
    ],
)
def test_a_bad_variable_is_named_with_what_is_allowed(monkeypatch, variable, text, allowed):
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=variable) as caught:
        load_settings()
    assert allowed in caught.value.message
    assert text in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ['"a lot"', "true", "1.5", "0", "[1]", "1979-05-27"])
def test_a_bad_value_in_the_file_is_named_with_file_and_key(value):
    file = write_config(f"context = {value}\n")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert f"{file}: context must be a number of tokens" in caught.value.message


def test_a_bad_flag_is_named():
    with pytest.raises(UsageError, match="--top-p must be above 0 and at most 1, not 2"):
        load_settings({"top_p": 2.0})


def test_an_unknown_key_is_answered_with_the_closest_one():
    file = write_config("temprature = 0.5\n")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert caught.value.message == f"{file}: unknown key 'temprature'"
    assert caught.value.hint == "did you mean 'temperature'?"


def test_an_unknown_key_like_none_lists_what_is_known():
    write_config("[colours]\n")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert "temperature" in caught.value.hint


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe", b"= 1"])
def test_a_file_that_is_no_toml_is_named(content):
    write_config("").write_bytes(content)
    with pytest.raises(UsageError, match=r"config\.toml cannot be read"):
        load_settings()


def test_a_folder_in_the_files_place_is_named():
    config_file().mkdir(parents=True)
    with pytest.raises(UsageError, match=r"config\.toml cannot be read"):
        load_settings()


def test_a_pipe_in_the_files_place_is_named_and_not_waited_for():
    config_dir().mkdir(parents=True)
    os.mkfifo(config_file())
    with pytest.raises(UsageError, match=r"config\.toml cannot be read: it is not a regular file"):
        load_settings()


def test_folders_follow_xdg(tmp_path, monkeypatch):
    assert config_dir() == tmp_path / ".config/localmoe"
    assert data_dir() == tmp_path / ".local/share/localmoe"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_dir() == tmp_path / "elsewhere/localmoe"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / ".cache/localmoe"


def test_a_setting_is_told_by_what_would_change_it():
    origins = {"plan": "flag", "max_tokens": "flag", "context": "environment", "threads": "config.toml"}
    told = [Settings(origins=origins).said_by(name) for name in (*origins, "isa")]
    assert told == ["--plan", "--max-tokens", "LOCALMOE_CONTEXT", "config.toml", "default"]
