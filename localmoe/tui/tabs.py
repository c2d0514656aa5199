"""Several conversations at once, a tab each: its own chat, session and screen, and one engine for all."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from textual.app import App

    from localmoe.tui.bridge import Bridge
    from localmoe.tui.kept import Kept
    from localmoe.tui.screens.chat import ChatScreen

MOST_TABS = 16
State = Literal["idle", "waiting", "busy", "news"]


@dataclass(frozen=True, slots=True)
class Head:
    """What a tab shows of itself."""

    title: str  # "": nothing was said yet
    state: State
    is_current: bool


@dataclass(eq=False, slots=True)
class Tab:
    """One conversation. Its screen is a mode of the application, which goes on while another one is shown."""

    mode: str
    bridge: "Bridge"
    kept: "Kept"
    screen: "ChatScreen"


MakeScreen = Callable[["Bridge", "Kept"], "ChatScreen"]


class Tabs:
    """The tabs in their order. `make` gives a screen, `on_show` hears which tab is current from now on."""

    def __init__(self, app: "App[Any]", make: MakeScreen, on_show: Callable[[Tab], None]) -> None:
        self._app = app
        self._make = make
        self._on_show = on_show
        self._numbers = count(1)
        self._tabs: list[Tab] = []
        self._left: list[Kept] = []  # of closed tabs: their last words may still be on the way to the disk
        self._current: Tab | None = None

    def __len__(self) -> int:
        return len(self._tabs)

    @property
    def current(self) -> Tab:
        """The one that is shown."""
        assert self._current is not None
        return self._current

    @property
    def screens(self) -> "list[ChatScreen]":
        """Of all tabs, in their order."""
        return [tab.screen for tab in self._tabs]

    def heads(self) -> tuple[Head, ...]:
        """What all of them show."""
        return tuple(Head(tab.screen.title_words, tab.screen.state, tab is self._current) for tab in self._tabs)

    def add(self, bridge: "Bridge", kept: "Kept") -> Tab:
        """A new tab behind the current one, not shown yet. Modes have names: this one's is the screen's for good."""
        tab = Tab(f"tab-{next(self._numbers)}", bridge, kept, self._make(bridge, kept))
        self._app.add_mode(tab.mode, lambda: tab.screen)
        place = self._tabs.index(self._current) + 1 if self._current else 0
        self._tabs.insert(place, tab)
        self._current = self._current or tab
        return tab

    def show(self, tab: Tab) -> None:
        """Brings `tab` to the front."""
        self._current = tab
        self._on_show(tab)
        self._app.switch_mode(tab.mode)

    def go(self, step: int) -> None:
        """Shows the tab so many places further, round and round."""
        self.show(self._tabs[(self._tabs.index(self.current) + step) % len(self._tabs)])

    def go_to(self, number: int) -> bool:
        """Shows tab `number`, from 1; False when there is none."""
        if not 1 <= number <= len(self._tabs):
            return False
        self.show(self._tabs[number - 1])
        return True

    def with_chat(self, chat_id: str) -> Tab | None:
        """The tab that this chat is in: two would write on in it."""
        return next((tab for tab in self._tabs if tab.kept.chat.id == chat_id), None)

    def drop(self, tab: Tab) -> None:
        """Closes `tab`, which is not the only one; what is being answered in it ends, and is kept as far as it came."""
        assert len(self._tabs) > 1
        place = self._tabs.index(tab)
        self._tabs.remove(tab)
        if tab is self._current:
            self.show(self._tabs[min(place, len(self._tabs) - 1)])
        tab.bridge.leave()
        self._left.append(tab.kept)
        self._app.run_worker(tab.kept.close, thread=True, group="leave")
        self._app.remove_mode(tab.mode)

    def close(self) -> None:
        """Keeps what there is of all conversations."""
        for kept in (*self._left, *(tab.kept for tab in self._tabs)):
            kept.close()
