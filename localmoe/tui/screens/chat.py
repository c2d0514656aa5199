"""The chat: one conversation, one engine, one prompt."""

from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import TextArea

from localmoe.chat.message import Conversation, Message
from localmoe.events import Event, Failed, Finished, Stats
from localmoe.tui.bridge import Bridge, Opened
from localmoe.tui.commands import BINDINGS
from localmoe.tui.printable import printable
from localmoe.tui.readings import Readings
from localmoe.tui.requests import request_for
from localmoe.tui.widgets.activity import Activity
from localmoe.tui.widgets.engine_panel import EnginePanel
from localmoe.tui.widgets.hints import Hints
from localmoe.tui.widgets.prompt import Prompt
from localmoe.tui.widgets.prompt_box import PromptBox
from localmoe.tui.widgets.question import Question
from localmoe.tui.widgets.status_line import StatusLine
from localmoe.tui.widgets.title_bar import TitleBar
from localmoe.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from localmoe.settings import Settings

DRAW_EVERY_S = 1 / 12  # at most

WAITS_FOR_ANSWER = "Sent after this answer. Esc: stop it and send now. Typing takes it back"
WAITS_FOR_MODEL = "Sent when the model is open. Typing takes it back"
NO_MODEL = "No model is open, so nothing can answer. Ctrl+Q leaves"


