"""What the shells are told: scripts to install, and what can follow."""

import shlex
import shutil
import subprocess
import sys

import pytest
from process import MAIN

SHELLS = ("bash", "zsh", "fish")


def words(home, shell: str, line: str) -> str:
    """What completion answers for a line of words, the last of them begun."""
    env = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = home.run(_LOCALMOE_COMPLETE=f"complete_{shell}", **env)
    assert done.stderr == b""
    return done.stdout.decode()


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script(home, shell):
    done = home.run(_LOCALMOE_COMPLETE=f"source_{shell}")
    assert (done.returncode, done.stderr) == (0, b"")
    script = done.stdout.decode()
    assert f"complete_{shell}" in script and "localmoe" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b"")


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_options_models_and_settings_are_completed(home, shell):
    assert "quantize" in words(home, shell, "localmoe q")
    assert "--dry-run" in words(home, shell, "localmoe pull --dr")
    assert "restore" in words(home, shell, "localmoe chats re")
    models = words(home, shell, "localmoe ask -m deepseek-r")
    assert "deepseek-r1-0528" in models and "kimi" not in models
    assert "deepseek-v3.1" in words(home, shell, "localmoe verify deepseek")
    assert "temperature" in words(home, shell, "localmoe config set temp")


def test_a_wrong_models_toml_gives_no_names_and_no_traceback(home):
    (home.folder / ".config/localmoe").mkdir(parents=True)
    (home.folder / ".config/localmoe/models.toml").write_text("[broken")
    assert words(home, "bash", "localmoe ask -m deep").strip() == ""


def test_the_script_works_in_bash(home):
    script = home.run(_LOCALMOE_COMPLETE="source_bash").stdout.decode()
    (home.folder / "localmoe").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m localmoe "$@"\n')
    (home.folder / "localmoe").chmod(0o755)
    asked = 'COMP_WORDS=(localmoe quan); COMP_CWORD=1; _localmoe_completion "$PWD/localmoe"; echo "${COMPREPLY[@]}"'
    env = {**home.env, "PATH": home.env["PATH"]}
    done = subprocess.run(["bash", "-c", script + asked], cwd=home.folder, env=env, capture_output=True)
    assert done.stdout.decode().strip() == "quantize", done.stderr


def test_show_completion_is_for_the_shell_in_use(home):
    line = shlex.join([sys.executable, "-c", MAIN, "--show-completion"])
    done = subprocess.run(["bash", "-c", f"{line}; exit $?"], env=home.env, cwd=home.folder, capture_output=True)
    assert b"_localmoe_completion" in done.stdout, done.stderr
