"""What `localmoe ask` prints where, and how it ends."""

import fcntl
import json
import re
import signal
import subprocess
import termios
import time
from array import array

import pytest
from process import scripted

HELLO = scripted("'Hello there.'")
THINKING = scripted("Script('Two.\\nOr so.', thought='One and one.')")
SLOW = "import os" + scripted("Script('one two three four five six seven eight', prefill_ticks=1)", time_scale=4)


def lines(raw: bytes) -> list[str]:
    return raw.decode().splitlines()


def test_the_answer_is_all_there_is(home):
    done = home.run("ask", "Hi", program=HELLO)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Hello there.\n", b"")


def test_words_are_one_prompt_and_stdin_follows_after_a_blank_line(home):
    echo = scripted("lambda r: None").replace("[lambda r: None]", "lambda r: r.conversation.messages[-1].text")
    done = home.run("ask", "Say", "this", program=echo, stdin="größer\n\n".encode())
    assert done.stdout.decode() == "Say this\n\ngrößer\n"
    assert home.run("ask", program=echo, stdin=b"only piped\n").stdout == b"only piped\n"


def test_the_system_prompt_comes_first(home):
    echo = scripted("0").replace("[0]", "lambda r: r.conversation.messages[0].role + r.conversation.system")
    assert home.run("ask", "-s", "Be brief.", "Hi", program=echo).stdout == b"systemBe brief.\n"


def test_thoughts_are_not_on_stdout(home):
    done = home.run("ask", "Hi", program=THINKING)
    assert (done.stdout, done.stderr) == (b"Two.\nOr so.\n", b"")
    done = home.run("ask", "-v", "Hi", program=THINKING)
    assert done.stdout == b"Two.\nOr so.\n"
    assert lines(done.stderr)[:2] == ["One and one.", ""]
    assert "prompt tok" in lines(done.stderr)[-1]


def test_a_model_cannot_drive_the_terminal(home):
    program = scripted(repr("a\x1b]0;owned\x07b\x9b31mc\r\x00d\u202e\te\n"))
    for flags in ((), ("--no-stream",)):
        out = home.run("ask", *flags, "Hi", program=program).stdout.decode()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out)
        assert out.endswith("\te\n")


def test_without_streaming_the_answer_is_the_same(home):
    assert home.run("ask", "--no-stream", "Hi", program=THINKING).stdout == b"Two.\nOr so.\n"


def test_json_is_one_object(home):
    done = home.run("ask", "--json", "Hi", program=THINKING)
    answer = json.loads(done.stdout)
    assert done.stderr == b""
    assert list(answer) == ["model", "text", "reasoning", "finish_reason", "usage", "timings", "plan"]
    assert answer["text"] == "Two.\nOr so."
    assert answer["reasoning"] == "One and one."
    assert answer["finish_reason"] == "stop"
    assert set(answer["usage"]) == {"prompt_tokens", "cached_tokens", "completion_tokens"}
    assert set(answer["timings"]) == {"load_s", "ttft_s", "prefill_tok_s", "decode_tok_s"}
    assert answer["plan"]["decisions"]


def test_ids_are_added_when_asked_for(home):
    answer = json.loads(home.run("ask", "--json", "--ids", "Hi", program=HELLO).stdout)
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_ids"])
    assert answer["usage"]["completion_tokens"] == len(answer["output_ids"])


def test_json_lines_are_events_and_the_object(home):
    done = home.run("ask", "--json", "--stream", "Hi", program=THINKING)
    *events, answer = map(json.loads, lines(done.stdout))
    assert [e["event"] for e in events[:1]] == ["PrefillProgress"]
    assert events[-1]["event"] == "Finished"
    assert "".join(e["text"] for e in events if e.get("channel") == "answer") == answer["text"]
    assert "output_ids" not in events[-1]


