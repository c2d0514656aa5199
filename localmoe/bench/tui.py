"""Suite tui: what the chat costs beside the same model without a screen, and how soon a key shows while it streams.

An answer costs most where it begins, so answers of a usual length and short ones are measured apart.

The chat is the real program on a pseudo-terminal, its engine panel on. Both sides answer the same question in turn, so
that whatever else the machine does hits both, and contexts grow alike.
"""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from statistics import median, quantiles

from localmoe.bench.checkpoint import bench_checkpoint
from localmoe.bench.rows import Listener, Row, compared
from localmoe.bench.terminal import Terminal, plain
from localmoe.chat.message import Conversation, Message
from localmoe.engine.engine import Engine
from localmoe.engine.request import Request, Sampling
from localmoe.errors import LocalmoeError
from localmoe.events import Failed, Finished
from localmoe.hub.catalog import resolve
from localmoe.settings import Settings

PROGRAM = "from localmoe.cli import main; main()"
QUESTION = "Tell me everything."
LENGTHS = {"tui-overhead": 768, "tui-overhead-short": 192}  # tokens of an answer
NUM_ROUNDS = 15  # the median of fewer is some hundredths off where others share the cores
NUM_KEYS = 40
NUM_TRIES = 3  # answers in a row that end before a key can be typed
BETWEEN_KEYS_S = 0.11
ECHO_MS = 50.0
OPEN_S = ANSWER_S = 120.0
LOOK_S = 5.0
_QUOTED = 200  # characters of a screen in an error
KEYS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"  # that no model writes by chance
F2, CLEAR = "\x1bOQ", "\x15"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "seed": 5}
_DECODE = re.compile(r"Decode +([\d,.]+) tok/s")


class NotMeasuredError(Exception):
    """Why a case has no figure."""


def measure(settings: Settings, model: str | None, listener: Listener) -> Iterator[Row]:
    """The rows `tui-overhead`, `tui-overhead-short`, `tui-echo` and `tui-echo-p90`."""
    name = str(resolve(model).folder.absolute() if model else bench_checkpoint(listener))
    with closing(_Headless(name, settings)) as headless:
        for case, length in LENGTHS.items():
            listener.progress(f"{case}: opening {name}")
            with tempfile.TemporaryDirectory() as folder, closing(_Chat(name, settings, folder, length)) as chat:
                cases = {case: _overhead(case, chat, headless, listener)}
                if length == max(LENGTHS.values()):
                    cases["tui-echo"] = _echo(chat, listener)
                for row_name, rows in cases.items():
                    try:
                        yield from rows
                    except NotMeasuredError as reason:
                        listener.warn(f"{row_name} is left out: {reason}")


def _overhead(case: str, chat: "_Chat", headless: "_Headless", listener: Listener) -> Iterator[Row]:
    length = LENGTHS[case]
    headless.start_over()  # the chat is new too: contexts grow alike
    chat.answer(), headless.answer(length)  # nobody times the first
    pairs: list[tuple[float, float]] = []
    for number in range(NUM_ROUNDS):
        listener.progress(f"{case}: {number + 1} of {NUM_ROUNDS}, {length} tokens")
        pairs.append((chat.answer(), headless.answer(length)))
    value, reference = (median(side) for side in zip(*pairs, strict=True))
    ratio = median(a / b for a, b in pairs)
    against = "the same answer without a screen"
    yield Row("tui", case, "tok_s", value, "tok/s", reference, ratio, headless.isa, against)


def _echo(chat: "_Chat", listener: Listener) -> Iterator[Row]:
    listener.progress(f"tui-echo: {NUM_KEYS} keys while the answer streams")
    times = chat.echo_ms(NUM_KEYS)
    against = "what is allowed"
    yield compared(Row("tui", "tui-echo", "ms", median(times), "ms"), ECHO_MS, against)
    yield compared(Row("tui", "tui-echo-p90", "ms", quantiles(times, n=10)[-1], "ms"), ECHO_MS, against)


