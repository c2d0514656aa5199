"""Help, version, models, doctor and chat as commands; what each of them imports."""

import json
import resource
import subprocess
import sys

import pytest
from process import MAIN, scripted

import localmoe
from localmoe.cli.models import table
from localmoe.hub.catalog import local_models

LOADED = "\nimport sys; sys.stderr.write(' '.join(sys.modules))"


def loaded_by(home, *arguments, program=MAIN):
    """The modules that a run has imported when it ends."""
    tried = program.replace("main()", "\ntry:\n    main()\nexcept SystemExit:\n    pass")
    done = home.run(*arguments, program=tried + LOADED)
    return set(done.stderr.decode().splitlines()[-1].split())


COMMANDS = (
    *(("chat",), ("ask",), ("pull",), ("models",), ("verify",), ("rm",), ("quantize",), ("doctor",), ("bench",)),
    *(("chats", one) for one in ("list", "show", "search", "export", "import", "rename", "rm", "restore")),
    *(("config", one) for one in ("show", "path", "set", "unset")),
)


def test_the_overview_names_every_command_in_one_line(inside):
    overview = inside.run("--help").stdout.decode()
    for command in {words[0] for words in COMMANDS}:
        assert f"  {command}  " in overview
    assert "..." not in overview.partition("Commands:")[2]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_within_80_columns_and_shows_examples(inside, words):
    done = inside.run(*words, "--help")
    text = done.stdout.decode()
    assert done.returncode == 0 and text.startswith(f"Usage: localmoe {' '.join(words)} ")
    assert all(len(line) <= 80 for line in text.splitlines())
    examples = text.partition("Example")[2].splitlines()[1:]
    assert any(f"localmoe {' '.join(words)}" in line for line in examples if line.startswith("    "))


@pytest.mark.parametrize("words", [words for words in COMMANDS if words != ("chat",)], ids=" ".join)
def test_every_command_but_the_chat_can_be_quiet_and_print_json(inside, words):
    text = inside.run(*words, "--help").stdout.decode()
    assert "-q, --quiet" in text and "--json" in text


def test_the_version_is_told(home):
    assert home.run("--version").stdout.decode() == f"localmoe {localmoe.__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("ask", "--help"), ("--version",)])
def test_help_imports_no_room(home, arguments):
    loaded = loaded_by(home, *arguments)
    assert not loaded & {"torch", "textual", "rich", "numpy", "localmoe.engine", "localmoe.settings", "asyncio"}


@pytest.mark.parametrize("arguments", [("doctor",), ("models",)])
def test_doctor_and_models_import_neither_torch_nor_textual(home, arguments):
    assert not loaded_by(home, *arguments) & {"torch", "textual", "rich", "transformers", "huggingface_hub"}


def test_ask_imports_neither_torch_nor_textual(home):
    loaded = loaded_by(home, "ask", "Hi", program=scripted("'Hello'"))
    assert "localmoe.engine.scripted" in loaded
    assert not loaded & {"torch", "textual", "rich", "transformers", "huggingface_hub"}


def test_help_takes_little_longer_than_a_bare_typer_program(home):
    bare = (
        "import typer\napp = typer.Typer(rich_markup_mode=None)\n"
        "@app.command()\ndef main(name: str = 'you') -> None:\n    'Say hello.'\napp()"
    )

    def cpu_s(program):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program, "--help"], env=home.env, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    ours, typers = zip(*[(cpu_s(MAIN), cpu_s(bare)) for _ in range(11)], strict=True)
    assert min(ours) <= 1.3 * min(typers), (ours, typers)


@pytest.mark.parametrize("arguments", [(), ("chat",)])
def test_the_chat_asks_for_a_terminal(home, arguments):
    done = home.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0] == "localmoe: the chat needs a terminal"


def test_models_lists_the_catalogue(home):
    out = home.run("models").stdout.decode()
    assert all(len(line) <= 80 for line in out.splitlines())
    for name in ("guide", "deepseek-v3.1", "kimi-k2-instruct-0905", "moonlight-16b-a3b-instruct"):
        assert f"\n{name} " in out
    listed = json.loads(home.run("models", "--json").stdout)["models"]
    entry = next(m for m in listed if m["name"] == "deepseek-v3.1")
    assert entry["size_bytes"] > 600e9
    assert (entry["present"], entry["path"]) == (False, None)


def test_a_download_under_way_is_shown_in_part(home, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--deepseek-ai--DeepSeek-V2-Lite-Chat/blobs"
    blobs.mkdir(parents=True)
    with (blobs / "abc.incomplete").open("wb") as file:
        file.truncate(16_000_000_000)
    assert "50 % of it" in table(local_models())