def test_settings_reach_the_request(home):
    tell = scripted("0").replace("[0]", "lambda r: f'{r.sampling} {r.max_tokens} {r.think}'")
    flags = "--temperature 0.25 --top-p 0.5 --min-p 0.1 --repetition-penalty 1.5 --seed 7 --max-tokens 99 --no-think"
    said = home.run("ask", *flags.split(), "Hi", program=tell).stdout.decode()
    assert said == ("Sampling(temperature=0.25, top_p=0.5, min_p=0.1, repetition_penalty=1.5, seed=7) 99 False\n")
    assert "temperature=0.5," in home.run("ask", "Hi", program=tell, LOCALMOE_TEMPERATURE="0.5").stdout.decode()


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        ((), b"", "the prompt is empty"),
        (("  ",), b"\n \n", "the prompt is empty"),
        ((), b"caf\xe9", "stdin is not UTF-8 text (byte 0xe9 at 3)"),
        (("--ids", "Hi"), b"", "--ids belongs to --json"),
        (("--temperature", "-1", "Hi"), b"", "--temperature must be a number from 0 to 100"),
        (("--context", "0", "Hi"), b"", "--context must be a number of tokens from 1"),
    ],
)
def test_a_wrong_request_is_said_in_two_lines(home, arguments, stdin, said):
    done = home.run("ask", *arguments, stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == b""
    what, hint = lines(done.stderr)
    assert what.startswith(f"localmoe: {said}")
    assert hint.startswith("hint: ")


def test_arguments_that_are_not_utf8_are_said(home):
    for arguments in (("caf\udce9",), ("-s", "caf\udce9", "Hi")):
        done = home.run("ask", *arguments, program=HELLO)
        assert done.returncode == 2
        assert b"is not UTF-8 text" in done.stderr


@pytest.mark.parametrize("arguments", [("ask", "--frobnicate"), ("frobnicate",), ("ask", "--seed", "x", "Hi")])
def test_what_typer_refuses_ends_with_2(home, arguments):
    done = home.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"Error" in done.stderr


def test_a_bad_config_is_named(home):
    (home.folder / ".config/localmoe").mkdir(parents=True)
    (home.folder / ".config/localmoe/config.toml").write_text("treads = 2\n")
    done = home.run("ask", "Hi", program=HELLO)
    assert done.returncode == 2
    assert "config.toml: unknown key 'treads'" in lines(done.stderr)[0]
    assert lines(done.stderr)[1] == "hint: did you mean 'threads'?"


def test_a_missing_model_ends_with_4(home):
    done = home.run("ask", "-m", "no-such-model", "Hi")
    assert (done.returncode, done.stdout) == (4, b"")
    assert len(lines(done.stderr)) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("OutOfMemoryError('too big', 'take a smaller one')", 5),
        ("CheckpointError('torn', 'mend it')", 4),
        ("HubError('away', 'wait')", 7),
    ],
)
def test_what_fails_in_the_engine_keeps_the_text_and_its_exit_code(home, error, code):
    done = home.run("ask", "Hi", program=scripted(f"Script('so far so good', error={error}, error_after=2)"))
    assert (done.returncode, done.stdout) == (code, b"so far\n")
    assert lines(done.stderr)[0].startswith("localmoe: ")
    assert lines(done.stderr)[1].startswith("hint: ")


def test_the_unexpected_is_said_without_a_traceback_unless_asked_for(home):
    broken = HELLO.replace("return ScriptedEngine", "raise RuntimeError('boom')\n    return ScriptedEngine")
    done = home.run("ask", "Hi", program=broken)
    assert done.returncode == 1
    assert lines(done.stderr) == [
        "localmoe: something unexpected went wrong (RuntimeError: boom)",
        "hint: run it again with LOCALMOE_DEBUG=1 to see the traceback",
    ]
    assert b"Traceback" in home.run("ask", "Hi", program=broken, LOCALMOE_DEBUG="1").stderr


def test_a_full_context_is_said(home):
    done = home.run("ask", "Hi", program=scripted("Script('word ' * 20, prompt_tokens=4090)"))
    assert done.returncode == 0
    assert "the context of 4,096 tokens is full" in lines(done.stderr)[0]


def test_a_closed_pipe_is_no_error(home):
    endless = scripted("Script('line\\n' * 5000, token_s=0.001)", time_scale=1)
    process = home.start("ask", "Hi", program=endless)
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr.read() == b""


