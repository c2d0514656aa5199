"""`ask` beside a process that has the model open: whose engine answers, and what is said about it."""

import json
import signal
import time

import pytest
from process import scripted

LENDER = """
import sys, time
from localmoe.engine.remote_model import open_model_of
from localmoe.engine.script import Script
from localmoe.engine.scripted import DEMO_INFO, ScriptedEngine
from localmoe.engine.serving import Serving
from localmoe.settings import Settings
serving = Serving(open_model_of(Settings()))
engine = ScriptedEngine([Script({script})], time_scale={time_scale})
serving.ready(engine)
print("ready", flush=True)
while True:
    print(len(engine.requests), bool(engine._current), flush=True)
    time.sleep(0.05)
"""
OWN = scripted("'From its own.'")


class Lender:
    def __init__(self, home, script="'From another process.'", time_scale=0.0):
        self.process = home.start(program=LENDER.format(script=script, time_scale=time_scale))
        assert self.process.stdout.readline() == b"ready\n"

    def wait_for(self, line):
        deadline_s = time.monotonic() + 30
        while self.process.stdout.readline() != line:
            assert time.monotonic() < deadline_s

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def lender(home):
    running = Lender(home)
    yield running
    running.kill()


def test_ask_uses_the_engine_that_runs(home, lender):
    result = home.run("ask", "--json", "Hello", program=OWN)
    answer = json.loads(result.stdout)
    assert answer["text"] == "From another process." and result.stderr == b""
    assert answer["plan"]["engine_process"] == lender.process.pid
    assert any(f"process {lender.process.pid}" in decision for decision in answer["plan"]["decisions"])


def test_what_it_answers_is_kept_like_any_answer(home, lender):
    home.run("ask", "Hello", program=OWN)
    home.run("ask", "-c", "And again", program=OWN)
    (chat,) = json.loads(home.run("chats", "list", "--json").stdout)["chats"]
    assert "Hello" in chat["title"]


def test_on_a_terminal_it_says_whose_engine_answers(home, lender):
    code, stdout, seen = home.run_with_terminal("ask", "Hello", program=OWN)
    assert (code, stdout) == (0, b"From another process.\n")
    assert f"open in another localmoe (process {lender.process.pid})" in seen


@pytest.mark.parametrize("own", [["--no-share"], ["--context", "77"]])
def test_it_has_its_own_where_that_is_asked_for(home, lender, own):
    answer = json.loads(home.run("ask", "--json", *own, "Hello", program=OWN).stdout)
    assert answer["text"] == "From its own." and answer["plan"]["engine_process"] is None


def test_why_an_engine_is_not_used_is_said_on_a_terminal(home, lender):
    _, stdout, seen = home.run_with_terminal("ask", "--context", "77", "Hello", program=OWN)
    assert stdout == b"From its own.\n" and "its context is 4096, not 77" in seen


def test_where_none_runs_it_works_alone(home):
    assert home.run("ask", "Hello", program=OWN).stdout == b"From its own.\n"


def test_after_the_other_was_killed_it_works_alone(home, lender):
    lender.kill()
    assert home.run("ask", "Hello", program=OWN).stdout == b"From its own.\n"


def test_a_runtime_folder_that_is_not_private_is_said_and_not_used(home, lender):
    (home.folder / "localmoe").chmod(0o755)
    _, stdout, seen = home.run_with_terminal("ask", "Hello", program=OWN)
    assert stdout == b"From its own.\n" and "others may enter" in seen


def test_a_version_that_differs_is_an_error_with_a_way_out(home, lender):
    newer = "import localmoe; localmoe.__version__ = '9.9.9'\n" + OWN
    result = home.run("ask", "Hello", program=newer)
    assert result.returncode == 1 and b"9.9.9" in result.stderr and b"--no-share" in result.stderr
    assert home.run("ask", "--no-share", "Hello", program=newer).stdout == b"From its own.\n"


def test_an_interrupt_ends_the_answer_in_the_other_process(home):
    lender = Lender(home, "'word ' * 400, token_s=0.05", time_scale=1.0)
    asking = home.start("ask", "Hello", program=OWN)
    assert asking.stdout.read(4) == b"word"
    asking.send_signal(signal.SIGINT)
    asking.communicate(timeout=30)
    assert asking.returncode == 130
    lender.wait_for(b"1 False\n")
    lender.kill()


def test_when_the_other_is_killed_in_the_middle_that_is_an_error_with_a_hint(home):
    lender = Lender(home, "'word ' * 400, token_s=0.05", time_scale=1.0)
    asking = home.start("ask", "Hello", program=OWN)
    assert asking.stdout.read(4) == b"word"
    lender.kill()
    _, stderr = asking.communicate(timeout=30)
    assert asking.returncode == 1 and b"has ended\nhint: ask again" in stderr
    assert home.run("ask", "Hello", program=OWN).stdout == b"From its own.\n"


def test_killing_ask_ends_its_answer_in_the_other_process(home):
    lender = Lender(home, "'word ' * 400, token_s=0.05", time_scale=1.0)
    asking = home.start("ask", "Hello", program=OWN)
    assert asking.stdout.read(4) == b"word"
    asking.kill()
    asking.communicate()
    lender.wait_for(b"1 False\n")
    lender.kill()


def test_two_at_once_are_both_answered(home, lender):
    both = [home.start("ask", "Hello", program=OWN) for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in both] == [b"From another process.\n"] * 2
