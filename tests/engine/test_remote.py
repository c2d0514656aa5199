"""One engine for several processes: what both sides see, and what neither can do to the other."""

import json
import os
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
from lending import MODEL, is_sent_away, joined, lent, question, raw_client, wait_until

import localmoe
from localmoe.engine import remote, remote_wire, serving_visitor
from localmoe.engine.codec import decode_info, encode_info
from localmoe.engine.remote_folder import offers, runtime_folder
from localmoe.engine.remote_join import join
from localmoe.engine.remote_wire import MAX_BYTES
from localmoe.engine.script import Script
from localmoe.engine.scripted import DEMO_INFO, ScriptedEngine
from localmoe.engine.serving import MAX_VISITORS, Lent, Serving
from localmoe.errors import CancelledError, OutOfMemoryError, RemoteError, UsageError
from localmoe.events import Failed, Finished, Loading, Lost, Queued, TextDelta

LONG = Script("word " * 400, token_s=0.02)


@pytest.fixture
def folder(monkeypatch):
    with TemporaryDirectory(prefix="lm-") as short:  # raw clients know no way around an address' length
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield runtime_folder()


def answer(engine, text="Why?"):
    return list(engine.submit(question(text)).events())[-1]


# What is said over it


def test_what_runs_is_told_whole(folder):
    info = replace(DEMO_INFO, details={"kind": "cpu", "sharing": None, "items": [{"name": "experts"}]})
    with lent(ScriptedEngine(info=info), folder):
        engine = joined(folder)
        assert engine.info.details == {**info.details, "engine_process": os.getpid()}
        assert engine.info.plan[:-1] == info.plan and f"process {os.getpid()}" in engine.info.plan[-1]
        assert engine.info.sampling == info.sampling and engine.info.context_limit == info.context_limit
        engine.close()


def test_info_survives_json():
    assert decode_info(json.loads(json.dumps(encode_info(DEMO_INFO)))) == DEMO_INFO
    with pytest.raises(UsageError, match="isa"):
        decode_info({**encode_info(DEMO_INFO), "isa": 5})


def test_several_clients_each_hear_their_own_answer(folder):
    with lent(ScriptedEngine(lambda request: request.conversation.messages[-1].text.upper()), folder):
        engines = [joined(folder) for _ in range(4)]
        handles = [(n, engine.submit(question(f"q{n}"))) for n, engine in enumerate(engines) for _ in range(5)]
        for n, handle in handles:
            end = list(handle.events())[-1]
            assert isinstance(end, Finished) and end.text == f"Q{n}"
        for engine in engines:
            engine.close()


def test_sessions_of_two_processes_never_meet(folder):
    scripted = ScriptedEngine()
    with lent(scripted, folder):
        engines = [joined(folder), joined(folder)]
        for engine in engines:
            answer(engine)
            engine.close()
    assert len({request.session for request in scripted.requests}) == 2


def test_errors_of_the_engine_keep_their_kind(folder):
    failing = Script("a b", error=OutOfMemoryError("no room", "make some"), error_after=1)
    with lent(ScriptedEngine([failing]), folder):
        engine = joined(folder)
        assert answer(engine) == Failed("no room", "make some", 5)
        with pytest.raises(UsageError, match="tokens"):
            engine.submit(question("long " * 5000))
        engine.close()


def test_a_conversation_too_long_for_a_message_is_refused_here(folder):
    with lent(ScriptedEngine(), folder):
        engine = joined(folder)
        with pytest.raises(RemoteError, match="too long"):
            engine.submit(question("x" * MAX_BYTES))
        assert isinstance(answer(engine), Finished)
        engine.close()


def test_who_waits_in_the_line_of_another_process_is_told_its_place(folder):
    with lent(ScriptedEngine([Script("a b", pause_after=1), "c"]), folder) as serving:
        first, second = joined(folder), joined(folder)
        handle = first.submit(question())
        assert next(second.submit(question()).events()) == Queued(0)
        handle.cancel()
        first.close(), second.close()
        wait_until(lambda: serving.num_visitors == 0)