class ChatScreen(Screen[None]):
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
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide")]  # noqa: RUF012
    AUTO_FOCUS = "Prompt"

    def __init__(self, bridge: Bridge, settings: "Settings") -> None:
        super().__init__(classes="-panel")
        self.bridge = bridge
        self.settings = settings
        self.readings = Readings()
        self.conversation = Conversation()
        self._num_chats = 1
        self._is_waiting_to_send = False

    def compose(self) -> ComposeResult:
        fitting = [name for width, name in self.HORIZONTAL_BREAKPOINTS if width <= self.app.size.width]
        self.add_class(*fitting[-1:])  # Textual would find it out after the first layout, and lay out once more
        yield TitleBar(self.settings.model)
        yield StatusLine()
        with Horizontal(id="body"):
            yield Transcript()
            yield EnginePanel()
        yield Activity()
        yield PromptBox()
        yield Hints()

    def on_mount(self) -> None:
        self.query_one(Transcript).follow()
        self._draw()
        self.set_timer(DRAW_EVERY_S, self._draw_and_pace)
        self.call_after_refresh(self.bridge.open)

    def on_resize(self) -> None:
        self._draw()

    # What the engine says

    async def _draw_and_pace(self) -> None:
        """Draws, and again when that is on the screen: at most twelve times a second, and most of the time for keys."""
        start = monotonic()
        await self.draw_events()

        def pace() -> None:
            self.set_timer(max(DRAW_EVERY_S, 2 * (monotonic() - start)), self._draw_and_pace)

        self.call_after_refresh(pace)

    async def draw_events(self) -> None:
        """Shows everything that came since the last time."""
        events = self.bridge.take()
        for event in events:
            await self._show(event)
        if events:
            self._draw()
            await self._send_what_waits()

    async def _show(self, event: Event) -> None:
        transcript = self.query_one(Transcript)
        if transcript.is_answering or not isinstance(event, Stats):  # no figures of an answer that was thrown away
            self.readings = self.readings.after(event)
        match event:
            case Opened():
                self.run_worker(_import_answers, thread=True)
                self.query_one(EnginePanel).introduce(event.info)
                transcript.introduce(event.info)
            case Finished() if transcript.is_answering:
                self.conversation = self.conversation.add(Message("assistant", event.text, event.reasoning))
            case Failed() if transcript.is_answering:
                await transcript.fail(event, "No answer", self._take_back_question())
            case Failed() if not self.readings.info:
                await transcript.fail(event, "The model could not be opened")
        await transcript.show(event)

    def _take_back_question(self) -> str:
        """Removes the unanswered question from the conversation; says where it is now."""
        *earlier, question = self.conversation.messages
        self.conversation = Conversation(tuple(earlier))
        prompt = self.query_one(Prompt)
        self._wait_to_send(False)
        if prompt.text.strip():
            return "The question above is not part of the conversation any more; your draft is untouched."
        prompt.text = question.text
        prompt.move_cursor(prompt.document.end)
        return "Your question is back in the prompt."

    # What the user does

    @on(Prompt.Submitted)
    async def _on_submitted(self, event: Prompt.Submitted) -> None:
        if not event.text.strip():
            return
        if self.readings.phase == "idle":
            await self._ask(event.text)
        elif self.readings.phase == "closed":
            self._draw(NO_MODEL)
        else:
            self._wait_to_send(True)

    @on(Question.Picked)
    async def _on_picked(self, event: Question.Picked) -> None:
        prompt = self.query_one(Prompt)
        prompt.focus()
        if self.readings.phase == "idle" and not prompt.text.strip():
            await self._ask(event.text)
        elif not prompt.text.strip():
            prompt.text = event.text

    @on(TextArea.Changed)
    def _on_changed(self) -> None:
        self._wait_to_send(False)

    @on(Prompt.PageScrolled)
    def _on_page_scrolled(self, event: Prompt.PageScrolled) -> None:
        self.query_one(Transcript).page(event.pages)

    async def _ask(self, text: str) -> None:
        info = self.readings.info
        assert info is not None
        self.query_one(Prompt).take(text)
        self.conversation = self.conversation.add(Message("user", text))
        await self.query_one(Transcript).begin(text, info.model)
        self.readings = self.readings.asked()
        self.bridge.ask(request_for(self.conversation, info, self.settings, f"chat-{self._num_chats}"))
        self._draw()

    async def _send_what_waits(self) -> None:
        if self._is_waiting_to_send and self.readings.phase == "idle":
            self._wait_to_send(False)
            await self._ask(self.query_one(Prompt).text)

    def _wait_to_send(self, is_waiting: bool) -> None:
        self._is_waiting_to_send = is_waiting
        self.query_one(PromptBox).set_class(is_waiting, "-waiting")
        self._draw()

    # Commands

    def action_stop(self) -> None:
        if self.readings.is_busy:
            self.bridge.stop()
            self.readings = self.readings.stopping()
            self._draw()
        else:
            self._wait_to_send(False)

    def action_copy_answer(self) -> None:
        text = self._last_answer()
        if not text:
            self.notify("There is no answer to copy yet", markup=False)
            return
        self.app.copy_to_clipboard(text)
        self.notify(f"Copied the answer: {len(text):,} characters", markup=False)

    def action_toggle_thoughts(self) -> None:
        self.query_one(Transcript).toggle_thoughts()

    def action_toggle_panel(self) -> None:
        self.toggle_class("-panel")

    def action_show_keys(self) -> None:
        from localmoe.tui.screens.keys import KeysScreen

        self.app.push_screen(KeysScreen())

    def action_new_chat(self) -> None:
        from localmoe.tui.screens.confirm import ConfirmScreen

        num_turns = self.query_one(Transcript).num_questions
        if not num_turns:
            return
        messages = "1 question" if num_turns == 1 else f"{num_turns} questions"
        question = f"Start a new chat? This one has {messages} and is not saved: it will be gone."
        self.app.push_screen(ConfirmScreen(question, "new chat", "keep this one"), self._start_over)

    async def _start_over(self, is_sure: bool | None) -> None:
        if not is_sure:
            return
        self.action_stop()
        self._num_chats += 1
        self.conversation = Conversation()
        self.readings = self.readings.emptied()
        await self.query_one(Transcript).start_over(self.readings.info)
        self._draw()

    def _last_answer(self) -> str:
        if text := self.query_one(Transcript).unfinished_text:
            return text
        answers = [message.text for message in self.conversation.messages if message.role == "assistant"]
        return printable(answers[-1]) if answers else ""

    def _draw(self, notice: str = "") -> None:
        """Brings every figure on the screen up to date."""
        if self._is_waiting_to_send:
            notice = WAITS_FOR_ANSWER if self.readings.is_busy else WAITS_FOR_MODEL
        self.query_one(TitleBar).show_model(self.readings)
        self.query_one(StatusLine).show_figures(self.readings)
        self.query_one(Activity).show_doing(self.readings)
        self.query_one(EnginePanel).show_figures(self.readings)
        self.query_one(Hints).show_keys(self.readings.is_busy, notice)


def _import_answers() -> None:
    """Markdown takes 60 ms to import: not before the first paint, and not at the first question either."""
    import localmoe.tui.widgets.answer_turn  # noqa: F401
