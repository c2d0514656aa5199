"""Models: the catalogue and what is here, what this machine could do with each, and their files on their way."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localmoe.errors import LocalmoeError
from localmoe.tui.model_list import Listed, list_models
from localmoe.tui.printable import printable
from localmoe.tui.screens.model_transfers import ModelTransfersScreen
from localmoe.tui.surveyor import OpenSurveyor
from localmoe.tui.transfers import Transfer, Transfers
from localmoe.tui.widgets.line import Line

if TYPE_CHECKING:
    from localmoe.engine.outlook import Outlook

DRAW_EVERY_S = 0.25
_FAINT = "$foreground 60%"
_LOOKING = "Looking at this machine …"


class ModelsScreen(ModelTransfersScreen):
    """Dismissed with the model to open in the chat, or with None."""

    DEFAULT_CSS = """
    ModelsScreen {
        & > .head { height: 1; padding: 0 1 0 2; }
        & > OptionList, & > OptionList:focus { height: 1fr; padding: 0 1 0 2; background: $background; }
        & > #details { height: auto; max-height: 55%; padding: 0 2; border-top: hkey $foreground 20%; }
        & #about { height: auto; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "download", "Download", id="models.download"),
        Binding("p", "pause", "Pause, or go on", id="models.pause"),
        Binding("v", "check", "Check all files", id="models.check"),
        Binding("r,delete", "remove", "Remove", id="models.remove"),
    ]
    NAME = "models"
    KEYS = (("Enter", "chat"), ("D", "download"), ("P", "pause"), ("V", "check"), ("R", "remove"))

    def __init__(self, open_surveyor: OpenSurveyor, transfers: Transfers, open_model: str) -> None:
        super().__init__(open_surveyor, transfers, open_model)
        self._listed: tuple[Listed, ...] = ()
        self._outlooks: Mapping[str, Outlook] = {}
        self._is_looking = True
        self._drawn: list[Content] = []
        self._ended: frozenset[Transfer] = frozenset()

    def body(self) -> ComposeResult:
        yield Line(classes="head")
        yield OptionList(markup=False)
        with VerticalScroll(id="details", can_focus=False):
            yield Line(id="about")

    def on_mount(self) -> None:
        self.show_keys(self.KEYS)
        self.list_again()
        self.set_interval(DRAW_EVERY_S, self._follow)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @property
    def chosen(self) -> Listed | None:
        """The highlighted model."""
        place = self.query_one(OptionList).highlighted
        return self._listed[place] if place is not None and place < len(self._listed) else None

    @work(exclusive=True, group="list")
    async def list_again(self) -> None:
        """First what is on the disk, then what this machine could do with it."""
        try:
            self._listed = await self.away(list_models)
            self._draw()
            self._outlooks = await self.away(lambda: self.open_surveyor().outlooks())
        except LocalmoeError as error:
            self.say_error(error)
        self._is_looking = False
        self._draw()

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self) -> None:
        self._draw_details()

    @on(OptionList.OptionSelected)
    def _on_selected(self) -> None:
        listed = self.chosen
        if listed and listed.name == self.open_model:
            self.dismiss(None)
        elif listed and listed.folder and not (self.transfers.active and self.transfers.active.name == listed.name):
            self.dismiss(listed)
        else:
            self.action_download()

    def _follow(self) -> None:
        """Draws what moves, and looks at the disk again when a transfer has ended."""
        ended = frozenset(one for one in map(self._transfer, self._listed) if one and not one.is_active)
        if ended != self._ended:
            self._ended = ended
            self.list_again()
        if self.transfers.active:
            self._draw()

    def _draw(self) -> None:
        from localmoe.tui.model_rows import head_row, model_row

        options = self.query_one(OptionList)
        width = options.scrollable_content_region.width
        if width <= 0 or not self._listed:
            return
        self.query_one(".head", Line).show(head_row(width))
        rows = [
            model_row(one, self._outlooks.get(one.name), self._transfer(one), width, is_looking=self._is_looking)
            for one in self._listed
        ]
        self._show_rows(options, rows)
        self._draw_details()

    def _show_rows(self, options: OptionList, rows: list[Content]) -> None:
        if len(rows) == options.option_count:
            for place, (old, new) in enumerate(zip(self._drawn, rows, strict=True)):
                if not old.is_same(new):
                    options.replace_option_prompt_at_index(place, new)
        else:
            place = min(options.highlighted or 0, len(rows) - 1)
            options.clear_options().add_options([Option(row) for row in rows])
            options.highlighted = place
        self._drawn = rows

    def _draw_details(self) -> None:
        if listed := self.chosen:
            self.query_one("#about", Line).show(Content("\n").join(self._details(listed)))

    def _details(self, listed: Listed) -> Iterator[Content]:
        from localmoe.tui.model_words import about, verdict, versions
        from localmoe.tui.transfer_words import transfer_lines

        title = f"  {printable(listed.entry.title)}" if listed.entry.title != listed.name else ""
        yield Content.assemble((printable(listed.name), "bold $primary"), (title, "bold"))
        if what := about(listed):
            yield Content.styled(printable(what), _FAINT)
        for text in (listed.entry.note, *versions(listed)):
            if text:
                yield Content.styled(printable(text), _FAINT)
        if outlook := self._outlooks.get(listed.name):
            yield Content(printable(verdict(outlook)))
        elif self._is_looking:
            yield Content.styled(_LOOKING, _FAINT)
        width = self.query_one("#about").content_region.width
        for transfer in dict.fromkeys((self._transfer(listed), self.transfers.active)):
            if transfer:
                yield from transfer_lines(transfer, width)

    def _transfer(self, listed: Listed) -> Transfer | None:
        return self.transfers.of(listed.name)
