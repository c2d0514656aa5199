"""The chat as a process on a real terminal, with a script for an engine."""

import sys

import pexpect
from process import scripted

SCREEN = {"dimensions": (40, 120), "encoding": "utf-8", "timeout": 30}


def chat(home, program, *arguments):
    return pexpect.spawn(sys.executable, ["-c", program, *arguments], env=home.env, cwd=str(home.folder), **SCREEN)


def test_a_chat_answers_and_never_loads_torch(home):
    report = "\nimport sys; open('modules', 'w').write(' '.join(sys.modules))"
    program = scripted("'The answer is forty-two.'").replace(
        "main()", "\ntry:\n    main()\nexcept SystemExit:\n    pass"
    )
    child = chat(home, program + report, "chat", "-m", str(home.folder))
    child.expect("❯")
    child.send("Hi\r")
    child.expect("forty-two")
    child.send("\x11")
    child.expect(pexpect.EOF)
    loaded = set((home.folder / "modules").read_text().split())
    assert "textual" in loaded
    assert not loaded & {"torch", "transformers", "huggingface_hub"}


def test_the_plain_command_opens_the_chat(home):
    child = chat(home, scripted("'x'"))
    child.expect("❯")
    child.send("\x11")
    child.expect(pexpect.EOF)


def test_a_missing_model_is_said_before_the_screen_is_taken(home):
    child = chat(home, scripted("'x'"), "chat", "-m", "no-such-model")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 4
    assert child.before.startswith("localmoe: ")
    assert "\x1b" not in child.before
