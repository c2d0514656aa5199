"""Chats that are kept: to search, open, rename, delete, and to bring back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from localmoe.chat.history.records import Chat, Hit
from localmoe.errors import LocalmoeError
from localmoe.tui import figures
from localmoe.tui.kept import Kept
from localmoe.tui.keymap import Keymap
from localmoe.tui.printable import printable
from localmoe.tui.screens.rename import RenameScreen
from localmoe.tui.widgets.line import Line

if TYPE_CHECKING:
    from localmoe.chat.history.history import History

_NUM_HITS = 100


@dataclass(frozen=True, slots=True)
class Choice:
    """A chat to open, and the turn to go to in it."""

    chat: Chat
    turn: int | None = None


class ChatsScreen(ModalScreen[Choice | None]):
    """Typing searches titles and texts; without words all chats are listed, the one used last first."""

    DEFAULT_CSS = """
    ChatsScreen {
        align: center middle;
        & > Vertical {
            width: 90; max-width: 95%; height: 90%; border: round $primary; border-title-color: $primary;
            background: $surface; padding: 0 1;
        }
        & Input, & Input:focus { border: none; height: 1; padding: 0 1; margin-bottom: 1; background: $boost; }
        & OptionList, & OptionList:focus {
            height: 1fr; border: none; padding: 0; background: $surface; text-wrap: nowrap; text-overflow: ellipsis;
        }
        & #chats-notice { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", id="chats.close"),
        Binding("up", "move('cursor_up')", "Up", id="chats.up", priority=True, show=False),
        Binding("down", "move('cursor_down')", "Down", id="chats.down", priority=True, show=False),
        Binding("pageup", "move('page_up')", "Page up", id="chats.page_up", priority=True, show=False),
        Binding("pagedown", "move('page_down')", "Page down", id="chats.page_down", priority=True, show=False),
        Binding("ctrl+r", "rename", "Rename", id="chats.rename", priority=True),
        Binding("ctrl+d", "delete", "Delete", id="chats.delete", priority=True),
        Binding("ctrl+z", "undo", "Undo", id="chats.undo", priority=True),
    ]

    def __init__(self, kept: Kept, keymap: Keymap | None = None) -> None:
        super().__init__()
        self._keymap = keymap or Keymap()
        self.deleted: list[Chat] = []  # Ctrl+Z brings the last one back
        self._kept = kept
        self._choices: list[Choice] = []

    def compose(self) -> ComposeResult:
        with Vertical() as page:
            page.border_title = "Chats"
            yield Input(placeholder="Search titles and texts", select_on_focus=False)
            yield OptionList(markup=False)
            yield Line(self._keys, id="chats-notice")

    @property
    def _keys(self) -> str:
        verbs = {"chats.rename": "rename", "chats.delete": "delete", "chats.close": "close"}
        return " · ".join(["Enter open", *(f"{self._key(key_id)} {verb}" for key_id, verb in verbs.items())])

    def _key(self, key_id: str) -> str:
        own = next(b.key for b in self.BINDINGS if isinstance(b, Binding) and b.id == key_id)
        return self._keymap.name(key_id, own)

    def on_mount(self) -> None:
        self.list_chats()

    @on(Input.Changed)
    def _on_changed(self) -> None:
        self.list_chats()

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        if choice := self._choice:
            self.dismiss(choice)

    @on(OptionList.OptionSelected)
    def _on_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index])

    @work(exclusive=True, group="list")
    async def list_chats(self, notice: str = "") -> None:
        """Shows what the words in the input find; the latest call wins."""
        wanted = self.query_one(Input).value.strip()
        try:
            found = await self._kept.read(lambda history: _find(history, wanted))
        except LocalmoeError as error:
            self._say(error.message)
            return
        self._choices = [choice for choice, _ in found]
        options = self.query_one(OptionList)
        place = options.highlighted or 0
        options.clear_options().add_options([Option(line) for _, line in found])
        options.highlighted = min(place, len(found) - 1) if found else None
        nothing = "Nothing was found" if wanted else "There is no chat yet"
        self._say(notice or (self._keys if found else nothing))

    def action_move(self, way: str) -> None:
        getattr(self.query_one(OptionList), f"action_{way}")()

    def action_rename(self) -> None:
        if choice := self._choice:
            chat = choice.chat
            self.app.push_screen(RenameScreen(chat.title), lambda title: self._rename(chat, title))

    def _rename(self, chat: Chat, title: str | None) -> None:
        if title and title.strip():
            self._change(lambda history: history.rename(chat, title), f"Renamed to {title}")

    def action_delete(self) -> None:
        if choice := self._choice:
            chat = choice.chat
            self.deleted.append(chat)
            self._change(
                lambda history: history.delete(chat), f"{self._key('chats.undo')} brings it back: {chat.title}"
            )

    def action_undo(self) -> None:
        if self.deleted:
            chat = self.deleted.pop()
            self._change(lambda history: history.restore(chat), f"It is back: {chat.title}")

    @work
    async def _change(self, change: "Callable[[History], None]", done: str) -> None:
        try:
            await self._kept.read(change)
        except LocalmoeError as error:
            self._say(error.message)
        else:
            self.list_chats(done)

    @property
    def _choice(self) -> Choice | None:
        place = self.query_one(OptionList).highlighted
        return self._choices[place] if place is not None and place < len(self._choices) else None

    def _say(self, text: str) -> None:
        self.query_one("#chats-notice", Line).show(Content(printable(text)))


def _find(history: "History", wanted: str) -> list[tuple[Choice, Content]]:
    """What is to be chosen from, and how each looks. In the history's thread."""
    from localmoe.chat.history.search import search

    if wanted:
        return [(Choice(hit.chat, hit.turn), _hit(hit)) for hit in search(history, wanted, _NUM_HITS)]
    return [(Choice(chat), _chat(chat)) for chat in history.chats()]


def _chat(chat: Chat) -> Content:
    turns = "1 turn" if chat.num_turns == 1 else f"{chat.num_turns:,} turns"
    about = f"{figures.moment(chat.updated_ms)} · {turns} · {printable(chat.model)}"
    return _two_lines(chat, Content.styled(about, "$foreground 60%"))


def _hit(hit: Hit) -> Content:
    if hit.turn is None:
        return _chat(hit.chat)
    before, match, after = (printable(part) for part in (hit.before, hit.match, hit.after))
    faint = "$foreground 60%"
    return _two_lines(hit.chat, Content.assemble((before, faint), (match, "bold $text-accent"), (after, faint)))


def _two_lines(chat: Chat, second: Content) -> Content:
    return Content("\n").join([Content.styled(printable(chat.title), "bold"), second])
