"""What the screens ask of whoever knows this machine. The command line hands it in: its doctor does the work."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from localmoe.engine.outlook import Outlook
    from localmoe.hub.download.plan import DownloadPlan
    from localmoe.settings import Settings


class Fix(Protocol):
    """Words, then shell lines; both empty where there is nothing to change."""

    @property
    def text(self) -> str: ...

    @property
    def commands(self) -> tuple[str, ...]: ...


class Finding(Protocol):
    """One thing about this machine, and what to change."""

    @property
    def label(self) -> str: ...

    @property
    def status(self) -> Literal["ok", "warn", "fail"]: ...

    @property
    def detail(self) -> str: ...

    @property
    def fix(self) -> Fix: ...


class Listener(Protocol):
    """Hears of a measurement."""

    def progress(self, text: str) -> None:
        """What begins now; may raise CancelledError to end it."""
        ...

    def warn(self, text: str) -> None:
        """What a reader of the figures has to know."""
        ...


class Surveyor(Protocol):
    """Every call may take seconds: not for the screen's thread."""

    def title(self) -> str:
        """This machine in a few words."""
        ...

    def findings(self) -> Iterator[Finding]:
        """Each as soon as it is known."""
        ...

    def outlooks(self) -> "Mapping[str, Outlook]":
        """Of every model that is known or here, by name; LocalmoeError where the settings forbid all plans."""
        ...

    def outlook(self, plan: "DownloadPlan") -> "Outlook":
        """Of a model that may be fetched. UnsupportedModelError where localmoe does not run it."""
        ...

    def notes(self, found: "Sequence[Outlook]") -> tuple[str, ...]:
        """What to know of these figures."""
        ...

    def best(self) -> "Outlook | None":
        """The best real model that would run here; None: none would at a useful speed."""
        ...

    def measure(self, listener: Listener) -> None:
        """Measures this machine, about ten seconds; from then on forecasts rest on it."""
        ...


OpenSurveyor = Callable[[], Surveyor]  # may take a while too, the first time
SurveyorFor = Callable[["Settings"], Surveyor]