def test_while_the_model_is_being_opened_clients_see_how_far_it_is(folder):
    serving, heard = Serving(MODEL, folder), []
    serving.opening(Loading("reading", 1, 9))

    def open_it(event):
        heard.append(event)
        serving.ready(ScriptedEngine())

    engine = joined(folder, on_event=open_it)
    assert heard == [Loading("reading", 1, 9)]
    assert isinstance(answer(engine), Finished)
    engine.close(), serving.close()


def test_waiting_for_a_model_that_is_being_opened_can_be_interrupted(folder):
    serving = Serving(MODEL, folder)
    with pytest.raises(CancelledError):
        joined(folder, cancelled=lambda: True)
    wait_until(lambda: serving.num_visitors == 0)
    serving.close()


def test_when_opening_fails_there_no_engine_is_found(folder):
    serving = Serving(MODEL, folder)
    found = []
    waiting = threading.Thread(target=lambda: found.append(join(MODEL, lambda event: None, folder=folder)))
    waiting.start()
    wait_until(lambda: serving.num_visitors)
    serving.close()
    waiting.join()
    assert found == [None]


# Who finds whom


def test_where_nothing_is_offered_nothing_is_found(folder):
    assert join(MODEL, lambda event: None, folder=folder) is None


def test_another_model_is_another_socket(folder):
    with lent(ScriptedEngine(), folder, replace(MODEL, folder="/models/other")):
        assert join(MODEL, lambda event: None, folder=folder) is None


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"context": 128}, "its context is 4096, not 128"),
        ({"plan": "slp"}, "its plan is auto, not slp"),
    ],
)
def test_an_engine_with_other_settings_is_not_used_and_that_is_said(folder, asked, why):
    said = []
    with lent(ScriptedEngine(), folder):
        wanted = replace(MODEL, settings={**MODEL.settings, **asked})
        assert join(wanted, lambda event: None, folder=folder, say=said.append) is None
    assert len(said) == 1 and why in said[0]


def test_a_setting_that_came_out_the_same_is_the_same(folder):
    with lent(ScriptedEngine(info=replace(DEMO_INFO, details={"kind": "cpu"})), folder):
        joined(folder, replace(MODEL, settings={"context": 4096, "plan": "cpu"})).close()


def test_files_that_changed_are_another_model(folder):
    said = []
    with lent(ScriptedEngine(), folder):
        assert join(replace(MODEL, files="new"), lambda event: None, folder=folder, say=said.append) is None
    assert "files have changed" in said[0]


def test_of_two_engines_either_answers_when_the_other_has_gone(folder):
    with lent(ScriptedEngine(["first"]), folder) as first:
        with lent(ScriptedEngine(["second"]), folder):
            assert len(offers(folder, MODEL.key)) == 2
            engine = joined(folder)
            assert answer(engine).text == "second"
            engine.close()
        engine = joined(folder)
        assert answer(engine).text == "first"
        engine.close()
        assert offers(folder, MODEL.key) == [first.path]


def test_a_dead_process_s_socket_is_taken_away(folder):
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = folder / f"{MODEL.key}.1.0.sock"
    left.bind(str(path))
    left.close()
    assert join(MODEL, lambda event: None, folder=folder) is None
    assert not path.exists()


def test_a_process_that_does_not_answer_is_passed_over(folder, monkeypatch):
    monkeypatch.setattr("localmoe.engine.remote_join.GREETING_S", 0.1)
    stopped, said = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), []
    with lent(ScriptedEngine(["here"]), folder):
        path = folder / f"{MODEL.key}.1.0.sock"
        stopped.bind(str(path))
        stopped.listen()
        os.utime(path, (2**33, 2**33))  # the newest: asked first
        engine = joined(folder, say=said.append)
        assert answer(engine).text == "here" and "does not answer" in said[0]
        engine.close()
    stopped.close()


@pytest.mark.parametrize("part", ["protocol", "version"])
def test_another_version_is_named_and_not_used(folder, monkeypatch, part):
    other = {"hello": "localmoe", "protocol": 1, "version": localmoe.__version__, "process": 1, part: "9.9"}
    with lent(ScriptedEngine(), folder):
        monkeypatch.setattr("localmoe.engine.serving.greeting", lambda **more: {**other, **more})
        with pytest.raises(RemoteError, match=r"9\.9.*this one is") as caught:
            joined(folder)
    assert "--no-share" in caught.value.hint


