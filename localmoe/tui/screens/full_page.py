"""A page beside the chat: its title, its body, a notice, and the keys that matter on it."""

from asyncio import CancelledError
from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen

from localmoe.errors import LocalmoeError
from localmoe.tui.away import away
from localmoe.tui.commands import command_called
from localmoe.tui.printable import printable
from localmoe.tui.widgets.line import Line

Result = TypeVar("Result")
T = TypeVar("T")
Keys = Iterable[tuple[str, str]]


class FullPageScreen(Screen[Result]):
    """Esc goes back to the chat, which went on meanwhile."""

    DEFAULT_CSS = """
    FullPageScreen {
        layout: vertical; background: $background;
        & > .page-title { height: 1; background: $panel; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & OptionList, & OptionList:focus { border: none; background-tint: $foreground 0%; scrollbar-size-vertical: 1; }
        & .option-list--option-highlighted, & OptionList:focus > .option-list--option-highlighted {
            background: $primary 25%; color: $foreground;
        }
        & VerticalScroll { scrollbar-size-vertical: 1; }
        & > .page-notice { height: auto; max-height: 6; padding: 0 2; }
        & > .page-keys {
            height: 1; padding: 0 2; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
        }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="full_page.leave"),
        *[command_called(page).binding() for page in ("models.open", "doctor.open", "settings.open", "app.quit")],
    ]
    NAME: ClassVar[str]

    def compose(self) -> ComposeResult:
        yield (title := Line(classes="page-title"))
        title.show(self._title(""))
        yield from self.body()
        yield Line(classes="page-notice")
        yield Line(classes="page-keys")

    def body(self) -> ComposeResult:
        """The widgets between title and notice."""
        raise NotImplementedError

    async def away(self, call: Callable[[], T]) -> T:
        """What `call` gives, made away from the screen. A page left meanwhile, alone or with all, goes no further."""
        try:
            return await away(call)
        finally:
            if self not in self.app.screen_stack or not self.query(".page-keys"):
                raise CancelledError

    def action_leave(self) -> None:
        self.dismiss(None)

    def entitle(self, about: str) -> None:
        """Writes the title, and behind it what the page is about."""
        self._fill(".page-title", self._title(about))

    def _title(self, about: str) -> Content:
        more = f" · {printable(about)}" if about else ""
        return Content.assemble(("localmoe", "bold $primary"), "   ", (self.NAME, "bold"), (more, "$foreground 60%"))

    def say(self, text: str, style: str = "$text-accent") -> None:
        """A notice that stays until the next one; an empty one clears it."""
        self._fill(".page-notice", Content.styled(printable(text), style))

    def say_error(self, error: LocalmoeError) -> None:
        """What went wrong and what to do about it."""
        lines = [Content.styled(printable(error.message), "$text-error")]
        if error.hint:
            lines.append(Content.styled(printable(error.hint), "$foreground 60%"))
        self._fill(".page-notice", Content("\n").join(lines))

    def show_keys(self, keys: Keys) -> None:
        """Writes the last line."""
        shown = [Content.assemble((key, "bold"), f" {verb}") for key, verb in (*keys, ("Esc", "back"))]
        self._fill(".page-keys", Content(" · ").join(shown))

    def _fill(self, part: str, content: Content) -> None:
        for line in self.query(part).results(Line):  # none when the program ends before this is done
            line.show(content)
