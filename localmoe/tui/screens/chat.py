"""The chat: one conversation, one engine, one prompt."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from localmoe.chat.history.records import Chat, Turn
from localmoe.chat.message import Message
from localmoe.events import Event, Failed, Finished, Heat, Lanes, Lost, Stats
from localmoe.tui.bridge import Bridge, Opened
from localmoe.tui.commands import BINDINGS
from localmoe.tui.compositor import SparseCompositor
from localmoe.tui.kept import Kept
from localmoe.tui.keymap import Keymap
from localmoe.tui.pace import EVERY_S, Pace, share_beside
from localmoe.tui.prompt_history import PromptHistory
from localmoe.tui.readings import Readings
from localmoe.tui.screens.tabbed_chat import TabbedChatScreen
from localmoe.tui.tabs import Tabs
from localmoe.tui.widgets.activity import Activity
from localmoe.tui.widgets.copy_mark import CopyMark
from localmoe.tui.widgets.engine_panel import EnginePanel
from localmoe.tui.widgets.hints import Hints
from localmoe.tui.widgets.prompt_box import PromptBox
from localmoe.tui.widgets.status_line import StatusLine
from localmoe.tui.widgets.suggestions import Suggestions
from localmoe.tui.widgets.tab_bar import TabBar
from localmoe.tui.widgets.title_bar import TitleBar
from localmoe.tui.widgets.transcript import Transcript

_FIGURES = (Stats, Lanes, Heat)
_WIDE = 100  # columns: from there on the panel has room, and says more than the status line

WAITS_FOR_ANSWER = "Sent after this answer. Esc: stop it and send now. Typing takes it back"
WAITS_FOR_MODEL = "Sent when the model is open. Typing takes it back"
OPENS_AGAIN = "The model is not open any more. Enter opens it here; this chat goes on"


class ChatScreen(TabbedChatScreen):
    """Takes events from the bridge twelve times a second and gives each to the widget it concerns."""

    DEFAULT_CSS = """
    ChatScreen {
        layout: vertical; background: $background;
        & > #body { height: 1fr; }
        &.-panel.-wide EnginePanel { display: block; }
        &.-panel.-narrow StatusLine { display: block; }
        &.-tiny #context { display: none; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [*BINDINGS]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (_WIDE, "-wide")]  # noqa: RUF012
    AUTO_FOCUS = "Prompt"

    def __init__(
        self,
        bridge: Bridge,
        kept: Kept,
        tabs: Tabs,
        begun: tuple[Chat, tuple[Turn, ...]] | None = None,
        keymap: Keymap | None = None,
        past: PromptHistory | None = None,
    ) -> None:
        """`past` is what was sent in earlier runs."""
        super().__init__(bridge, kept, keymap, tabs)
        self._compositor = SparseCompositor()
        self._begun = begun
        self._past = past or PromptHistory(None)
        self._pace = Pace()
        self._failed = ""  # why the last answer that failed did

    def compose(self) -> ComposeResult:
        fitting = [name for width, name in self.HORIZONTAL_BREAKPOINTS if width <= self.app.size.width]
        self.add_class(*fitting[-1:])  # Textual would find it out after the first layout, and lay out once more
        yield TitleBar(self.kept.settings.model)
        yield TabBar()
        yield StatusLine()
        with Horizontal(id="body"):
            yield Transcript(is_kept=self.kept.is_on)
            yield EnginePanel()
        yield Activity()
        yield Suggestions()
        yield PromptBox(self.keymap, self._past)
        yield Hints()

    async def on_mount(self) -> None:
        self.query_one(Transcript).follow()
        if self._begun:
            await self.show_chat(*self._begun)
        self.draw()
        self.app.call_later(self.call_after_refresh, self._begin)  # behind what brings this screen to the front

    def _begin(self) -> None:
        """The screen is seen: only now may its model take cores."""
        self.set_timer(EVERY_S, self._draw_and_pace)
        self.bridge.open()

    def on_resize(self) -> None:
        self.draw()

    def change_model(self, model: str) -> None:
        """Another model is about to be opened, and answers from now on; what was said stays."""
        self.readings = Readings()
        self.kept.use_model(model)
        self.query_one(TitleBar).ask_for(model)
        self.query_one(EnginePanel).empty()
        self.draw()

    # What the engine says

    async def _draw_and_pace(self) -> None:
        """Draws, and again when that is on the screen: at most twelve times a second, and for its share of a core."""
        self._pace.begin()
        await self.draw_events()
        if self.is_current:
            self.query_one(TabBar).show_tabs(self.tabs.heads())
        self.call_after_refresh(lambda: self.set_timer(self._pace.wait_s(is_seen=self.is_current), self._draw_and_pace))

    async def draw_events(self) -> None:
        """Shows everything that came since the last time; nothing before there is a panel, or once there is none."""
        if not self.query_one(EnginePanel).is_attached:
            return
        if events := self.bridge.take():
            with self.app.batch_update():
                for event in events:
                    await self._show(event)
                self.draw()
            await self.send_what_waits()

    async def _show(self, event: Event) -> None:
        transcript = self.query_one(Transcript)
        if isinstance(event, Finished | Failed) and not self.is_active_tab:
            self.has_news = True
        if transcript.is_answering or not isinstance(event, _FIGURES):  # none of an answer that was thrown away
            self.readings = self.readings.after(event)
        if transcript.is_answering:
            self.kept.hear(event)
        match event:
            case Opened():
                self.run_worker(_import_answers, thread=True)
                self._pace.share = share_beside(event.info.num_threads)
                self.query_one(EnginePanel).introduce(event.info)
                transcript.introduce(event.info)
                if len(self.tabs) == 1 and (process := event.info.details.get("engine_process")):
                    self.notify(
                        f"Another localmoe (process {process}) has {event.info.model} open: it answers here too"
                    )
                self.count_draft()
                self.recount()
            case Finished() if transcript.is_answering:
                self.conversation = self.conversation.add(Message("assistant", event.text, event.reasoning))
            case Failed() if transcript.is_answering:
                self._failed = event.message
                await transcript.fail(event, "No answer", self.take_back_question())
            case Failed() if not self.readings.info:
                self.wait_to_send(False)
                await transcript.fail(event, "The model could not be opened")
            case Lost() if event.message != self._failed:  # else the answer that broke off has said it
                await transcript.fail(Failed(event.message, OPENS_AGAIN), "The model is gone")
        await transcript.show(event)

    # Commands

    def action_stop(self) -> None:
        if (suggestions := self.query_one(Suggestions)).is_open:
            suggestions.offer([])
        elif self.readings.is_busy:
            self.bridge.stop()
            self.readings = self.readings.stopping()
            self.draw()
        else:
            self.wait_to_send(False)

    @on(CopyMark.Clicked)
    def _on_copy_clicked(self, event: CopyMark.Clicked) -> None:
        self.copy(event.text, event.which)

    def action_toggle_thoughts(self) -> None:
        self.query_one(Transcript).toggle_thoughts()

    def action_toggle_panel(self) -> None:
        self.toggle_class("-panel")

    def action_show_keys(self) -> None:
        from localmoe.tui.screens.keys import KeysScreen

        self.app.push_screen(KeysScreen(self.keymap))

    def action_page(self, pages: int) -> None:
        self.query_one(Transcript).page(pages)

    async def action_go_to_end(self, is_first: bool) -> None:
        await self.query_one(Transcript).go_to_end(is_first=is_first)

    def draw(self) -> None:
        """Brings every figure on the screen up to date."""
        notice = self.notice
        if self.is_waiting_to_send:
            notice = WAITS_FOR_ANSWER if self.readings.is_busy else WAITS_FOR_MODEL
        self.query_one(TitleBar).show_model(self.readings)
        is_wide = self.app.size.width >= _WIDE
        (self.query_one(EnginePanel) if is_wide else self.query_one(StatusLine)).show_figures(self.readings)
        self.query_one(Activity).show_doing(self.readings)
        self.query_one(Hints).show_keys(self.keymap, self.readings.is_busy, notice)


def _import_answers() -> None:
    """Markdown takes 60 ms to import: not before the first paint, and not at the first question either."""
    import localmoe.tui.drafts
    import localmoe.tui.fit
    import localmoe.tui.suggest
    import localmoe.tui.widgets.answer_turn  # noqa: F401
