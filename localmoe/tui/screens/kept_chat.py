"""One chat among those that are kept: another one, a new one, another branch of this one."""

from abc import abstractmethod

from textual.screen import Screen

from localmoe.chat.history.records import Chat, Turn, conversation_of
from localmoe.chat.message import Conversation
from localmoe.errors import LocalmoeError
from localmoe.tui.kept import Kept
from localmoe.tui.keymap import Keymap
from localmoe.tui.readings import Readings
from localmoe.tui.widgets.prompt import Prompt
from localmoe.tui.widgets.transcript import Transcript


class KeptChatScreen(Screen[None]):
    """Holds the conversation; a chat screen adds the engine and the keys."""

    def __init__(self, kept: Kept, keymap: Keymap | None = None) -> None:
        super().__init__(classes="-panel")
        self.keymap = keymap or Keymap()
        self.kept = kept
        self.readings = Readings()
        self.conversation = Conversation()

    @property
    def is_whole(self) -> bool:
        """False once it is being taken down: what was looked up for it comes too late."""
        return bool(self.query(Prompt)) and self.is_running

    @abstractmethod
    def action_stop(self) -> None:
        """Ends the answer that is being made."""

    @abstractmethod
    async def begin_answer(self, question: str | None, at: int, unread: int) -> None:
        """Asks for an answer to the conversation without its first `unread` turns, kept behind `at` turns.

        None for `question`: it is there already.
        """

    @abstractmethod
    def draw(self) -> None:
        """Brings every figure on the screen up to date."""

    @abstractmethod
    def recount(self) -> object:
        """Counts the conversation's tokens anew."""

    # Other chats

    async def action_new_chat(self) -> None:
        num_turns = self.query_one(Transcript).num_questions
        if self.kept.is_on and num_turns:
            await self.show_chat()
        elif num_turns:
            from localmoe.tui.screens.confirm import ConfirmScreen

            messages = "1 question" if num_turns == 1 else f"{num_turns} questions"
            question = f"Start a new chat? This one has {messages} and is not kept: it will be gone."
            self.app.push_screen(ConfirmScreen(question, "new chat", "keep this one"), self._start_over)

    async def _start_over(self, is_sure: bool | None) -> None:
        if is_sure:
            await self.show_chat()

    def action_open_chats(self) -> None:
        if not self.kept.is_on:
            self.notify("Chats are not kept this time: localmoe was started with --no-save", markup=False)
            return
        from localmoe.tui.screens.chats import ChatsScreen, Choice

        screen = ChatsScreen(self.kept, self.keymap)

        async def opened(choice: Choice | None) -> None:
            await self.leave_deleted({chat.id for chat in screen.deleted})
            if choice:
                await self.open_chat(choice.chat, choice.turn)

        self.app.push_screen(screen, opened)

    async def leave_deleted(self, chat_ids: set[str]) -> None:
        """A new chat instead of one that was deleted: nothing more must be written there."""
        if self.kept.chat.id in chat_ids:
            await self.show_chat()

    async def open_chat(self, chat: Chat, turn: int | None) -> None:
        """Shows a chat that is kept, from one of its turns on."""
        self.kept.begin()  # what is being answered is written down before it is read
        try:
            turns = await self.kept.read(lambda history: history.line(chat, through=turn))
        except LocalmoeError as error:
            self.notify(error.hint, title=error.message, severity="warning", markup=False)
            return
        at = next((place for place, said in enumerate(turns) if said.id == turn), None)
        await self.show_chat(chat, turns, at)

    async def show_chat(self, chat: Chat | None = None, turns: tuple[Turn, ...] = (), at: int | None = None) -> None:
        """Another chat on the screen, a new one where none is given; an answer that is being made ends."""
        if self.readings.is_busy:
            self.action_stop()
        self.kept.begin(chat, turns)
        self.conversation = conversation_of(self.kept.chat.system, turns)
        self.readings = self.readings.emptied()
        await self.query_one(Transcript).show_chat(turns, at, self.readings.info)
        self.recount()
        self.draw()

    # Branches of this chat

    async def action_answer_again(self) -> None:
        """Another answer to the last question; the first one stays in the file."""
        if self.readings.phase != "idle" or self.conversation.last_role != "assistant":
            self.notify("There is no finished answer to make again", markup=False)
            return
        transcript = self.query_one(Transcript)
        unread = transcript.unread_turns
        self.conversation = self.conversation.without_last(1)
        await transcript.take_away("assistant")
        await self.begin_answer(None, self.conversation.num_turns, unread)

    async def action_edit_question(self) -> None:
        """The last question goes back to the prompt; sent anew, it begins a branch."""
        prompt, role = self.query_one(Prompt), self.conversation.last_role
        if self.readings.phase != "idle" or role is None:
            self.notify("There is no question to change", markup=False)
        elif prompt.text.strip():
            self.notify("The prompt is not empty: send or clear it first", markup=False)
        else:
            num_gone = 2 if role == "assistant" else 1
            prompt.put(self.conversation.messages[-num_gone].text)
            self.conversation = self.conversation.without_last(num_gone)
            await self.query_one(Transcript).take_away("user")
            self.recount()

    async def action_next_branch(self) -> None:
        """Another answer or question that was kept beside this one, each in turn."""
        chat = self.kept.chat
        if self.readings.phase != "idle" or not self.kept.is_on or not self.conversation.num_turns:
            self.notify("There is no other branch", markup=False)
            return
        try:
            turns = await self.kept.read(lambda history: history.use_next_branch(chat))
        except LocalmoeError as error:
            self.notify(error.hint, title=error.message, severity="warning", markup=False)
            return
        await self.show_chat(chat, turns)
