"""The answer on stdout: text as it comes, one JSON object, or JSON lines."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from localmoe.cli.streams import Aside, to_stdout
from localmoe.cli.words import progress_line
from localmoe.engine.plan_json import plan_json
from localmoe.engine.request import EngineInfo
from localmoe.events import Event, Failed, Finished, Heat, Lanes, TextDelta, encode
from localmoe.tui.printable import printable


class Answer(Protocol):
    """Whatever shows events."""

    def show(self, event: Event) -> None: ...


class TextAnswer:
    """Text for people and pipes. Nothing in it can drive a terminal; it ends with a newline."""

    def __init__(self, aside: Aside, *, streams: bool, shows_thoughts: bool) -> None:
        self._aside = aside
        self._streams = streams
        self._shows_thoughts = shows_thoughts
        self._written = ""  # the last of the answer
        self._thought = ""  # the last of the thought

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(channel="thought") if self._shows_thoughts:
                self._think(printable(event.text))
            case TextDelta(channel="answer") if self._streams:
                self._write(printable(event.text))
            case Finished():
                self._finish(event)
            case Failed():
                self._end_lines()
            case _ if not self._written and not self._thought:
                show_progress(self._aside, event)

    def _think(self, text: str) -> None:
        text = text if self._thought else text.lstrip("\n")
        if text:
            self._aside.dim(text)
            self._thought = text

    def _write(self, text: str) -> None:
        text = text if self._written else text.lstrip("\n")
        if text:
            self._aside.clear()
            self._end_thought()
            to_stdout(text)
            self._written = text

    def _finish(self, event: Finished) -> None:
        if not self._streams:
            self._write(printable(event.text))
        self._end_lines()

    def _end_lines(self) -> None:
        self._aside.clear()
        self._end_thought()
        if self._written and not self._written.endswith("\n"):
            to_stdout("\n")

    def _end_thought(self) -> None:
        if self._thought:
            self._aside.dim("\n" if self._thought.endswith("\n") else "\n\n")
            self._thought = ""


class JsonAnswer:
    """One object when the answer is complete."""

    def __init__(self, aside: Aside, info: EngineInfo, *, with_ids: bool) -> None:
        self._aside = aside
        self._info = info
        self._with_ids = with_ids

    def show(self, event: Event) -> None:
        if isinstance(event, Finished | Failed):
            self._aside.clear()
        else:
            show_progress(self._aside, event)
        if isinstance(event, Finished):
            self._print(answer_object(self._info, event, with_ids=self._with_ids))

    def _print(self, data: Mapping[str, Any]) -> None:
        to_stdout(json.dumps(data) + "\n")


class JsonLines(JsonAnswer):
    """Every event as it comes, then the object. What looks into the engine comes only when it `looks_inside`."""

    def __init__(self, aside: Aside, info: EngineInfo, *, with_ids: bool, looks_inside: bool) -> None:
        super().__init__(aside, info, with_ids=with_ids)
        self._looks_inside = looks_inside

    def show(self, event: Event) -> None:
        if isinstance(event, Lanes | Heat) and not self._looks_inside:
            return
        data = encode(event)
        if not self._with_ids:
            data = {key: value for key, value in data.items() if not key.endswith("_ids")}
        self._aside.clear()
        self._print(data)
        super().show(event)


def show_progress(aside: Aside, event: Event) -> None:
    """What happens before there is anything to print."""
    if line := progress_line(event):
        aside.progress(line)


def answer_object(info: EngineInfo, finished: Finished, *, with_ids: bool) -> dict[str, Any]:
    """What `--json` prints."""
    ids = {"prompt_ids": finished.prompt_ids, "output_ids": finished.output_ids} if with_ids else {}
    return {
        "model": info.model,
        "text": finished.text,
        "reasoning": finished.reasoning,
        "finish_reason": finished.reason,
        "usage": {
            "prompt_tokens": finished.prompt_tokens,
            "cached_tokens": finished.cached_tokens,
            "completion_tokens": finished.completion_tokens,
        },
        "timings": {
            "load_s": info.load_s,
            "ttft_s": finished.ttft_s,
            "prefill_tok_s": finished.prefill_tok_s,
            "decode_tok_s": finished.decode_tok_s,
        },
        "plan": plan_json(info),
        **ids,
    }
