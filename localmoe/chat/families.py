"""DeepSeek's own formats, as data: which marks stand where, and what is kept of earlier answers.

From the chat_template of each model's tokenizer_config.json. Between a mark and the text there is no space or newline.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from localmoe.chat.face import Part, Tokenizer, require_question
from localmoe.chat.message import Conversation
from localmoe.errors import CheckpointError, UsageError

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"


@dataclass(frozen=True, slots=True)
class Family:
    """One format. `prompts` tells, for each way of thinking it knows, how the prompt ends."""

    name: str
    prompts: dict[bool, str]
    default_think: bool
    earlier: str  # before an earlier answer
    keep: Callable[[str], str]  # what the next prompt still holds of it

    @property
    def marks(self) -> tuple[str, ...]:
        """The special tokens without which this format cannot be written."""
        written = self.earlier + "".join(self.prompts.values())
        return (BOS, EOS, USER, ASSISTANT, *(m for m in (THINK, END_THINK) if m in written))

    def parts(self, conversation: Conversation, think: bool) -> Iterator[Part]:
        """The prompt: the template's own text is trusted, what people and models wrote is not."""
        yield BOS, True
        yield conversation.system, False
        for message in conversation.messages:
            if message.role == "user":
                yield USER, True
                yield message.text, False
            elif message.role == "assistant":
                yield self.earlier, True
                yield self.keep(message.text), False
                yield EOS, True
        yield self.prompts[think], True


def _all(text: str) -> str:
    return text


def _after_last_thought(text: str) -> str:
    return text.rpartition(END_THINK)[2]


def _after_first_thought(text: str) -> str:
    before, mark, after = text.partition(END_THINK)
    return after if mark else before


V3 = Family("v3", {False: ASSISTANT}, False, ASSISTANT, _all)
R1 = Family("r1", {True: f"{ASSISTANT}{THINK}\n"}, True, ASSISTANT, _after_last_thought)
V31 = Family(
    "v3.1",
    {True: ASSISTANT + THINK, False: ASSISTANT + END_THINK},
    False,
    ASSISTANT + END_THINK,
    _after_first_thought,
)
GUIDE = Family("guide", V31.prompts, V31.default_think, V31.earlier, V31.keep)
FAMILIES = {family.name: family for family in (V3, R1, V31, GUIDE)}


class FamilyTemplate:
    """A family's format in one model's token ids."""

    def __init__(self, family: Family, tokenizer: Tokenizer, why: str) -> None:
        missing = [mark for mark in family.marks if tokenizer.token_id(mark) is None]
        if missing:
            raise CheckpointError(
                f"The {family.name} template needs the token {missing[0]}, which the tokenizer does not have.",
                "take the tokenizer.json that came with the model.",
            )
        self.name, self.why, self.default_think = family.name, why, family.default_think
        self._family, self._tokenizer = family, tokenizer
        eos = {tokenizer.token_id(EOS), tokenizer.eos_id}
        self.stop_ids = frozenset(i for i in eos if i is not None)

    def encode(self, conversation: Conversation, think: bool | None = None) -> list[int]:
        """Token ids of the whole prompt. UsageError for a way of thinking that the model does not have."""
        require_question(conversation)
        return self._tokenizer.encode_parts(self._family.parts(conversation, self._mode(think)))

    def starts_in_thought(self, think: bool | None = None) -> bool:
        """Whether the prompt ends inside a thought."""
        return THINK in self._family.prompts[self._mode(think)]

    def _mode(self, think: bool | None) -> bool:
        mode = self.default_think if think is None else think
        if mode in self._family.prompts:
            return mode
        if mode:
            raise UsageError(f"A {self.name} model does not think before it answers.", "leave out --think.")
        raise UsageError(f"A {self.name} model always thinks before it answers.", "leave out --no-think.")
