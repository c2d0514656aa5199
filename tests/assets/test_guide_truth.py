"""What the guide tells people to type exists: commands, options, keys, variables, model names."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from localmoe.cli.doors import app
from localmoe.settings import RULES, config_file, history_file
from localmoe.tui.commands import COMMANDS, command_called
from localmoe.tui.keymap import key_name

ROOT = Path(__file__).parents[2]
INTENTS = tomllib.loads((ROOT / "assets/guide/corpus/intents.toml").read_text())["intent"]
OUTSIDE = tomllib.loads((ROOT / "assets/guide/corpus/outside.toml").read_text())["refusals"]
CATALOGUE = {k: v for k, v in tomllib.loads((ROOT / "models.toml").read_text()).items() if "repo" in v}

COMMAND_LINE = get_command(app)
# Ctrl+C is the terminal's.
OTHER_KEYS = {"Ctrl+C"}
CODE = re.compile(r"```\n(.*?)```|`([^`\n]+)`", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])")
KEY = re.compile(r"\b(?:Ctrl\+(?:[A-Z][a-z]\w*|[A-Z])|F\d{1,2}|Esc|Enter)\b")
SLASH = re.compile(r"^/([a-z]+)(?: [A-Z]+| [a-z_]+ [\d.]+)?$")  # "/set temperature 0.3"; "/path/to" is none
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


def with_subcommands(command: object) -> Iterator[object]:
    """The command and all below it."""
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from with_subcommands(below)


def options_of(command: object) -> set[str]:
    """All spellings of the options of a command, and of those below it."""
    spelled = {o for c in with_subcommands(command) for p in c.params for o in (*p.opts, *p.secondary_opts)}
    return spelled | {"--help", "-h"}


def called(words: list[str]) -> object:
    """The command that a line names, down to a group's own: `chats export`."""
    command = COMMAND_LINE
    for word in (word for word in words if not word.startswith("-")):
        if not hasattr(command, "commands"):
            break
        assert word in command.commands, f"{command.name} has no {word}"
        command = command.commands[word]
    return command


@pytest.mark.parametrize("line", localmoe_lines())
def test_a_command_line_is_accepted(line: str) -> None:
    words = shlex.split(re.split(r"[|>]", line)[0], comments=False)[1:]
    command = called(words)
    used = {word for word in words if word.startswith("-")}
    assert used <= (options_of(command) if command is not COMMAND_LINE else {"--help", "--version"})


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
    known = options_of(COMMAND_LINE)
    for text in answers():
        for snippet in snippets(text):
            if not FOREIGN.match(snippet) and not snippet.startswith("localmoe"):
                assert set(OPTION.findall(snippet)) <= known, snippet


def test_every_key_does_what_is_said() -> None:
    bound = {key_name(key) for command in COMMANDS if command.key for key in command.key.split(",")} | OTHER_KEYS
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
        ("regen", "answer.again"),
        ("edit_question", "question.edit"),
        ("history", "chats.open"),
        ("tabs", "tab.new"),
        ("editor", "prompt.editor"),
        ("pages", "models.open"),
    ],
)
def test_the_key_for_an_action_is_named_first(intent: str, command: str) -> None:
    answer = next(item["answer"] for item in INTENTS if item["id"] == intent)
    assert KEY.search(answer)[0] == key_name(command_called(command).key.split(",")[0])


def test_every_slash_command_is_one() -> None:
    named = {found[1] for text in answers() for snippet in snippets(text) if (found := SLASH.match(snippet))}
    assert named >= {"help", "model", "set", "system", "regen", "edit", "export", "attach"}
    assert named <= {command.slash for command in COMMANDS}


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


def test_every_model_to_pull_is_in_the_catalogue() -> None:
    named = {name for line in localmoe_lines() for name in re.findall(r"^localmoe pull (\S+)", line)}
    assert named - {"NAME"}
    assert named - {"NAME"} <= CATALOGUE.keys()


def test_the_answer_on_commands_names_them_all() -> None:
    answer = next(item["answer"] for item in INTENTS if item["id"] == "all_commands")
    named = {snippet for snippet in snippets(answer) if re.fullmatch("[a-z]+", snippet)} - {"localmoe"}
    assert named == set(COMMAND_LINE.commands)


def test_the_chats_are_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    named = {path for text in answers() for path in re.findall(r"~\S*chats\.db", text)}
    assert named == {f"~/{history_file().relative_to(Path.home())}"}


def test_only_what_is_missing_is_denied() -> None:
    """A denial is an answer that goes stale: whoever adds one looks here, and at the program."""
    denial = re.compile(
        r"\bthere is no\b|\b(?:not|no \w+) yet\b|\bnot saved\b|does not exist|아직|저장되지 않", re.IGNORECASE
    )
    denied = {item["id"] for item in INTENTS if denial.search(item["answer"] + item.get("korean_answer", ""))}
    assert denied == {"privacy", "server", "python_api"}
