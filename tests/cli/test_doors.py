"""Help, version, models, doctor and chat as commands; what each of them imports."""

import json

import pytest
from process import MAIN, scripted

import localmoe
from localmoe.bench.startup import BARE_TYPER
from localmoe.cli.models import table
from localmoe.hub.catalog import local_models

LOADED = "import atexit, sys; atexit.register(lambda: sys.stderr.write('\\n' + ' '.join(sys.modules)))\n"
COUNTED = """
import atexit, sys
events = []
atexit.register(lambda: sys.setprofile(None) or sys.stderr.write(str(events.count("call"))))
sys.setprofile(lambda frame, event, _: events.append(event))
"""


def loaded_by(home, *arguments, program=MAIN):
    """The modules that a run has imported when it ends."""
    return set(home.run(*arguments, program=LOADED + program).stderr.decode().splitlines()[-1].split())


def calls_of(home, *arguments, program=MAIN):
    """How many functions written in Python a run calls; of two runs the second, which compiles nothing."""
    return [int(home.run(*arguments, program=COUNTED + program).stderr) for _ in range(2)][-1]


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


def test_help_imports_only_doors_beyond_what_a_bare_typer_program_does(home):
    beyond = loaded_by(home, "--help") - loaded_by(home, "--help", program=BARE_TYPER)
    assert {name for name in beyond if not name.startswith("localmoe.cli")} == {"localmoe", "localmoe.errors"}


def test_help_calls_little_more_than_a_bare_typer_program(home):
    ours, typers = calls_of(home, "--help"), calls_of(home, "--help", program=BARE_TYPER)
    assert typers < ours < 1.2 * typers


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
