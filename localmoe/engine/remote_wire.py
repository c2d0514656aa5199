"""Messages between two processes of one user: JSON objects, a line each, no longer than a bound."""

import json
import os
import select
import socket
import struct
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any

import localmoe
from localmoe.errors import RemoteError

PROTOCOL = 1  # raised whenever a message changes its meaning
MAX_BYTES = 16 << 20  # of one message: the longest conversation is a few MB
MAX_GREETING_BYTES = 64 << 10
_PIECE_BYTES = 64 << 10
_CREDENTIALS = struct.Struct("3i")  # process, user, group

Message = dict[str, Any]


class TooLongError(RemoteError):
    """A message that nobody would take."""


class Wire:
    """One end of a connection. A thread may receive while others send and close."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()
        self._sending = Lock()

    @property
    def peer(self) -> tuple[int, int]:
        """Process and user at the other end, as the kernel knows them."""
        packed = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, user, _ = _CREDENTIALS.unpack(packed)
        return process, user

    @property
    def is_same_user(self) -> bool:
        """Whether the other end belongs to who runs this."""
        return self.peer[1] == os.geteuid()

    def send(self, message: Message) -> None:
        """Waits until the system has taken it. OSError when the other end is gone, TooLongError."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
        if len(line) > MAX_BYTES:
            raise TooLongError(
                f"a message of {len(line):,} bytes is too long for another process's engine",
                "shorten the conversation, or open the model here with --no-share",
            )
        with self._sending:
            self._connection.sendall(line)

    def receive(self, limit_s: float | None = None, max_bytes: int = MAX_BYTES) -> Message | None:
        """The next message; None when the other end has closed.

        TimeoutError when it has not come whole within `limit_s`, OSError when the connection broke, RemoteError for
        what is no message.
        """
        deadline_s = None if limit_s is None else monotonic() + limit_s
        looked = 0
        while (end := self._received.find(b"\n", looked)) < 0:
            looked = len(self._received)
            if looked >= max_bytes:
                break
            self._wait(deadline_s)
            piece = self._connection.recv(_PIECE_BYTES)
            if not piece:
                return None
            self._received += piece
        if end < 0 or end >= max_bytes:
            raise RemoteError(f"a message is longer than {max_bytes:,} bytes")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return _parsed(line)

    def end(self) -> None:
        """Ends both directions, also for threads that wait in them; from any thread."""
        with suppress(OSError):  # the other end was faster
            self._connection.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._connection.close()  # not before: a thread about to wait would wait in what has its number next

    def _wait(self, deadline_s: float | None) -> None:
        if deadline_s is None:
            return
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if not poll.poll(max(0.0, deadline_s - monotonic()) * 1e3):
            raise TimeoutError


def greeting(**more: Any) -> Message:
    """The first message of each side."""
    return {"hello": "localmoe", "protocol": PROTOCOL, "version": localmoe.__version__, "process": os.getpid(), **more}


def check_greeting(message: Message | None) -> Message:
    """`message`, the first of the other side. RemoteError when it does not greet, or is of another version."""
    if message is None or message.get("hello") != "localmoe":
        raise RemoteError("what answers there is no localmoe")
    protocol, version = message.get("protocol"), message.get("version")
    if (protocol, version) != (PROTOCOL, localmoe.__version__):
        raise RemoteError(
            f"the localmoe that has the model open is version {version} (protocol {protocol}),"
            f" and this one is {localmoe.__version__} (protocol {PROTOCOL})",
            "leave that one and start it again, or open the model here with --no-share",
        )
    return message


def _parsed(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RemoteError("what came is no message") from error
    if not isinstance(message, dict):
        raise RemoteError("what came is no message")
    return message
