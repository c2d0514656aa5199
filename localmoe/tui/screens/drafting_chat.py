"""While something is written: suggestions, its length in tokens, the editor, files to attach."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on, work
from textual.timer import Timer
from textual.widgets import TextArea

from localmoe.chat.attachment import as_mention, read_text
from localmoe.chat.message import Message
from localmoe.errors import LocalmoeError
from localmoe.tui.away import away
from localmoe.tui.bridge import Bridge
from localmoe.tui.kept import Kept
from localmoe.tui.keymap import Keymap
from localmoe.tui.screens.configured_chat import ConfiguredChatScreen
from localmoe.tui.widgets.prompt import Prompt
from localmoe.tui.widgets.prompt_box import PromptBox
from localmoe.tui.widgets.suggestions import Suggestions
from localmoe.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from localmoe.tui.drafts import TextCounter

_COUNT_AFTER_S = 0.15  # without a key


class DraftingChatScreen(ConfiguredChatScreen):
    """Counts and suggests beside the typing, never in its way."""

    def __init__(self, bridge: Bridge, kept: Kept, keymap: Keymap | None = None) -> None:
        super().__init__(kept, keymap)
        self.bridge = bridge
        self.notice = ""  # in the last line, until something else is typed
        self.is_waiting_to_send = False
        self._counter: TextCounter | None = None
        self._count_timer: Timer | None = None

    @property
    def prompt(self) -> Prompt:
        """Where it is written."""
        return self.query_one(Prompt)

    def say(self, notice: str) -> None:
        """In the last line, until the prompt changes."""
        self.notice = notice
        self.draw()

    def wait_to_send(self, is_waiting: bool) -> None:
        """Whether what is in the prompt goes as soon as it can."""
        self.is_waiting_to_send = is_waiting
        self.query_one(PromptBox).set_class(is_waiting, "-waiting")
        self.draw()

    # What changes with every key

    @on(TextArea.Changed)
    def _on_changed(self) -> None:
        if self.notice or self.is_waiting_to_send:
            self.notice = ""
            self.wait_to_send(False)
        self._suggest()
        if self._count_timer:
            self._count_timer.stop()
        self._count_timer = self.set_timer(_COUNT_AFTER_S, self.count_draft)

    @on(Suggestions.Picked)
    def _on_picked_suggestion(self) -> None:
        suggestions = self.query_one(Suggestions)
        if suggestions.is_for(self.prompt.before_cursor):
            self.prompt.accept(suggestions.marked)
        self.prompt.focus()

    def _suggest(self) -> None:
        """Only where there is something to look up; a folder can take its time."""
        before = "" if self.prompt.is_recalled else self.prompt.before_cursor
        if before.startswith("/") or "@" in before:
            self._look_up(before)
        else:
            self.query_one(Suggestions).offer([])

    @work(exclusive=True, group="suggest")
    async def _look_up(self, before: str) -> None:
        from localmoe.tui.suggest import suggest

        themes = tuple(sorted(self.app.available_themes))
        found = await away(lambda: suggest(before, themes))
        if self.is_whole and before == self.prompt.before_cursor:
            self.query_one(Suggestions).offer(found, before)

    # Tokens

    @work(exclusive=True, group="draft")
    async def count_draft(self) -> None:
        """Shows what the draft would cost, its files and folded texts one by one."""
        from localmoe.tui.drafts import measure

        text, blocks, counter = self.prompt.text, self.prompt.blocks, self._text_counter()
        try:
            draft = await away(lambda: measure(text, blocks, counter))
        except LocalmoeError:
            return  # the engine is gone, which is said where it matters
        if not self.is_whole:
            return
        self.query_one(PromptBox).show_draft(draft)
        self.readings = replace(self.readings, draft_tokens=draft.num_tokens)
        self.draw()

    @work(exclusive=True, group="conversation")
    async def recount(self) -> None:
        """Counts the conversation where no engine has said its length: opened, changed or begun anew."""
        engine, conversation = self.bridge.engine, self.conversation
        unread = self.query_one(Transcript).unread_turns
        self.readings = replace(self.readings, unread_turns=unread)
        num_tokens = 0
        if engine and conversation.messages:
            read = conversation.without_first(unread).add(Message("user", ""))
            try:
                num_tokens = await away(lambda: engine.count_tokens(read))
            except LocalmoeError:
                return  # as above
        if self.is_whole and not self.readings.is_busy and conversation is self.conversation:
            self.readings = replace(self.readings, context_tokens=num_tokens)
            self.draw()

    def _text_counter(self) -> "TextCounter | None":
        from localmoe.tui.drafts import TextCounter

        engine = self.bridge.engine
        if engine and (self._counter is None or self._counter.engine is not engine):
            self._counter = TextCounter(engine)  # another model counts otherwise
        return self._counter if engine else None

    # Commands

    @work(exclusive=True, group="editor")
    async def action_open_editor(self) -> None:
        """The prompt in the user's editor; it stays as it is when that fails."""
        from localmoe.tui.editor import edit

        before = self.prompt.whole
        try:
            text = await edit(self.app, before)
        except LocalmoeError as error:
            self.tell(error.message, error.hint)
        else:
            if text != before:
                self.prompt.put(text)

    @work(exclusive=True, group="attach")
    async def action_attach(self, path: str = "") -> None:
        """Names a file in the prompt, if it can be read; without a path one is looked for there."""
        prompt = self.prompt
        gap = " " if prompt.before_cursor[-1:].strip() else ""
        try:
            if path:
                await away(lambda: read_text(Path(path).expanduser()))
        except LocalmoeError as error:
            self.tell(error.message, error.hint)
        else:
            prompt.insert(f"{gap}{as_mention(path)} " if path else f"{gap}@")
            prompt.focus()
