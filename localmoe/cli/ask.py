"""`localmoe ask`: one prompt, one answer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from localmoe.chat.history.parameters import configured, settings_in
from localmoe.chat.history.records import conversation_of
from localmoe.chat.message import Message
from localmoe.cli import sharing
from localmoe.cli.answer import Answer, JsonAnswer, JsonLines, TextAnswer, show_progress
from localmoe.cli.interrupt import Interrupts
from localmoe.cli.kept import Keeper, Keeping, chat_to_write, keeper_of
from localmoe.cli.report import INTERRUPTED, say
from localmoe.cli.streams import Aside, piped_text
from localmoe.cli.words import stats_line
from localmoe.engine.request import EngineFace, Handle
from localmoe.errors import LocalmoeError, UsageError
from localmoe.events import Failed, Finished
from localmoe.settings import Settings, load_settings
from localmoe.tui.requests import request_for


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is to be printed."""

    json: bool = False
    ids: bool = False
    stream: bool | None = None  # None: text as it comes, JSON at the end
    verbose: bool = False
    quiet: bool = False


def ask(words: tuple[str, ...], system: str, flags: Mapping[str, Any], wanted: Wanted, keeping: Keeping) -> int:
    """Prints the answer and returns the exit code."""
    if wanted.ids and not wanted.json:
        raise UsageError("--ids belongs to --json", "add --json")
    if wanted.quiet and wanted.verbose:
        raise UsageError("--quiet and --verbose contradict each other", "take one of them")
    settings = load_settings(flags)
    prompt, system = read_prompt(words), _checked("system prompt", system)
    chat, turns = chat_to_write(keeping)
    settings = settings_in(chat, settings)
    chat = configured(replace(chat, system=system or chat.system), settings)
    aside = Aside(is_quiet=wanted.quiet)
    with Interrupts() as interrupts, keeper_of(keeping, chat, turns) as keeper:
        engine = _open(settings, aside, interrupts)
        try:
            conversation = conversation_of(chat.system, turns).add(Message("user", prompt))
            handle = engine.submit(request_for(conversation, engine.info, settings, "ask"))
            keeper.ask(prompt, engine.info.model)
            last = _follow(handle, _answer(engine, wanted, aside), interrupts, keeper)
            return _end(engine, last, aside, verbose=wanted.verbose)
        finally:
            engine.close()


def read_prompt(words: tuple[str, ...]) -> str:
    """The prompt's arguments, then what stdin brings, a blank line between them."""
    arguments = _checked("prompt", " ".join(words))
    parts = [part for part in (arguments, piped_text().rstrip("\r\n")) if part.strip()]
    if not parts:
        raise UsageError("the prompt is empty", 'give one: localmoe ask "What can you do?"')
    return "\n\n".join(parts)


def _checked(what: str, argument: str) -> str:
    """An argument that is not UTF-8 reaches Python with surrogates in it, which no tokenizer takes."""
    if any("\ud800" <= c <= "\udfff" for c in argument):
        raise UsageError(f"the {what} is not UTF-8 text", "check the terminal's encoding")
    return argument


def _answer(engine: EngineFace, wanted: Wanted, aside: Aside) -> Answer:
    if wanted.json and wanted.stream:
        return JsonLines(aside, engine.info, with_ids=wanted.ids, looks_inside=wanted.verbose)
    if wanted.json:
        return JsonAnswer(aside, engine.info, with_ids=wanted.ids)
    shows_thoughts = wanted.verbose or aside.is_terminal
    return TextAnswer(aside, streams=wanted.stream is not False, shows_thoughts=shows_thoughts)


def _open(settings: Settings, aside: Aside, interrupts: Interrupts) -> EngineFace:
    def say(text: str) -> None:
        if aside.is_terminal:
            aside.line(text)

    try:
        return sharing.join_or_open(settings, lambda event: show_progress(aside, event), lambda: interrupts.any, say)
    finally:
        aside.clear()


def _follow(handle: Handle, answer: Answer, interrupts: Interrupts, keeper: Keeper) -> Finished | Failed:
    """Keeps and shows events until the last one, and returns it."""
    try:
        with interrupts.cancelling(handle):
            for event in handle.events():
                keeper.hear(event)
                answer.show(event)
                if isinstance(event, Finished | Failed):
                    return event
    except BaseException:  # a closed pipe, for one: nobody wants the rest
        handle.cancel()
        raise
    raise LocalmoeError("the engine broke off its answer", "run it again; if it stays, please report it")


def _end(engine: EngineFace, last: Finished | Failed, aside: Aside, *, verbose: bool) -> int:
    """Says on stderr how it ended, and gives the exit code."""
    if isinstance(last, Failed):
        say(last.message, last.hint)
        return last.exit_code
    if last.reason == "context":
        limit = engine.info.context_limit
        say(f"the context of {limit:,} tokens is full; the answer ends here", "a larger --context may hold more")
    if verbose:
        aside.line(stats_line(engine.info, last))
    return INTERRUPTED if last.reason == "cancelled" else 0
