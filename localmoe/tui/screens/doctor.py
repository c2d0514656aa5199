"""Doctor: what this machine is, what holds it back, and what it could run. Each finding as soon as it is known."""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content

from localmoe.errors import CancelledError, LocalmoeError
from localmoe.tui.printable import printable
from localmoe.tui.screens.full_page import FullPageScreen
from localmoe.tui.surveyor import Finding, OpenSurveyor, Surveyor
from localmoe.tui.widgets.finding_row import FindingRow
from localmoe.tui.widgets.line import Line

if TYPE_CHECKING:
    from localmoe.engine.outlook import Outlook
    from localmoe.tui.model_list import Listed

FOLLOW_EVERY_S = 0.2
_FAINT = "$foreground 60%"
BUSY = "An answer is being made. Measure when it has ended: both would be wrong"
BEING_MEASURED = "This machine is being measured already"


class Progress:
    """What a measurement says, for another thread to read."""

    def __init__(self) -> None:
        self.text = ""
        self.warnings: list[str] = []
        self.is_left = False

    def progress(self, text: str) -> None:
        if self.is_left:
            raise CancelledError("doctor was left")
        self.text = text

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class DoctorScreen(FullPageScreen[None]):
    """`measuring` is held while a measurement runs; `is_busy` says whether an answer is being made."""

    DEFAULT_CSS = """
    DoctorScreen {
        & > #report { height: 1fr; padding: 1 1 0 2; }
        & #findings { height: auto; }
        & #models, & #notes { height: auto; margin-top: 1; }
        & #notes { color: $text-muted; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "measure", "Measure this machine", id="doctor.measure"),
        Binding("r", "look", "Look again", id="doctor.look"),
        Binding("c", "copy_fixes", "Copy the commands of all fixes", id="doctor.copy"),
    ]
    NAME = "doctor"
    KEYS = (("M", "measure, about 10 s"), ("C", "copy the fixes"), ("R", "look again"))

    def __init__(self, open_surveyor: OpenSurveyor, measuring: Lock, is_busy: Callable[[], bool]) -> None:
        super().__init__()
        self._open_surveyor, self._measuring, self._is_busy = open_surveyor, measuring, is_busy
        self._progress: Progress | None = None
        self._table: tuple[tuple[Listed, Outlook | None], ...] = ()

    def body(self) -> ComposeResult:
        with VerticalScroll(id="report"):
            yield Vertical(id="findings")
            yield Line(id="models")
            yield Line(id="notes")

    def on_mount(self) -> None:
        self.show_keys(self.KEYS)
        self.query_one("#report").focus()
        self.set_interval(FOLLOW_EVERY_S, self._follow)
        self.action_look()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_table)

    def on_unmount(self) -> None:
        if self._progress:
            self._progress.is_left = True

    # Looking

    @property
    def findings(self) -> list[Finding]:
        """Those that are known."""
        return [row.finding for row in self.query(FindingRow)]

    @work(exclusive=True, group="look")
    async def action_look(self, ending: str = "") -> None:
        """Every check anew, then every model; `ending` is said after them."""
        self.say("Checking …", _FAINT)
        try:
            surveyor = await self.away(self._open_surveyor)
            self.entitle(await self.away(surveyor.title))
            await self._check(surveyor)
            self.say("Looking what would run here …", _FAINT)
            await self._foresee(surveyor)
        except LocalmoeError as error:
            self.say_error(error)
        else:
            self.say(ending or _summary(self.findings))

    async def _check(self, surveyor: Surveyor) -> None:
        findings = self.query_one("#findings")
        await findings.remove_children()
        coming = iter(surveyor.findings())
        while (finding := await self.away(lambda: next(coming, None))) is not None:
            await findings.mount(FindingRow(finding))

    async def _foresee(self, surveyor: Surveyor) -> None:
        from localmoe.tui.model_list import list_models

        is_hopeless = any(finding.status == "fail" for finding in self.findings)
        outlooks = {} if is_hopeless else await self.away(surveyor.outlooks)
        listed = () if is_hopeless else await self.away(list_models)
        self._table = tuple((one, outlooks.get(one.name)) for one in listed)
        self._draw_table()
        notes = await self.away(lambda: surveyor.notes(tuple(outlooks.values())))
        self.query_one("#notes", Line).show(Content("\n".join(map(printable, notes))))

    def _draw_table(self) -> None:
        line = self.query_one("#models", Line)
        line.show(Content("\n").join(list(self._rows(line.content_region.width))))

    def _rows(self, width: int) -> Iterator[Content]:
        from localmoe.tui.model_rows import head_row, model_row

        if self._table and width > 0:
            yield head_row(width)
            for listed, outlook in self._table:
                yield model_row(listed, outlook, None, width, is_looking=False)

    # Measuring

    def action_measure(self) -> None:
        if self._is_busy():
            self.say(BUSY)
        elif not self._measuring.acquire(blocking=False):
            self.say(BEING_MEASURED)
        else:
            self._progress = Progress()
            self._measure(self._progress)

    @work(exclusive=True, group="look")
    async def _measure(self, progress: Progress) -> None:
        def measure() -> None:
            try:
                self._open_surveyor().measure(progress)
            finally:
                self._measuring.release()

        try:
            await self.away(measure)
        except CancelledError:
            return
        except LocalmoeError as error:
            self.say_error(error)
        else:
            self.action_look("\n".join(["Measured: forecasts rest on this machine's own figures", *progress.warnings]))
        finally:
            self._progress = None

    def _follow(self) -> None:
        if self._progress and self._progress.text:
            self.say(f"Measuring {self._progress.text} …", "$primary")

    # Fixes

    def action_copy_fixes(self) -> None:
        """All that can be pasted into a shell."""
        commands = [command for finding in self.findings for command in finding.fix.commands]
        if commands:
            self.app.copy_to_clipboard("\n".join(commands) + "\n")
            self.say(f"Copied {len(commands)} command{'s' * (len(commands) != 1)}")
        else:
            self.say("No fix here is a command")


def _summary(findings: list[Finding]) -> str:
    fails, warns = (sum(finding.status == status for finding in findings) for status in ("fail", "warn"))
    if fails:
        return f"localmoe cannot run here: {fails} of these must be fixed first"
    if warns:
        return f"{warns} thing{'s' * (warns != 1)} would make it faster, or let it do more"
    return "Nothing holds this machine back"
