"""`localmoe ask`: one prompt, one answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localmoe.chat.message import Conversation, Message
from localmoe.cli import opening
from localmoe.cli.answer import Answer, JsonAnswer, JsonLines, TextAnswer, show_progress
from localmoe.cli.interrupt import Interrupts
from localmoe.cli.report import INTERRUPTED, say
from localmoe.cli.streams import Aside, piped_text
from localmoe.cli.words import stats_line
from localmoe.engine.request import EngineFace, Request, Sampling
from localmoe.errors import UsageError
from localmoe.events import Failed, Finished
from localmoe.settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is to be printed."""

    json: bool = False
    ids: bool = False
    stream: bool | None = None  # None: text as it comes, JSON at the end
    verbose: bool = False


def ask(words: tuple[str, ...], system: str, flags: Mapping[str, Any], wanted: Wanted) -> int:
    """Prints the answer and returns the exit code."""
    if wanted.ids and not wanted.json:
        raise UsageError("--ids belongs to --json", "add --json")
    settings = load_settings(flags)
    conversation = _conversation(read_prompt(words), system)
    aside = Aside()
    with Interrupts() as interrupts:
        engine = opening.open_engine(settings, lambda event: show_progress(aside, event))
        try:
            aside.clear()
            request = Request(
                conversation, sampling(settings, engine.info.sampling), settings.max_tokens, settings.think
            )
            answer = _answer(engine, wanted, aside)
            return _follow(engine, request, answer, interrupts, aside, verbose=wanted.verbose)
        finally:
            engine.close()


def read_prompt(words: tuple[str, ...]) -> str:
    """The prompt's arguments, then what stdin brings, a blank line between them."""
    arguments = " ".join(words)
    if any("\ud800" <= c <= "\udfff" for c in arguments):
        raise UsageError("the prompt is not UTF-8 text", "check the terminal's encoding")
    parts = [part for part in (arguments, piped_text().rstrip("\r\n")) if part.strip()]
    if not parts:
        raise UsageError("the prompt is empty", 'give one: localmoe ask "What can you do?"')
    return "\n\n".join(parts)


def sampling(settings: Settings, of_model: Sampling) -> Sampling:
    """What the user chose, and the model's own values for the rest."""

    def chosen(name: str) -> Any:
        value = getattr(settings, name)
        return getattr(of_model, name) if value is None else value

    return Sampling(*map(chosen, ("temperature", "top_p", "min_p", "repetition_penalty", "seed")))


def _conversation(prompt: str, system: str) -> Conversation:
    messages = (Message("system", system),) if system else ()
    return Conversation((*messages, Message("user", prompt)))


def _answer(engine: EngineFace, wanted: Wanted, aside: Aside) -> Answer:
    if wanted.json:
        return (JsonLines if wanted.stream else JsonAnswer)(aside, engine.info, with_ids=wanted.ids)
    shows_thoughts = wanted.verbose or aside.is_terminal
    return TextAnswer(aside, streams=wanted.stream is not False, shows_thoughts=shows_thoughts)


def _follow(
    engine: EngineFace, request: Request, answer: Answer, interrupts: Interrupts, aside: Aside, *, verbose: bool
) -> int:
    """Shows events until the last one; the exit code says how it ended."""
    handle = engine.submit(request)
    try:
        with interrupts.cancelling(handle):
            for event in handle.events():
                answer.show(event)
                if isinstance(event, Failed):
                    say(event.message, event.hint)
                    return event.exit_code
                if isinstance(event, Finished):
                    return _end(engine, event, aside, verbose=verbose)
    except BaseException:  # a closed pipe, for one: nobody wants the rest
        handle.cancel()
        raise
    return 1


def _end(engine: EngineFace, finished: Finished, aside: Aside, *, verbose: bool) -> int:
    if finished.reason == "context":
        say(
            f"the context of {engine.info.context_limit:,} tokens is full; the answer ends here",
            "a larger --context holds more, if the model allows it",
        )
    if verbose:
        aside.line(stats_line(engine.info, finished))
    return INTERRUPTED if finished.reason == "cancelled" else 0
