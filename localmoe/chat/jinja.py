"""A model's own chat_template, used when no family's format is proven to be the same.

What people and models wrote never enters the template: a placeholder stands for each text, and the text is put in
afterwards, as plain text. So it can neither forge a special token nor steer the template, and one rendering serves all
conversations of the same shape.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

from localmoe.chat.face import Part, Tokenizer, require_question
from localmoe.chat.message import Conversation, Message
from localmoe.chat.sandbox import render
from localmoe.errors import CheckpointError, UnsupportedModelError, UsageError

THINK, END_THINK = "<think>", "</think>"
MAX_SHAPES = 64  # renderings kept
MODES = (None, True, False)

QUESTION = Conversation((Message("user", "q"),))
EXCHANGE = Conversation((Message("user", "q"), Message("assistant", "a"), Message("user", "q")))

Shape = tuple[bool | None, tuple[Any, ...]]
Rendered = list[str]  # the template's own text at even places, numbers of texts at odd ones


def variables(tokenizer: Tokenizer, messages: list[dict[str, str]], think: bool | None) -> dict[str, Any]:
    """What a template may look at, under the names that transformers and the models' makers use."""
    thinking = {} if think is None else {"thinking": think, "enable_thinking": think}
    absent = {"tools": None, "documents": None}
    return {**tokenizer.special_tokens, **absent, **thinking, "messages": messages, "add_generation_prompt": True}


class JinjaTemplate:
    """The chat_template of a model's folder, in the sandbox."""

    name = "jinja"

    def __init__(self, tokenizer: Tokenizer, why: str) -> None:
        if tokenizer.chat_template is None:
            raise UnsupportedModelError(
                "The model has no chat template.", "take the tokenizer_config.json of an instruct or chat model."
            )
        self.why = why
        self._source, self._tokenizer = tokenizer.chat_template, tokenizer
        self._secret = os.urandom(8).hex()
        self._placeholder = re.compile(rf"localmoe{self._secret}n(\d+)e")
        self._kept: OrderedDict[Shape, Rendered] = OrderedDict()
        self._lock = Lock()
        try:
            self._prepare([(QUESTION, mode) for mode in MODES] + [(EXCHANGE, None)])
        except UsageError as error:  # nobody asked anything yet
            raise CheckpointError(
                error.message, "take tokenizer_config.json from the model's own page again."
            ) from error
        self.default_think = self._thinks_unasked()
        self.stop_ids = self._find_stops()

    def encode(self, conversation: Conversation, think: bool | None = None) -> list[int]:
        """Token ids of the whole prompt. UsageError where the template has no place for what was said."""
        require_question(conversation)
        self._require_mode(think)
        return self._tokenizer.encode_parts(self._parts(conversation, think))

    def starts_in_thought(self, think: bool | None = None) -> bool:
        """Whether the prompt ends inside a thought."""
        self._require_mode(think)
        return self._ends_in_thought(think)

    def _parts(self, conversation: Conversation, think: bool | None) -> Iterator[Part]:
        texts = _texts(conversation)
        for place, piece in enumerate(self._rendered(conversation, think)):
            yield (texts[int(piece)].core, False) if place % 2 else (piece, True)

    def _rendered(self, conversation: Conversation, think: bool | None) -> Rendered:
        shape = _shape(conversation, think)
        with self._lock:
            if shape not in self._kept:
                self._prepare([(conversation, think)])
            self._kept.move_to_end(shape)
            return self._kept[shape]

    def _prepare(self, wanted: list[tuple[Conversation, bool | None]]) -> None:
        jobs = [variables(self._tokenizer, self._messages(c), think) for c, think in wanted]
        for (conversation, think), outcome in zip(wanted, render(self._source, jobs), strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            pieces = self._placeholder.split(outcome)
            _require_all(conversation, pieces)
            self._kept[_shape(conversation, think)] = pieces
        while len(self._kept) > MAX_SHAPES:
            self._kept.popitem(last=False)

    def _messages(self, conversation: Conversation) -> list[dict[str, str]]:
        texts = iter(enumerate(_texts(conversation)))
        messages = []
        for message in conversation.messages:
            number, text = next(texts)
            entry = {"role": message.role, "content": self._stand_in(number, text)}
            if message.reasoning:
                number, text = next(texts)
                entry["reasoning_content"] = entry["thinking"] = self._stand_in(number, text)
            messages.append(entry)
        return messages

    def _stand_in(self, number: int, text: "_Text") -> str:
        return f"{text.before}localmoe{self._secret}n{number}e{text.after}" if text.core else text.before

    def _ends_in_thought(self, think: bool | None) -> bool:
        ending = self._rendered(QUESTION, think)[-1]
        return ending.rfind(THINK) > ending.rfind(END_THINK)

    def _thinks_unasked(self) -> bool:
        unasked, thinking, answering = (self._rendered(QUESTION, mode) for mode in MODES)
        return self._ends_in_thought(None) or (thinking != answering and unasked == thinking)

    def _require_mode(self, think: bool | None) -> None:
        """A wish that the template does not react to, and that it does not fulfil by itself, is refused."""
        if think is None or self._ends_in_thought(think) == think:
            return
        if self._rendered(QUESTION, True) == self._rendered(QUESTION, False):
            wish = "--think" if think else "--no-think"
            raise UsageError("The model's chat template has no switch for thinking.", f"leave out {wish}.")

    def _find_stops(self) -> frozenset[int]:
        """EOS, and the special token that the template writes right after an answer."""
        pieces = self._rendered(EXCHANGE, None)
        after = pieces[2 * pieces[1::2].index("1") + 2]
        first = self._tokenizer.encode_parts([(after, True)])[:1]
        stops = {*first} & self._tokenizer.special_ids
        eos = self._tokenizer.eos_id
        return frozenset(stops if eos is None else stops | {eos})


@dataclass(frozen=True, slots=True)
class _Text:
    """White space stays outside the placeholder, because templates strip it."""

    before: str
    core: str
    after: str

    @classmethod
    def of(cls, text: str) -> "_Text":
        core = text.strip()
        start = text.find(core) if core else len(text)
        return cls(text[:start], core, text[start + len(core) :])


def _texts(conversation: Conversation) -> list[_Text]:
    """Every text of the conversation, in order: of each message what was said, then what was thought."""
    said = ((m.text, m.reasoning) for m in conversation.messages)
    return [_Text.of(t) for text, reasoning in said for t in ([text, reasoning] if reasoning else [text])]


def _shape(conversation: Conversation, think: bool | None) -> Shape:
    """All that a template can see of a conversation whose texts are placeholders."""
    edges = tuple((t.before, bool(t.core), t.after) for t in _texts(conversation))
    return think, (tuple((m.role, bool(m.reasoning)) for m in conversation.messages), edges)


def _require_all(conversation: Conversation, pieces: Rendered) -> None:
    """A thought may be left out, a text may not."""
    found, number = set(pieces[1::2]), 0
    for message in conversation.messages:
        if message.text.strip() and str(number) not in found:
            _refuse_loss(message.role)
        number += 2 if message.reasoning else 1


def _refuse_loss(role: str) -> None:
    if role == "system":
        raise UsageError("The model's chat template has no place for a system prompt.", "leave out --system.")
    raise CheckpointError(
        f"The model's chat template loses what the {role} said.",
        "localmoe puts texts into the rendered template; one that changes or skips them cannot be used.",
    )