def test_a_client_of_another_version_is_told_so_and_sent_away(folder):
    with lent(ScriptedEngine(), folder):
        client = raw_client(folder, greets=False)
        client.sendall(json.dumps({"hello": "localmoe", "protocol": 0, "version": "0.0.1"}).encode() + b"\n")
        reader = client.makefile()
        reader.readline()
        assert "version 0.0.1" in json.loads(reader.readline())["leave"]["message"]
        assert reader.readline() == ""
        client.close()


# Who may come in


def test_only_this_user_can_reach_the_socket(folder):
    with lent(ScriptedEngine(), folder) as serving:
        assert stat.S_IMODE(serving.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_user_s_connection_is_not_taken(folder, monkeypatch):
    monkeypatch.setattr(remote_wire.Wire, "is_same_user", False)
    with lent(ScriptedEngine(), folder) as serving:
        client = raw_client(folder, greets=False)
        assert client.recv(1 << 16) == b"" and serving.num_visitors == 0
        client.close()
        with pytest.raises(RemoteError, match="another user"):
            joined(folder)


def test_a_folder_that_others_may_enter_is_refused(folder):
    folder.chmod(0o755)
    with pytest.raises(RemoteError, match="others may enter") as caught:
        runtime_folder()
    assert caught.value.hint == f"chmod 700 {folder}"


def test_a_link_in_the_folder_s_place_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "localmoe").symlink_to("elsewhere")
    with pytest.raises(RemoteError, match="not a folder of this user"):
        runtime_folder()


