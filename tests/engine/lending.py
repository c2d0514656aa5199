"""Engines that are lent by this process or by one of their own, and clients that behave badly."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localmoe.chat.message import Conversation, Message
from localmoe.engine.remote import RemoteEngine
from localmoe.engine.remote_folder import offers
from localmoe.engine.remote_join import join
from localmoe.engine.remote_model import OpenModel
from localmoe.engine.remote_wire import greeting
from localmoe.engine.request import EngineFace, Request, Sampling
from localmoe.engine.serving import Serving

MODEL = OpenModel("guide", "/models/guide", "guide", "as it was", {"context": None, "plan": "auto"})
LENDER = """
import sys, time
from pathlib import Path
from lending import MODEL
from localmoe.engine.script import Script
from localmoe.engine.scripted import ScriptedEngine
from localmoe.engine.serving import Serving
def script(request):
    return Script(f"{{request.conversation.messages[-1].text}} " + "word " * {words}, token_s={token_s})
serving = Serving(MODEL, Path(sys.argv[1]))
serving.ready(ScriptedEngine(script, time_scale=1.0))
print("ready", flush=True)
time.sleep(60)
"""


def question(text: str = "Why?", **options) -> Request:
    return Request(Conversation((Message("user", text),)), Sampling(temperature=0), **options)


@contextmanager
def lent(engine: EngineFace, folder: Path, model: OpenModel = MODEL) -> Iterator[Serving]:
    """`engine`, offered by this process."""
    serving = Serving(model, folder)
    serving.ready(engine)
    try:
        yield serving
    finally:
        serving.close()
        engine.close()


def joined(folder: Path, model: OpenModel = MODEL, **options) -> RemoteEngine:
    """The engine offered in `folder`."""
    engine = join(model, options.pop("on_event", lambda event: None), folder=folder, **options)
    assert engine
    return engine


class Lender:
    """A process that lends a scripted engine."""

    def __init__(self, folder: Path, words: int = 20, token_s: float = 0.005) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        program = LENDER.format(words=words, token_s=token_s)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def raw_client(folder: Path, *, greets: bool = True) -> socket.socket:
    """A connection without a client's manners."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(20)
    client.connect(str(offers(folder, MODEL.key)[0]))
    if greets:
        client.sendall(json.dumps(greeting()).encode() + b"\n")
    return client


def is_sent_away(client: socket.socket) -> bool:
    """Whether the other side ends the connection."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    return True


def wait_until(is_true: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline_s, "it never came to this"
        time.sleep(0.01)