class _Headless:
    """The model in this process."""

    def __init__(self, model: str, settings: Settings) -> None:
        self._engine = Engine.open(model, replace(settings, model=model))
        self._messages: list[Message] = []

    @property
    def isa(self) -> str:
        return self._engine.info.isa

    def start_over(self) -> None:
        """Forgets what was said."""
        self._messages.clear()

    def answer(self, num_tokens: int) -> float:
        """Tokens per second of the next answer."""
        self._messages.append(Message("user", QUESTION))
        request = Request(Conversation(tuple(self._messages)), Sampling(**SAMPLING), num_tokens)  # type: ignore[arg-type]
        for event in self._engine.submit(request).events():
            if isinstance(event, Failed):
                raise LocalmoeError(event.message, event.hint)
            if isinstance(event, Finished):
                self._messages.append(Message("assistant", event.text, event.reasoning))
                if event.completion_tokens < num_tokens // 2 or not event.decode_tok_s:
                    raise NotMeasuredError("the model ends its answers after a few tokens")
                return event.decode_tok_s
        raise LocalmoeError("the engine broke off its answer", "run it again; if it stays, please report it")

    def close(self) -> None:
        self._engine.close()


class _Chat:
    """The chat on a terminal of 120 columns, with answers of `num_tokens`."""

    def __init__(self, model: str, settings: Settings, folder: str, num_tokens: int) -> None:
        threads = ("--threads", str(settings.threads)) if settings.threads else ()
        self._terminal = Terminal(PROGRAM, "chat", "-m", model, *threads, environment=_environment(folder, num_tokens))
        if not self._terminal.shows(lambda seen: "Plan" in plain(seen), OPEN_S):
            self.close()
            raise self._failure("did not open the model")

    def answer(self) -> float:
        """Tokens per second of the next answer, as its panel says."""
        self._ask()
        self._wait_for("Enter send")
        self._terminal.press(F2)
        self._terminal.shows(lambda seen: False, 0.3)  # hidden: what is drawn next is drawn whole
        self._terminal.press(F2)
        self._terminal.shows(lambda seen: _DECODE.search(plain(seen)), LOOK_S)
        found = _DECODE.search(plain(self._terminal.seen))
        if not found:
            raise NotMeasuredError("the panel shows no rate")
        return float(found[1].replace(",", ""))

    def echo_ms(self, count: int) -> list[float]:
        """From a key to its sign on the screen, in milliseconds, while answers stream."""
        times: list[float] = []
        keys = cycle(KEYS)
        tries = 0
        while len(times) < count:
            self._ask()
            known = len(times)
            while len(times) < count and not self._terminal.shows(_has_ended, BETWEEN_KEYS_S):
                times.append(self._key_ms(next(keys)))
            tries = tries + 1 if len(times) == known else 0
            if tries == NUM_TRIES:
                raise NotMeasuredError("the model ends its answers before a key can be typed")
            self._wait_for("Enter send")
            self._terminal.press(CLEAR)
        return times

    def close(self) -> None:
        self._terminal.close()

    def _key_ms(self, key: str) -> float:
        start_s = time.perf_counter()
        self._terminal.press(key)
        if not self._terminal.shows(lambda seen: key.encode() in seen, LOOK_S):
            raise self._failure(f"did not show a key within {LOOK_S:.0f} s")
        return 1e3 * (time.perf_counter() - start_s)

    def _ask(self) -> None:
        self._terminal.press(f"{QUESTION}\r")
        self._wait_for("tok/s")

    def _wait_for(self, words: str) -> None:
        if not self._terminal.shows(lambda seen: words in plain(seen), ANSWER_S):
            raise self._failure("did not answer")

    def _failure(self, what: str) -> LocalmoeError:
        last = " ".join(plain(self._terminal.seen).split())[-_QUOTED:] or "nothing"
        return LocalmoeError(f"the chat {what}; its screen said last: {last}", "run `localmoe chat` to see why")


def _has_ended(seen: bytes) -> bool:
    return "Enter send" in plain(seen)


def _environment(folder: str, num_tokens: int) -> Mapping[str, str]:
    """Settings of the chat: what it saves, it saves in `folder`."""
    chosen = {**SAMPLING, "max_tokens": num_tokens, "share": "no"}  # an engine of its own is measured
    return {"XDG_DATA_HOME": folder, **{f"LOCALMOE_{name.upper()}": str(value) for name, value in chosen.items()}}
