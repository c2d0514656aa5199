"""Real processes, and kill -9 of either side at a random time: the other one stays usable."""

import random
import subprocess
import sys
import threading
import time

import pytest
from lending import MODEL, Lender, joined, lent, question, wait_until

from localmoe.engine.remote_folder import offers
from localmoe.engine.remote_join import join
from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine
from localmoe.errors import RemoteError
from localmoe.events import Failed, Finished, TextDelta

ASKING = """
import sys
from pathlib import Path
from lending import joined, question
engine = joined(Path(sys.argv[1]))
print("joined", flush=True)
while True:
    list(engine.submit(question()).events())
"""
ANSWER_S = 0.25


def asking(folder):
    """A process that asks on and on."""
    process = subprocess.Popen(
        [sys.executable, "-c", ASKING, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert process.stdout.readline() == "joined\n"
    return process


@pytest.mark.parametrize("seed", range(6))
def test_killing_the_lender_ends_every_answer_and_leaves_its_place_free(tmp_path, seed):
    rng = random.Random(seed)
    lender = Lender(tmp_path, words=40, token_s=ANSWER_S / 40)
    engines = [joined(tmp_path) for _ in range(3)]
    killer = threading.Timer(rng.uniform(0.0, 3 * ANSWER_S), lender.kill)
    killer.start()
    for engine in engines:
        end = ask_until_it_fails(engine)
        assert "has ended" in end.message and end.hint
    killer.join()
    assert join(MODEL, lambda event: None, folder=tmp_path) is None  # from here on a process opens the model itself
    assert not offers(tmp_path, MODEL.key)
    with lent(ScriptedEngine(["a new one"]), tmp_path):
        successor = joined(tmp_path)
        assert list(successor.submit(question()).events())[-1].text == "a new one"
        successor.close()
    for engine in engines:
        engine.close()


def ask_until_it_fails(engine):
    while True:
        try:
            end = list(engine.submit(question()).events())[-1]
        except RemoteError as error:
            return Failed.of(error)
        if isinstance(end, Failed):
            return end
        assert isinstance(end, Finished) and end.reason == "stop" and len(end.text.split()) == 41


@pytest.mark.parametrize("seed", range(2))
def test_killing_clients_leaves_the_lender_to_the_others(tmp_path, seed):
    rng = random.Random(seed)
    scripted = ScriptedEngine([Script("word " * 20, token_s=0.005)], time_scale=1.0)
    with lent(scripted, tmp_path) as serving:
        clients = [asking(tmp_path) for _ in range(3)]
        survivor = joined(tmp_path)
        for client in clients:
            time.sleep(rng.uniform(0.0, 0.4))
            client.kill()
            client.wait()
            client.stdout.close()
            events = list(survivor.submit(question()).events())
            assert events[-1].reason == "stop" and any(isinstance(event, TextDelta) for event in events)
        wait_until(lambda: serving.num_visitors == 1)
        assert list(scripted.submit(question()).events())[-1].reason == "stop"
        survivor.close()
