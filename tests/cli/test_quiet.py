"""--quiet: nothing on stderr but errors, also on a terminal."""

import json

import pytest
from process import MAIN, scripted

THINKING = scripted("Script('Two.', thought='One.', prompt_tokens=3000)", 1)


@pytest.mark.parametrize("flags", [(), ("--json",), ("--json", "--stream")])
def test_a_quiet_answer_shows_neither_progress_nor_thoughts(home, flags):
    code, out, seen = home.run_with_terminal("ask", "-q", *flags, "Hi", program=THINKING)
    assert (code, seen) == (0, "")
    assert out == b"Two.\n" if not flags else json.loads(out.splitlines()[-1])["text"] == "Two."


def test_quiet_and_verbose_contradict_each_other(home):
    done = home.run("ask", "-q", "-v", "Hi", program=THINKING)
    assert done.returncode == 2 and b"contradict" in done.stderr


def test_errors_are_said_all_the_same(home):
    done = home.run("ask", "-q", "-m", "no-such-model", "Hi")
    assert done.returncode == 4 and len(done.stderr.decode().splitlines()) == 2


def test_a_quiet_pull_shows_no_board(home_of_hub, hub):
    hub.bytes_per_s = 500_000
    code, out, seen = home_of_hub.run_with_terminal("pull", "someone/Tiny-MoE", "-q", program=MAIN)
    assert (code, seen) == (0, "") and out.decode().startswith(str(home_of_hub.folder))


def test_an_empty_list_of_chats_is_not_remarked_upon(inside):
    assert inside.run("chats", "list", "-q").stderr == b""
    assert b"there is no chat yet" in inside.run("chats", "list").stderr


def test_a_hub_that_may_not_be_asked_is_not_asked(home_of_hub, hub):
    done = home_of_hub.run("pull", "someone/Tiny-MoE", "-q", HF_HUB_OFFLINE="1")
    assert done.returncode == 7 and b"HF_HUB_OFFLINE is set" in done.stderr and not hub.seen


def test_events_of_a_bench_are_json_lines(home):
    once = "from localmoe.bench import startup; startup.NUM_PAIRS |= {'help': 1, 'first-paint': 1}\n"
    done = home.run("bench", "--suite", "startup", "--json", "--stream", "-q", program=once + MAIN)
    assert (done.returncode, done.stderr) == (0, b"")
    *events, report = map(json.loads, done.stdout.splitlines())
    assert report["rows"] and {event["event"] for event in events} <= {"Progress", "Warning"}
    assert home.run("bench", "--stream").returncode == 2
