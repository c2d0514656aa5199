"""A chat with a scripted engine, and ways to wait for what it shows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event as Signal
from time import monotonic

from surveyed import RecordedSurveyor
from textual.pilot import Pilot

from localmoe.chat.history.records import Chat, Turn
from localmoe.engine.request import EngineInfo, Request
from localmoe.engine.script import Script
from localmoe.engine.scripted import DEMO_INFO, ScriptedEngine
from localmoe.events import Event, Loading
from localmoe.settings import Settings
from localmoe.tui.app import ChatApp
from localmoe.tui.screens.chat import ChatScreen
from localmoe.tui.widgets.prompt import Prompt

GUIDE = replace(
    DEMO_INFO,
    model="guide",
    description="a tiny demonstration model (12 M)",
    isa="avx2",
    num_threads=2,
    weight_bytes=14_591_800,
    cache_bytes=3_145_728,
    load_s=0.12,
    plan=(
        "2 threads, one for each physical core",
        "weights rest in DRAM as the checkpoint has them: 14.6 MB of 22.1 GB available",
        "latent cache FP32: 64 pages of 64 tokens",
    ),
)
DEEPSEEK = replace(
    GUIDE,
    model="deepseek-v3.1",
    description="671 B, 37 B active, FP8",
    is_demo=False,
    isa="avx2",
    num_threads=64,
    context_limit=131_072,
    weight_bytes=688_586_727_753,
    cache_bytes=9_216_000_000,
    load_s=151.2,
)


class StagedChat(ChatApp):
    """The chat, with an engine that a test holds in its hand."""

    def __init__(
        self,
        scripts: Sequence[Script | str] | Callable[[Request], Script | str] = ("Hello from a script.",),
        *,
        info: EngineInfo = GUIDE,
        loading: Sequence[Event] = (),
        fails: Exception | None = None,
        settings: Settings | None = None,
        time_scale: float = 0.0,
        history: Path | None = None,
        begun: tuple[Chat, tuple[Turn, ...]] | None = None,
        surveyor: RecordedSurveyor | None = None,
    ) -> None:
        self.surveyor = surveyor or RecordedSurveyor()
        self.may_open = Signal()
        if not loading:
            self.may_open.set()

        def open_engine(report: Callable[[Event], None]) -> ScriptedEngine:
            for event in loading:
                report(event)
            self.may_open.wait(20)
            report(Loading("reading", info.weight_bytes, info.weight_bytes))
            if fails:
                raise fails
            return ScriptedEngine(scripts, info=info, time_scale=time_scale)

        super().__init__(lambda settings: open_engine, settings or Settings(), self.surveyor, history, begun)

    @property
    def chat(self) -> ChatScreen:
        return next(screen for screen in self.screen_stack if isinstance(screen, ChatScreen))

    @property
    def scripted(self) -> ScriptedEngine:
        assert isinstance(self.bridge.engine, ScriptedEngine)
        return self.bridge.engine

    @property
    def prompt(self) -> Prompt:
        return self.chat.query_one(Prompt)

    def on_unmount(self) -> None:
        self.transfers.close()
        self.bridge.close()
        self.tabs.close()


async def until(pilot: Pilot[None], is_true: Callable[[], object], limit_s: float = 20.0) -> None:
    """Waits until the screen shows what the test needs."""
    deadline = monotonic() + limit_s
    while not is_true():
        assert monotonic() < deadline, "the screen never came to this"
        await pilot.pause(0.02)
    await pilot.pause()


async def opened(pilot: Pilot[None]) -> StagedChat:
    """Waits until the model is open."""
    app = staged(pilot)
    await until(pilot, lambda: app.chat.readings.phase == "idle")
    return app


async def answered(pilot: Pilot[None]) -> StagedChat:
    """Waits until no answer is on its way."""
    app = staged(pilot)
    await until(pilot, lambda: app.chat.readings.phase == "idle" and app.chat.conversation.messages)
    return app


async def say(pilot: Pilot[None], text: str) -> None:
    """Writes `text` in the prompt and presses Enter."""
    staged(pilot).prompt.insert(text)
    await pilot.press("enter")


def staged(pilot: Pilot[None]) -> StagedChat:
    assert isinstance(pilot.app, StagedChat)
    return pilot.app


def shown(app: StagedChat) -> str:
    """What the terminal shows, as text."""
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)


def told(app: StagedChat) -> str:
    """All remarks at the edge of the screen."""
    return "\n".join(f"{remark.title} {remark.message}" for remark in app._notifications)
