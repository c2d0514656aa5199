"""One chat among several tabs: a new one, another one, away with this one."""

from typing import TYPE_CHECKING

from localmoe.chat.history.records import Chat
from localmoe.tui.bridge import Bridge
from localmoe.tui.screens.asking_chat import AskingChatScreen
from localmoe.tui.screens.kept_chat import KeptChatScreen
from localmoe.tui.tabs import MOST_TABS, State, Tabs
from localmoe.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from localmoe.tui.kept import Kept
    from localmoe.tui.keymap import Keymap


class TabbedChatScreen(AskingChatScreen):
    """Knows the tabs that it is one of, and what it has to say to who looks at another one."""

    def __init__(self, bridge: Bridge, kept: "Kept", keymap: "Keymap | None", tabs: Tabs) -> None:
        super().__init__(bridge, kept, keymap)
        self.tabs = tabs
        self.has_news = False  # an answer ended since this was last shown

    @property
    def title_words(self) -> str:
        """What this chat is called, or its first question; "" while nothing was said."""
        said = (message.text for message in self.conversation.messages if message.role == "user")
        return self.kept.chat.title or " ".join(next(said, "").split())

    @property
    def state(self) -> State:
        """For its tab."""
        if self.readings.is_busy:
            return "waiting" if self.readings.phase == "waiting" else "busy"
        return "news" if self.has_news else "idle"

    @property
    def is_active_tab(self) -> bool:
        """Whether this one is shown, or covered only by its own pages."""
        return self.tabs.current.screen is self

    def on_screen_resume(self) -> None:
        self.has_news = False

    async def open_chat(self, chat: Chat, turn: int | None) -> None:
        """Where it is open already, that tab is shown: two must not write on in one chat."""
        tab = self.tabs.with_chat(chat.id)
        if tab and tab.screen is not self:
            self.tabs.show(tab)
        else:
            await super().open_chat(chat, turn)

    async def leave_deleted(self, chat_ids: set[str]) -> None:
        for screen in self.tabs.screens:
            if screen is not self:
                await KeptChatScreen.leave_deleted(screen, chat_ids)
        await super().leave_deleted(chat_ids)

    def action_new_tab(self) -> None:
        """A new conversation, beside those that go on."""
        if len(self.tabs) >= MOST_TABS:
            self.notify(f"There are {MOST_TABS} tabs already", markup=False)
            return
        self.tabs.show(self.tabs.add(self.bridge.beside(), self.kept.beside()))

    def action_step_tab(self, step: int) -> None:
        self.tabs.go(step)

    def action_go_to_tab(self, number: str = "") -> None:
        if not (number.isdecimal() and self.tabs.go_to(int(number))):
            missing = f"There is no tab {number}" if number else "Which tab? /tab 2 shows the second one"
            self.notify(missing, markup=False)

    def action_close_tab(self) -> None:
        """Also when it is the prompt's key to delete a word: where there are words, it does that."""
        if self.prompt.text:
            self.prompt.action_delete_word_left()
        elif len(self.tabs) == 1:
            self.notify("This is the only tab", markup=False)
        elif loss := self._loss():
            from localmoe.tui.screens.confirm import ConfirmScreen

            self.app.push_screen(ConfirmScreen(loss, "close the tab", "go on here"), self._close_if)
        else:
            self._close_if(True)

    def _loss(self) -> str:
        """What is to be confirmed."""
        if self.readings.is_busy:
            return "An answer is being made in this tab. Stop it and close the tab?"
        if not self.kept.is_on and self.query_one(Transcript).num_questions:
            return "This chat is not kept. Close the tab? It will be gone."
        return ""

    def _close_if(self, is_sure: bool | None) -> None:
        if is_sure:
            tab = self.tabs.current
            self.app.call_later(self.tabs.drop, tab)  # not from within what is to be removed
