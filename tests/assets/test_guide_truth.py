"""What the guide tells people to type exists: commands, options, keys, variables, model names."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from localmoe.cli.doors import app
from localmoe.settings import RULES, config_file
from localmoe.tui.commands import COMMANDS

ROOT = Path(__file__).parents[2]
INTENTS = tomllib.loads((ROOT / "assets/guide/corpus/intents.toml").read_text())["intent"]
OUTSIDE = tomllib.loads((ROOT / "assets/guide/corpus/outside.toml").read_text())["refusals"]
CATALOGUE = {k: v for k, v in tomllib.loads((ROOT / "models.toml").read_text()).items() if "repo" in v}

COMMAND_LINE = get_command(app)
# The prompt box handles the first two itself; Ctrl+C is the terminal's.
OTHER_KEYS = {"Enter", "Ctrl+J", "Ctrl+C"}
CODE = re.compile(r"```\n(.*?)```|`([^`\n]+)`", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])")
KEY = re.compile(r"\b(?:Ctrl\+[A-Z]|F\d{1,2}|Esc|Enter)\b")
# Options of other programs that the answers name: pip, python.
FOREIGN = re.compile(r"^(?:\S*python3?|\S*/pip|pip|git|hf|export|cat|python3) ")


def answers() -> list[str]:
    """Every sentence that the guide was taught, in English and Korean."""
    known = [text for intent in INTENTS for text in (intent["answer"], intent.get("korean_answer", "")) if text]
    return known + list(OUTSIDE.values())


def snippets(text: str) -> list[str]:
    """What an answer shows as code, a line each."""
    return [line for block, inline in CODE.findall(text) for line in (block or inline).splitlines()]


def localmoe_lines() -> list[str]:
    """Every `localmoe ...` command line that an answer shows, from the word localmoe on."""
    lines = {line[line.index("localmoe") :] for text in answers() for line in snippets(text) if "localmoe" in line}
    return sorted(line for line in lines if re.match(r"localmoe( |$)", line))


def options_of(command: str | None) -> set[str]:
    """All spellings of a command's options; of every command's for None."""
    commands = COMMAND_LINE.commands
    chosen = [commands[command]] if command else [COMMAND_LINE, *commands.values()]
    spelled = {o for c in chosen for p in c.params for o in (*p.opts, *p.secondary_opts)}
    return spelled | {"--help", "-h"}


@pytest.mark.parametrize("line", localmoe_lines())
def test_a_command_line_is_accepted(line: str) -> None:
    words = shlex.split(re.split(r"[|>]", line)[0], comments=False)[1:]
    name = next((word for word in words if not word.startswith("-")), None)
    assert name is None or name in COMMAND_LINE.commands
    used = {word for word in words if word.startswith("-")}
    assert used <= (options_of(name) if name else {"--help", "--version"})


@pytest.mark.parametrize("line", [line for line in localmoe_lines() if re.search(r" (-m|--model) ", line)])
def test_a_model_name_is_in_the_catalogue(line: str) -> None:
    name = re.search(r" (?:-m|--model) (\S+)", line)[1]
    assert name in CATALOGUE or name in ("NAME", "/path/to/folder")


def test_a_suite_exists() -> None:
    lists = [found for line in localmoe_lines() for found in re.findall(r"--suite (\S+)", line)]
    suites = {name for found in lists for name in found.split(",")}
    assert suites
    default = next(p.default for p in COMMAND_LINE.commands["bench"].params if p.name == "suite")
    assert suites <= set(default.split(","))


def test_every_option_named_alone_exists() -> None:
    known = options_of(None)
    for text in answers():
        for snippet in snippets(text):
            if not FOREIGN.match(snippet) and not snippet.startswith("localmoe"):
                assert set(OPTION.findall(snippet)) <= known, snippet


def test_every_key_does_what_is_said() -> None:
    bound = {command.key_name for command in COMMANDS} | OTHER_KEYS
    assert {key for text in answers() for key in KEY.findall(text)} <= bound


@pytest.mark.parametrize(
    ("intent", "command"),
    [
        ("stop", "answer.stop"),
        ("copy", "answer.copy"),
        ("thoughts", "thoughts.toggle"),
        ("engine_panel", "panel.toggle"),
        ("new_chat", "chat.new"),
        ("palette", "palette.open"),
        ("quit", "app.quit"),
    ],
)
def test_the_key_for_an_action_is_named_first(intent: str, command: str) -> None:
    answer = next(item["answer"] for item in INTENTS if item["id"] == intent)
    assert KEY.search(answer)[0] == next(item.key_name for item in COMMANDS if item.id == command)


def test_every_variable_is_a_setting() -> None:
    named = {name for text in answers() for name in re.findall(r"LOCALMOE_[A-Z_]+", text) if not name.endswith("_")}
    assert named == {f"LOCALMOE_{name.upper()}" for name in ("model", "threads", "isa", "context")}
    assert all(name.removeprefix("LOCALMOE_").lower() in RULES for name in named)


def test_every_kernel_target_is_one() -> None:
    named = {target for text in answers() for target in re.findall(r"LOCALMOE_ISA=(\w+)", text)}
    assert named == {"avx2", "scalar"}
    assert all(RULES["isa"].read(target) for target in named)


def test_the_settings_file_is_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    named = {path for text in answers() for path in re.findall(r"~\S*config\.toml", text)}
    assert named == {f"~/{config_file().relative_to(Path.home())}"}


def test_every_repository_is_in_the_catalogue() -> None:
    named = {repo for text in answers() for repo in re.findall(r"hf download ([\w./-]+/[\w.-]+)", text)}
    assert named
    assert named <= {entry["repo"] for entry in CATALOGUE.values()}


def test_commands_that_do_not_exist_are_only_denied() -> None:
    missing = re.compile(r"localmoe (?:pull|verify|rm|chats|serve)\b")
    assert not [text for text in answers() if missing.search(text)]
