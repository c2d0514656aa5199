"""Prompts of a wanted number of tokens, for any tokenizer."""

from random import Random

from localmoe.chat.message import Conversation, Message
from localmoe.engine.request import EngineFace
from localmoe.errors import UsageError

_TEXT = "time year people way day man thing woman life child world school state family student group country problem"
WORDS = _TEXT.split()


def prompt_of(engine: EngineFace, num_tokens: int, seed: int) -> str:
    """The longest text of random words that makes a prompt of at most `num_tokens`; each seed's begins differently."""
    random = Random(seed)
    text = f"{seed} " + " ".join(random.choice(WORDS) for _ in range(num_tokens))
    fits, too_long = 1, len(text) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if _count(engine, text[:middle]) <= num_tokens:
            fits = middle
        else:
            too_long = middle
    if _count(engine, text[:fits]) > num_tokens:
        raise UsageError(f"this model's shortest prompt is longer than {num_tokens} tokens", "measure another one")
    return text[:fits]


def _count(engine: EngineFace, text: str) -> int:
    return engine.count_tokens(Conversation((Message("user", text),)))
