"""The pictures that are compared: each scene is a chat and what happens in it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from staged import DEEPSEEK, GUIDE, StagedChat, answered, opened, say, shown, staged, until
from surveyed import LAPTOP, RecordedSurveyor
from textual.pilot import Pilot

from localmoe.engine.script import Script, words
from localmoe.errors import ModelNotFoundError, OutOfMemoryError
from localmoe.events import Event, Loading, Workers, decode
from localmoe.tui.screens.misfit import MisfitScreen
from localmoe.tui.widgets.answer_turn import AnswerTurn
from localmoe.tui.widgets.greeting import LOOKING
from localmoe.tui.widgets.markdown import AnswerMarkdown
from localmoe.tui.widgets.prompt_box import PromptBox
from localmoe.tui.widgets.suggestions import Suggestions

QUESTION = "Why does prefill load the whole layer, and not just the chosen experts?"
THOUGHT = "The user asks about the loader. Experts are chosen per token, so the union grows quickly with tokens. " * 4
ANSWER = '''Above about a hundred tokens **nearly every expert** is chosen by some token, so the loader \
need not wait for the router. With `T` tokens that choose 8 of 256:

```python
def touched(num_tokens: int) -> float:
    """How many of 256 experts some token chooses."""
    return 256 * (1 - (31 / 32) ** num_tokens)
```

| tokens | experts |
|---:|---:|
| 32 | 163 |
| 128 | 252 |

1. Layer *n + 1* is loaded while layer *n* computes.
2. 한국어와 中文, 日本語도 제 폭으로 보입니다. 🎉
'''


@dataclass(frozen=True)
class Scene:
    app: Callable[[], StagedChat]
    play: Callable[[Pilot[None]], Awaitable[object]]


def recorded(name: str) -> Event:
    """An event as an engine told it: two_devices streamed the embedded model over links of 4 MB/s, the others had half
    of its experts on disk.
    """
    return decode(json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text()))


WORKERS = Workers(64, 60.2, 3.8, 1_204, 41.0, 183.0, 212.0)


def looking(*names: str, **more: object) -> Script:
    return long_script(looks=tuple(map(recorded, names)), workers=WORKERS, **more)


def long_script(**more: object) -> Script:
    return Script(ANSWER, THOUGHT, prompt_tokens=17_480, prefill_ticks=20, prefill_tick_s=0.72, token_s=0.047, **more)  # type: ignore[arg-type]


async def ask(pilot: Pilot[None]) -> None:
    await greeted(pilot)
    await say(pilot, QUESTION)


async def greeted(pilot: Pilot[None]) -> StagedChat:
    """The model is open, and the chat has said what this machine could run."""
    app = await opened(pilot)
    await until(pilot, lambda: LOOKING not in shown(app))
    return app


async def play_empty(pilot: Pilot[None]) -> None:
    await greeted(pilot)


async def play_loading(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: staged(pilot).chat.readings.loading)


async def play_prefill(pilot: Pilot[None]) -> None:
    await ask(pilot)
    await until(pilot, lambda: (p := staged(pilot).chat.readings.prefill) and p.done_tokens == 12_236)


def at_pause(app: StagedChat, num_words: int) -> bool:
    """Whether everything up to the script's pause is on the screen."""
    turns = app.chat.query("AnswerTurn")
    if not turns:
        return False
    turn = turns.last(AnswerTurn)
    is_drawn = turn.query_one(AnswerMarkdown).source == turn.text
    return is_drawn and len(words(turn.thought.text)) + len(words(turn.text)) == num_words


async def play_thinking(pilot: Pilot[None]) -> None:
    await ask(pilot)
    await until(pilot, lambda: at_pause(staged(pilot), 40))
    await pilot.press("ctrl+t")


async def play_streaming(pilot: Pilot[None]) -> None:
    await ask(pilot)
    await until(pilot, lambda: at_pause(staged(pilot), 118))


async def play_answer(pilot: Pilot[None]) -> None:
    await ask(pilot)
    await answered(pilot)


async def play_stopped(pilot: Pilot[None]) -> None:
    await play_streaming(pilot)
    await pilot.press("escape")
    await answered(pilot)


async def play_error(pilot: Pilot[None]) -> None:
    await ask(pilot)
    await until(pilot, lambda: staged(pilot).chat.query("Failure"))


async def play_open_error(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: pilot.app.screen.query("Failure"))


async def play_help(pilot: Pilot[None]) -> None:
    await greeted(pilot)
    await pilot.press("f1")
    await pilot.pause()


async def play_confirm(pilot: Pilot[None]) -> None:
    await play_answer(pilot)
    await pilot.press("ctrl+n")
    await pilot.pause()


async def play_waiting(pilot: Pilot[None]) -> None:
    await play_streaming(pilot)
    await say(pilot, "And on one GPU?")


