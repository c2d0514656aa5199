"""Settings: every one of the schema, its value, where that comes from, and how to change it in config.toml."""

from typing import TYPE_CHECKING, ClassVar, Protocol

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localmoe.config_toml import read_value, remove_setting, value_in_file, write_setting
from localmoe.errors import LocalmoeError
from localmoe.settings import ABOUT, RULES, Settings, config_file
from localmoe.tui.download_words import short
from localmoe.tui.printable import printable
from localmoe.tui.screens.full_page import FullPageScreen
from localmoe.tui.screens.setting_edit import SettingEditScreen
from localmoe.tui.setting_rows import AT_ONCE, LATER, SettingRow, drawn, setting_rows
from localmoe.tui.widgets.line import Line

if TYPE_CHECKING:
    from localmoe.engine.request import EngineInfo
    from localmoe.tui.kept import Kept


_EDGES = 3  # cells beside the rows


class Configured(Protocol):
    """The app, as far as settings go."""

    settings: Settings
    kept: "Kept"
    changed_later: frozenset[str]

    @property
    def info(self) -> "EngineInfo | None": ...

    def take_setting(self, name: str, value: object) -> None:
        """config.toml says `value` of `name` now; None: nothing."""
        ...


class SettingsScreen(FullPageScreen[None]):
    """Changes are written at once, one value at a time."""

    DEFAULT_CSS = """
    SettingsScreen {
        & > OptionList, & > OptionList:focus { height: 1fr; padding: 0 1 0 2; background: $background; }
        & > #details { height: 4; padding: 0 2; border-top: hkey $foreground 20%; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d,delete", "take_back", "Back to the default", id="settings.default")
    ]
    NAME = "settings"
    KEYS = (("Enter", "change"), ("D", "back to the default"))

    def __init__(self, configured: Configured) -> None:
        super().__init__()
        self._configured = configured
        self._rows: list[SettingRow] = []

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)
        with Vertical(id="details"):
            yield Line(id="about")

    def on_mount(self) -> None:
        self.entitle(short(config_file()))
        self.show_keys(self.KEYS)
        self._draw()  # at once: keys that are typed ahead find their rows

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @property
    def chosen(self) -> str:
        """The name of the highlighted setting."""
        return self._rows[self.query_one(OptionList).highlighted or 0].name

    def _draw(self) -> None:
        app, options = self._configured, self.query_one(OptionList)
        self._rows = setting_rows(app.settings, app.kept, app.info, app.changed_later)
        width = options.scrollable_content_region.width or self.app.size.width - _EDGES
        place = options.highlighted or 0
        options.clear_options().add_options([Option(drawn(row, width)) for row in self._rows])
        options.highlighted = place

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self) -> None:
        name = self.chosen
        allowed = Content.styled(f"It is {printable(RULES[name].allowed)}.", "$foreground 60%")
        self.query_one("#about", Line).show(Content("\n").join([Content(ABOUT.get(name, "")), allowed]))
        self.say("")

    @on(OptionList.OptionSelected)
    def _on_selected(self) -> None:
        self._change(self.chosen)

    @work(exclusive=True)
    async def _change(self, name: str) -> None:
        try:
            there = value_in_file(name)  # a small file, and keys that are typed ahead belong to what comes
        except LocalmoeError as error:
            self.say_error(error)
            return
        now = getattr(self._configured.settings, name) if there is None else there
        text = str(now).lower() if isinstance(now, bool) else "" if now is None else str(now)
        edit = SettingEditScreen(
            name,
            ABOUT.get(name, ""),
            RULES[name].allowed,
            text,
            self._choices(name),
            lambda written: read_value(name, written),
        )
        if (wanted := await self.app.push_screen_wait(edit)) is not None:
            await self._write(name, wanted)

    def _choices(self, name: str) -> tuple[str, ...]:
        return tuple(sorted(self.app.available_themes)) if name == "theme" else RULES[name].choices

    async def _write(self, name: str, text: str) -> None:
        try:
            value = await self.away(lambda: write_setting(name, text))
        except LocalmoeError as error:
            self.say_error(error)
            return
        self._configured.take_setting(name, value)
        self._draw()
        self.call_after_refresh(
            self.say, f"{name} is {text.strip()} in {short(config_file())}; {self._when(name, value)}"
        )

    @work(exclusive=True)
    async def action_take_back(self) -> None:
        """Takes the setting out of config.toml."""
        name = self.chosen
        try:
            if await self.away(lambda: value_in_file(name)) is None:
                self.say(f"config.toml says nothing of {name}")
                return
            await self.away(lambda: remove_setting(name))
        except LocalmoeError as error:
            self.say_error(error)
            return
        self._configured.take_setting(name, None)
        self._draw()
        default = getattr(Settings(), name)
        self.call_after_refresh(self.say, f"{name} is out of {short(config_file())}; {self._when(name, default)}")

    def _when(self, name: str, value: object) -> str:
        """Since when, or why not."""
        origin = self._configured.settings.origin(name)
        if origin in ("flag", "environment"):
            return f"{self._configured.settings.said_by(name)} stays in force as long as it is given"
        if name not in AT_ONCE:
            return f"in force {LATER} on"
        if name != "theme" and getattr(self._configured.kept.settings, name) != value:
            return "new chats have it; this one has its own, and /set changes that"
        return "in force now"