def test_help_into_a_closed_pipe_is_quiet(home):
    process = home.start("--help")
    process.stdout.close()
    process.wait(20)
    assert process.stderr.read() == b""


def test_an_interrupted_answer_is_kept(home):
    process = home.start("ask", "Hi", program=SLOW)
    begun = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert begun == b"one"
    assert rest.endswith(b"\n")
    assert b"eight" not in rest
    assert err == b""


def test_an_interrupted_json_answer_says_so(home):
    process = home.start("ask", "--json", "Hi", program=SLOW.replace("return Scr", "os.write(2, b'up'); return Scr"))
    assert process.stderr.read(2) == b"up"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert json.loads(out)["finish_reason"] == "cancelled"


def test_an_interrupt_while_reading_the_prompt_ends_quickly(home):
    process = home.start("ask", "--json", "--stream", "Hi", program=scripted("Script('x', prefill_tick_s=30)", 1))
    assert b"PrefillProgress" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, b"")
    assert json.loads(lines(out)[-1])["finish_reason"] == "cancelled"


LOADS = """
import sys, time
from localmoe.cli import opening
from localmoe.errors import CancelledError
def open_engine(settings, on_event, cancelled):
    sys.stderr.write("loading\\n")
    sys.stderr.flush()
    while {condition}:
        time.sleep(0.01)
    raise CancelledError("opening was interrupted", "run it again")
opening.open_engine = open_engine
from localmoe.cli import main; main()
"""


def test_an_interrupt_while_loading_ends_with_130(home):
    process = home.start("ask", "Hi", program=LOADS.format(condition="not cancelled()"))
    assert process.stderr.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, b"")
    assert lines(err) == ["localmoe: opening was interrupted", "hint: run it again"]


def test_a_second_interrupt_does_not_wait(home):
    process = home.start("ask", "Hi", program=LOADS.format(condition="True"))
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130


def test_an_interrupt_while_reading_stdin_ends_with_130(home):
    process = home.start("ask", program=HELLO, stdin=subprocess.PIPE)
    process.stdin.write(b"Hi")
    process.stdin.flush()
    left = array("i", [2])
    while left[0]:  # bytes that nobody has read yet: while a program is still loading, Python may lose an interrupt
        time.sleep(0.05)
        fcntl.ioctl(process.stdin, termios.FIONREAD, left)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.stderr.read() == b""
    process.stdin.close()


def test_a_terminal_sees_progress_and_dim_thoughts(home):
    program = scripted("Script('Two.', thought='One.', prompt_tokens=3000)", 1)
    code, out, seen = home.run_with_terminal("ask", "Hi", program=program)
    assert (code, out) == (0, b"Two.\n")
    assert "\r\x1b[Kprefill 0 % · 0 of 3,000 tok" in seen
    assert "\x1b[2mOne.\x1b[22m" in seen
    assert "prompt tok" not in seen
    assert seen.rindex("\r\x1b[K") < seen.index("One.")


def test_no_color_means_no_colour(home):
    _, _, seen = home.run_with_terminal("ask", "Hi", program=THINKING, NO_COLOR="1")
    assert "\x1b[2m" not in seen
    assert "One and one." in seen


def test_a_dumb_terminal_is_treated_as_a_file(home):
    code, out, seen = home.run_with_terminal("ask", "Hi", program=THINKING, TERM="dumb")
    assert (code, out, seen) == (0, b"Two.\nOr so.\n", "")


def test_any_locale_will_do(home):
    program = scripted("'Grüße 🙂 你好'")
    done = home.run("ask", "Hi", program=program, PYTHONIOENCODING="latin-1")
    assert done.stdout == "Grüße ? ??\n".encode("latin-1")
    assert home.run("ask", "Hi", program=program, LC_ALL="C").stdout == "Grüße 🙂 你好\n".encode()


@pytest.mark.parametrize(("closed", "code"), [(0, 0), (1, 1), (2, 0)])
def test_closed_streams_give_no_traceback(home, closed, code):
    done = home.run("ask", "Hi", program=HELLO, closed=closed)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