async def play_no_panel(pilot: Pilot[None]) -> None:
    await play_answer(pilot)
    await pilot.press("f2")


async def play_commands(pilot: Pilot[None]) -> None:
    app = await greeted(pilot)
    await pilot.press("/", "s")
    await until(pilot, lambda: app.chat.query_one(Suggestions).is_open)
    await pilot.press("down")


async def play_draft(pilot: Pilot[None]) -> None:
    """A question with a folded paste and a file that is not there."""
    app = await greeted(pilot)
    app.prompt.insert("Why does this fail? @src/none.py ")
    app.prompt.insert(app.prompt.blocks.fold_paste("a line\n" * 812))
    await until(pilot, lambda: "no file" in str(app.query_one(PromptBox).border_subtitle))
    await until(pilot, lambda: app.chat.readings.draft_tokens)


async def play_folded(pilot: Pilot[None]) -> None:
    await greeted(pilot)
    await say(pilot, 'What is this?\n\n<file path="src/app.py">\nimport this\n</file>')
    await answered(pilot)
    await say(pilot, "\n".join(f"{number}. line" for number in range(1, 813)))
    await answered(pilot)


async def play_misfit(pilot: Pilot[None]) -> None:
    app = await greeted(pilot)
    for number in range(3):
        await say(pilot, f"{number}. {QUESTION}")
        await answered(pilot)
    await say(pilot, "word " * 40)
    await until(pilot, lambda: isinstance(app.screen, MisfitScreen))
    await until(pilot, lambda: app.chat.readings.draft_tokens)


async def play_left_out(pilot: Pilot[None]) -> None:
    await play_misfit(pilot)
    await pilot.press("enter")
    await until(pilot, lambda: len(staged(pilot).scripted.requests) == 4)
    await answered(pilot)


async def play_stats(pilot: Pilot[None]) -> None:
    await play_answer(pilot)
    await staged(pilot).chat.run_action("show_stats")
    await pilot.pause()


async def play_parameters(pilot: Pilot[None]) -> None:
    app = await greeted(pilot)
    app.kept.set("seed", 7)
    await app.chat.run_action("set")
    await pilot.pause()


def deepseek(script: Script) -> Callable[[], StagedChat]:
    return lambda: StagedChat([script], info=DEEPSEEK)


NO_MEMORY = OutOfMemoryError(
    "the context is full: this question needs 18,112 tokens and 16,384 are left",
    "start a new chat with Ctrl+N, or open the model with a larger --context",
)
NO_MODEL = ModelNotFoundError(
    "deepseek-v3.1 is not on this machine",
    "download it with: hf download deepseek-ai/DeepSeek-V3.1",
)
SMALL = replace(GUIDE, context_limit=120)
LOADING = Loading("reading", 412_000_000_000, 688_586_727_753, 4_200_000_000.0, 66.0)

SCENES = {
    "empty": Scene(StagedChat, play_empty),
    "empty_small": Scene(lambda: StagedChat(surveyor=RecordedSurveyor(LAPTOP)), play_empty),
    "empty_real": Scene(lambda: StagedChat(info=DEEPSEEK), play_empty),
    "loading": Scene(lambda: StagedChat(info=DEEPSEEK, loading=[LOADING]), play_loading),
    "prefill": Scene(deepseek(long_script(pause_in_prefill=14)), play_prefill),
    "lanes_prefill": Scene(deepseek(looking("two_devices", pause_in_prefill=14)), play_prefill),
    "lanes_decode": Scene(deepseek(looking("from_disk", "heat", pause_after=118)), play_streaming),
    "thinking": Scene(deepseek(long_script(pause_after=40)), play_thinking),
    "streaming": Scene(deepseek(long_script(pause_after=118)), play_streaming),
    "waiting": Scene(deepseek(long_script(pause_after=118)), play_waiting),
    "answer": Scene(deepseek(long_script()), play_answer),
    "no_panel": Scene(deepseek(long_script()), play_no_panel),
    "stopped": Scene(deepseek(long_script(pause_after=118)), play_stopped),
    "error": Scene(deepseek(Script(error=NO_MEMORY)), play_error),
    "open_error": Scene(lambda: StagedChat(info=DEEPSEEK, fails=NO_MODEL), play_open_error),
    "help": Scene(StagedChat, play_help),
    "commands": Scene(StagedChat, play_commands),
    "draft": Scene(StagedChat, play_draft),
    "folded": Scene(lambda: StagedChat(["Seen."]), play_folded),
    "misfit": Scene(lambda: StagedChat(["It is so."], info=SMALL), play_misfit),
    "left_out": Scene(lambda: StagedChat(["It is so."], info=SMALL), play_left_out),
    "stats": Scene(deepseek(long_script()), play_stats),
    "parameters": Scene(StagedChat, play_parameters),
    "confirm": Scene(deepseek(long_script()), play_confirm),
}
