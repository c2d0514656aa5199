"""Who knows a machine that was recorded, for the chat's pages."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event as Signal

from recorded import recorded

from localmoe.cli.doctor.checks import check_machine
from localmoe.cli.doctor.command import notes_of
from localmoe.cli.doctor.page import title_of
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.outlook import Outlook, best_model, outlook, outlooks, plannable
from localmoe.errors import LocalmoeError
from localmoe.hardware import Machine
from localmoe.hub.catalog import local_models, other_models
from localmoe.model.config import read_config
from localmoe.settings import Settings

PAPER = "dual-epyc-9355-2x5090"
LAPTOP = "laptop-1260p-16gb"
IN_MEMORY = Path("/dev/shm")  # a machine is thousands of files
FREE_BYTES = 1_900_000_000_000


@cache
def machine(name: str) -> Machine:
    with TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        found = recorded(name, Path(folder)).probe()
    return replace(found, disks=tuple(replace(disk, free_bytes=FREE_BYTES) for disk in found.disks))


BEST: dict[tuple[Machine, str], Outlook | None] = {}  # seconds of planning, the same for every greeting


class RecordedSurveyor:
    """The real checks and forecasts of a recorded machine; `steps` are what a measurement says of its progress."""

    def __init__(self, name: str = PAPER, settings: Settings = Settings(), fails: LocalmoeError | None = None) -> None:  # noqa: B008
        self.machine, self.settings, self.fails = machine(name), settings, fails
        self.may_go_on = Signal()  # a measurement waits in the middle for it
        self.may_go_on.set()
        self.num_findings: int | None = None  # it looks no further than this
        self.num_measured = 0

    def __call__(self, settings: Settings) -> "RecordedSurveyor":
        self.settings = settings
        return self

    def title(self):
        return title_of(self.machine)

    def findings(self):
        for place, check in enumerate(check_machine(self.machine, self.settings.isa)):
            if place == self.num_findings:
                self.may_go_on.wait(20)
            yield check

    def outlooks(self):
        if self.fails:
            raise self.fails
        local = [*local_models(), *other_models()]
        present = [model.entry.name for model in local if model.state == "present"]
        entries = plannable(model.entry for model in local)
        found = outlooks(self.machine, self.settings, rates_of(self.machine), entries, present)
        return {one.name: one for one in found}

    def outlook(self, plan):
        config = read_config(plan.config)
        return outlook(self.machine, self.settings, rates_of(self.machine), plan.name, config, on_disk=plan.is_complete)

    def notes(self, found):
        return tuple(notes_of(found, None))

    def best(self):
        key = (self.machine, repr(self.settings))
        if key not in BEST:
            BEST[key] = best_model(self.machine, self.settings)
        return BEST[key]

    def measure(self, listener):
        listener.progress("a streaming read")
        self.may_go_on.wait(20)
        listener.progress("matrix times vector")
        if self.fails:
            raise self.fails
        self.num_measured += 1


Survey = Callable[[Settings], RecordedSurveyor]
