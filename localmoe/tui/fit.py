"""Whether a conversation fits into the context, and what could be done where it does not. Counts of tokens only."""

from collections.abc import Callable
from dataclasses import dataclass

from localmoe.chat.message import Conversation, Message

Count = Callable[[Conversation], int]  # prompt tokens, as the engine counts them

MOST_ROOM = 512  # tokens that are kept free for an answer
_MARKS_BYTES = 32  # around each message, at most
_FREED = 4  # of so many parts of the context one is free after turns were left out: not the next question again
_SHORTEST = 16  # tokens: less than that is no question any more


@dataclass(frozen=True, slots=True)
class Misfit:
    """A question that does not fit behind the turns before it, in tokens, and the ways out of that."""

    limit: int  # of the context
    room: int  # kept for the answer
    num_tokens: int  # of everything, the question included
    question_tokens: int
    unread_turns: int | None  # that must be left out; None: that would not help
    tokens_then: int = 0  # of everything without them
    can_shorten: bool = True

    @property
    def excess(self) -> int:
        """What is too much."""
        return self.num_tokens - (self.limit - self.room)

    @property
    def left_for_answer(self) -> int:
        """If it is sent as it is; below 1 it cannot be."""
        return self.limit - self.num_tokens


def room_for_answer(limit: int, max_tokens: int | None) -> int:
    """Tokens that an answer should have: what was asked for, but never much of a small context."""
    return max(1, min(max_tokens or MOST_ROOM, MOST_ROOM, limit // 8))


def surely_fits(conversation: Conversation, budget: int) -> bool:
    """True without counting where even a token a byte would fit: no vocabulary here makes more."""
    num_bytes = _MARKS_BYTES
    for message in conversation.messages:
        num_bytes += len(message.text) + len(message.reasoning) + _MARKS_BYTES
        if num_bytes > budget:
            return False
    return sum(len((m.text + m.reasoning).encode(errors="replace")) + _MARKS_BYTES for m in conversation.messages) <= (
        budget - _MARKS_BYTES
    )


def find_misfit(
    conversation: Conversation, unread: int, limit: int, max_tokens: int | None, count: Count
) -> Misfit | None:
    """None where `conversation` without its first `unread` turns fits, its last message being the question."""
    room = room_for_answer(limit, max_tokens)
    budget = limit - room
    read = conversation.without_first(unread)
    if surely_fits(read, budget) or (num_tokens := count(read)) <= budget:
        return None
    rest = count(_without_question(read))
    more, tokens_then = _least_unread(conversation, unread, (min(budget, limit - limit // _FREED), budget), count)
    return Misfit(limit, room, num_tokens, max(0, num_tokens - rest), more, tokens_then, rest + _SHORTEST <= budget)


def shorten(conversation: Conversation, unread: int, budget: int, count: Count) -> str:
    """The question, its longest part cut at the end so that all fits into `budget`, with a remark where it was cut.

    Turns before it that leave no room at all are left out of the count.
    """
    question = conversation.messages[-1].text
    read = conversation.without_first(unread)
    if count(_without_question(read)) + _SHORTEST > budget:
        read = conversation.without_first(conversation.num_turns - 1)
    start, end = _longest_part(question)

    def cut(kept: int) -> str:
        return question[: start + kept] + _remark(question[start + kept : end]) + question[end:]

    def fits(kept: int) -> bool:
        return count(Conversation((*read.messages[:-1], Message("user", cut(kept))))) <= budget

    return cut(_most(end - start, fits))


def _least_unread(
    conversation: Conversation, unread: int, budgets: tuple[int, ...], count: Count
) -> tuple[int | None, int]:
    """How many turns to leave out for the first of `budgets` that can be kept, and the tokens that stay."""
    choices = range(unread + 2, conversation.num_turns, 2)  # a question and its answer go together
    counts: dict[int, int] = {}

    def tokens(place: int) -> int:
        number = choices[place]
        if number not in counts:
            counts[number] = count(conversation.without_first(number))
        return counts[number]

    for budget in budgets:
        place = _first(len(choices), lambda place: tokens(place) <= budget)  # noqa: B023 - called at once
        if place is not None:
            return choices[place], tokens(place)
    return None, 0


def _first(count: int, is_enough: Callable[[int], bool]) -> int | None:
    """The first of `count` places from which on it is enough; None when it is nowhere."""
    if not count or not is_enough(count - 1):
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low


def _most(count: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `count` that fits, or 0."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _longest_part(question: str) -> tuple[int, int]:
    """Where the longest file's text stands in `question`; all of it where most is no file's."""
    from localmoe.chat.attachment import sections

    longest = max(sections(question), key=lambda section: len(section.text), default=None)
    if longest is None or len(longest.text) * 2 < len(question):
        return 0, len(question)
    start = question.index(longest.text, question.index(">", longest.start))
    return start, start + len(longest.text)


def _remark(gone: str) -> str:
    lines = gone.count("\n") + 1
    return f"\n[cut here: {lines:,} more line{'s' * (lines != 1)}]" if gone else ""


def _without_question(conversation: Conversation) -> Conversation:
    return Conversation((*conversation.messages[:-1], Message("user", "")))
