"""From the prompt to the engine: commands, files, whether it fits; nothing is sent that the user did not mean."""

from dataclasses import replace
from inspect import isawaitable

from textual import on, work

from localmoe.chat.attachment import attach, mentions
from localmoe.chat.message import Conversation, Message
from localmoe.errors import LocalmoeError, UsageError
from localmoe.tui import slash
from localmoe.tui.away import away
from localmoe.tui.commands import Command
from localmoe.tui.readings import Readings
from localmoe.tui.requests import request_for
from localmoe.tui.screens.drafting_chat import DraftingChatScreen
from localmoe.tui.widgets.prompt import Prompt
from localmoe.tui.widgets.question import Question
from localmoe.tui.widgets.transcript import Transcript


class AskingChatScreen(DraftingChatScreen):
    """Sends what is in the prompt, once it may be sent."""

    @on(Prompt.Submitted)
    async def _on_submitted(self, event: Prompt.Submitted) -> None:
        if typed := slash.parse(self.prompt.blocks.whole(event.text)):
            await self._obey(typed, event.text)
            return
        if self.readings.phase == "closed":
            self._open_again()
        if not event.text.strip():
            return
        if self.readings.phase == "idle":
            await self._send(event.text)
        else:
            self.wait_to_send(True)

    def _open_again(self) -> None:
        """The model was lost, or could not be opened: now it may be."""
        self.readings = replace(Readings(), draft_tokens=self.readings.draft_tokens)
        self.bridge.open()
        self.draw()

    @on(Question.Picked)
    async def _on_picked(self, event: Question.Picked) -> None:
        self.prompt.focus()
        if not self.prompt.text.strip():
            self.prompt.text = event.text
            if self.readings.phase == "idle":
                await self._send(event.text)

    async def send_what_waits(self) -> None:
        """The engine is free: what was sent before goes now."""
        if self.is_waiting_to_send and self.readings.phase == "idle":
            self.wait_to_send(False)
            await self._send(self.prompt.text)

    # Commands

    async def _obey(self, typed: slash.Typed, shown: str) -> None:
        if typed.trouble or typed.command is None:
            self.say(typed.trouble)
            return
        self.prompt.past.add(self.prompt.blocks.whole(shown))
        self.prompt.take(shown)
        await self.perform(typed.command, typed.argument)

    async def perform(self, command: Command, argument: str = "") -> None:
        """Does what a command of the table says."""
        if not command.takes:
            await self.run_action(command.action)
            return
        place, _, name = command.action.rpartition(".")
        done = getattr(self.app if place == "app" else self, f"action_{name}")(argument)
        if isawaitable(done):
            await done

    # Sending

    async def _send(self, shown: str) -> None:
        """At once where nothing can be wrong with it; else after a look at files and lengths."""
        text = slash.as_text(self.prompt.blocks.whole(shown))
        if mentions(text) or not self._surely_fits(text):
            self._send_with_care(shown, text)
        else:
            await self._ask(shown, text, self._unread)

    @work(exclusive=True, group="send")
    async def _send_with_care(self, shown: str, text: str) -> None:
        chat = self.kept.chat.id
        if (question := await self._with_files(text)) is None or (unread := await self._room_for(question)) is None:
            return
        is_as_it_was = chat == self.kept.chat.id and self.prompt.text.startswith(shown)
        if self.readings.phase == "idle" and is_as_it_was:
            await self._ask(shown, question, unread)

    async def _with_files(self, text: str) -> str | None:
        """`text` with the files it names; without them where the user says so, None where it is not to be sent."""
        try:
            return await away(lambda: attach(text))
        except UsageError as error:
            from localmoe.tui.screens.confirm import ConfirmScreen

            what = f"{error.message}: {error.hint}.\n\nSend the question as it is written, without files?"
            return text if await self.app.push_screen_wait(ConfirmScreen(what, "send", "back to the prompt")) else None

    async def _room_for(self, question: str) -> int | None:
        """How many turns the model is not to read; None where the question is not to be sent."""
        from localmoe.tui.fit import find_misfit, room_for_answer, shorten
        from localmoe.tui.screens.misfit import MisfitScreen

        engine, info = self.bridge.engine, self.readings.info
        conversation, unread = self.conversation.add(Message("user", question)), self._unread
        if not engine or not info:
            return None
        most, limit = self.kept.settings.max_tokens, info.context_limit
        try:
            misfit = await away(lambda: find_misfit(conversation, unread, limit, most, engine.count_tokens))
            way = await self.app.push_screen_wait(MisfitScreen(misfit)) if misfit else "send"
            if way == "shorten":
                budget = limit - room_for_answer(limit, most)
                self.prompt.put(await away(lambda: shorten(conversation, unread, budget, engine.count_tokens)))
                self.tell("Shortened so that it fits", "Enter sends it; Ctrl+Z brings the whole text back")
        except LocalmoeError as error:
            self.tell(error.message, error.hint)
            return None
        return {"leave_out": misfit.unread_turns if misfit else 0, "send": unread}.get(way or "")

    async def _ask(self, shown: str, question: str, unread: int) -> None:
        self.prompt.past.add(self.prompt.blocks.whole(shown))
        with self.app.batch_update():  # one layout for all of it
            self.prompt.take(shown)
            num_turns = self.conversation.num_turns
            self.conversation = self.conversation.add(Message("user", question))
            await self.begin_answer(question, num_turns, unread)

    async def begin_answer(self, question: str | None, at: int, unread: int) -> None:
        info = self.readings.info
        assert info is not None
        self.kept.ask(question, info.model, at, unread)
        await self.query_one(Transcript).begin(question, info.model, unread)
        self.readings = replace(self.readings.asked(), unread_turns=unread)
        read = self.conversation.without_first(unread)
        self.bridge.ask(request_for(read, info, self.kept.settings, self.kept.session))
        self.draw()

    def take_back_question(self) -> str:
        """Removes the unanswered question from the conversation; says where it is now."""
        *earlier, question = self.conversation.messages
        self.conversation = Conversation(tuple(earlier))
        self.wait_to_send(False)
        if self.prompt.text.strip():
            return "The question above is not part of the conversation any more; your draft is untouched."
        self.prompt.put(question.text)
        return "Your question is back in the prompt."

    def _surely_fits(self, question: str) -> bool:
        from localmoe.tui.fit import room_for_answer, surely_fits

        info = self.readings.info
        if not info:
            return False
        read = self.conversation.add(Message("user", question)).without_first(self._unread)
        room = room_for_answer(info.context_limit, self.kept.settings.max_tokens)
        return surely_fits(read, info.context_limit - room)

    @property
    def _unread(self) -> int:
        return self.query_one(Transcript).unread_turns