@pytest.mark.parametrize("runtime", ["", "relative", "/nowhere/at/all"])
def test_without_a_runtime_directory_there_is_one_in_the_temporary_folder(tmp_path, monkeypatch, runtime):
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = runtime_folder()
    assert made == tmp_path / f"localmoe-{os.geteuid()}" and stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_path_longer_than_an_address_works(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with lent(ScriptedEngine(["far"]), deep):
        engine = joined(deep)
        assert answer(engine).text == "far"
        engine.close()


# Who behaves badly

BAD = {
    "garbage": b"\x00\xff garbage\n",
    "no message": b"[1, 2]\n",
    "unknown": b'{"make": "coffee"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "long": b"x" * (MAX_BYTES + 1),
    "not a number": b'{"cancel": "all"}\n',
    "twice": b'{"submit": 1, "request": {"conversation": [{"role": "user", "text": "a"}]}}\n' * 2,
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_who_sends_nonsense_is_sent_away_and_others_are_answered(folder, sent):
    with lent(ScriptedEngine([LONG], time_scale=1.0), folder) as serving:
        client = raw_client(folder)
        with suppress(ConnectionError):
            client.sendall(sent)
        assert is_sent_away(client)
        client.close()
        other = joined(folder)
        assert isinstance(next(e for e in other.submit(question()).events() if isinstance(e, TextDelta)), TextDelta)
        other.close()
        wait_until(lambda: serving.num_visitors == 0)


def test_a_wrong_request_is_refused_and_the_next_one_answered(folder):
    with lent(ScriptedEngine(), folder):
        client = raw_client(folder)
        reader = client.makefile()
        client.sendall(b'{"submit": 7, "request": {"conversation": [{"role": "robot", "text": ""}]}}\n')
        lines = (json.loads(line) for line in reader)
        assert "robot" in next(line for line in lines if line.get("refused") == 7)["error"]["message"]
        client.sendall(b'{"submit": 8, "request": {"conversation": [{"role": "user", "text": "a"}]}}\n')
        assert next(line for line in lines if line.get("event") == "Finished")["of"] == 8
        client.close()


def test_who_never_greets_is_sent_away(folder, monkeypatch):
    monkeypatch.setattr(serving_visitor, "GREETING_S", 0.1)
    with lent(ScriptedEngine(), folder) as serving:
        client = raw_client(folder, greets=False)
        client.sendall(b'{"hello"')
        assert is_sent_away(client)
        wait_until(lambda: serving.num_visitors == 0)
        client.close()


def test_who_does_not_read_keeps_nobody_waiting(folder):
    scripted = ScriptedEngine([Script("word " * 3000, prompt_tokens=9)])
    with lent(scripted, folder):
        client = raw_client(folder)
        ask = {"conversation": [{"role": "user", "text": "a"}]}
        for number in range(10):
            client.sendall(json.dumps({"submit": number, "request": ask}).encode() + b"\n")
        other = joined(folder)
        assert isinstance(answer(other), Finished)
        other.close()
        client.close()


def test_who_asks_on_and_on_without_reading_is_sent_away(folder):
    with lent(ScriptedEngine([LONG], time_scale=1.0), folder) as serving:
        client = raw_client(folder)
        ask = {"conversation": [{"role": "user", "text": "a"}]}
        with pytest.raises(ConnectionError):
            for number in range(100_000):
                client.sendall(json.dumps({"submit": number, "request": ask}).encode() + b"\n")
        wait_until(lambda: serving.num_visitors == 0)
        client.close()


def test_there_is_room_for_so_many_processes_and_no_more(folder):
    with lent(ScriptedEngine(["still here"]), folder) as serving:
        clients = [raw_client(folder) for _ in range(MAX_VISITORS)]
        wait_until(lambda: serving.num_visitors == MAX_VISITORS)
        one_more = raw_client(folder, greets=False)
        assert is_sent_away(one_more)
        clients.pop().close()
        wait_until(lambda: serving.num_visitors < MAX_VISITORS)
        engine = joined(folder)
        assert answer(engine).text == "still here"
        engine.close()
        for client in (one_more, *clients):
            client.close()


# Who goes


def test_what_a_client_asked_for_ends_when_it_goes(folder):
    scripted = ScriptedEngine([Script("a b", pause_after=1), "next"])
    with lent(scripted, folder):
        client = raw_client(folder)
        client.sendall(b'{"submit": 1, "request": {"conversation": [{"role": "user", "text": "a"}]}}\n')
        wait_until(lambda: scripted.requests)
        client.close()
        engine = joined(folder)
        assert answer(engine).text == "next"
        engine.close()


def test_a_request_is_cancelled_and_keeps_what_there_is(folder):
    with lent(ScriptedEngine([Script("one two three", pause_after=2)]), folder):
        engine = joined(folder)
        handle = engine.submit(question())
        text = ""
        for event in handle.events():
            text += event.text if isinstance(event, TextDelta) else ""
            if text == "one two":
                handle.cancel()
        assert event.reason == "cancelled" and event.text == "one two"
        engine.close()


def test_when_the_other_side_closes_answers_end_with_a_hint_and_that_is_told(folder):
    heard = []
    with lent(ScriptedEngine([Script("a b", pause_after=1)]), folder) as serving:
        engine = joined(folder, on_event=heard.append)
        handle = engine.submit(question())
        serving.close()
        end = list(handle.events())[-1]
    assert isinstance(end, Failed) and "has ended" in end.message and end.hint
    wait_until(lambda: heard)
    assert isinstance(heard[0], Lost) and heard[0].message == end.message
    with pytest.raises(RemoteError, match="has ended"):
        engine.submit(question())
    engine.close()


def test_a_side_that_falls_silent_is_given_up(folder, monkeypatch):
    monkeypatch.setattr(remote, "SILENT_S", 0.2)
    heard = []
    with lent(ScriptedEngine(), folder):
        monkeypatch.setattr(serving_visitor, "BEAT_S", 60.0)
        engine = joined(folder, on_event=heard.append)
        wait_until(lambda: heard)
        assert "does not answer" in heard[0].message
        engine.close()


def test_a_quiet_side_that_is_well_is_kept(folder, monkeypatch):
    monkeypatch.setattr(serving_visitor, "BEAT_S", 0.02)
    monkeypatch.setattr(remote, "SILENT_S", 2.0)
    heard = []
    with lent(ScriptedEngine(), folder):
        engine = joined(folder, on_event=heard.append)
        assert not threading.Event().wait(2.5) and not heard
        assert isinstance(answer(engine), Finished)
        engine.close()


def test_a_lent_engine_says_so_in_its_plan_and_closes_whole(folder):
    engine = Lent(ScriptedEngine(["own"]), Serving(MODEL, folder), ["a remark"])
    assert "may use this engine" in engine.info.plan[-2] and engine.info.plan[-1] == "a remark"
    other = joined(folder)
    assert answer(engine).text == answer(other).text == "own"
    engine.close()
    assert offers(folder, MODEL.key) == []
    other.close()
