"""Doctor for the chat's screens: the same checks and forecasts, each when it is asked for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from localmoe.bench.rows import Listener
from localmoe.cli.doctor.check import Check
from localmoe.cli.doctor.checks import check_devices, check_host
from localmoe.cli.doctor.command import notes_of
from localmoe.cli.doctor.page import title_of
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.measured import Measured, load_measured
from localmoe.engine.outlook import Outlook, best_model, outlooks, plannable
from localmoe.hardware import Machine, probe
from localmoe.hub.catalog import local_models, other_models
from localmoe.hub.hf_cache import cache_folder
from localmoe.settings import Settings, data_dir

if TYPE_CHECKING:
    from localmoe.hub.download.plan import DownloadPlan


class LiveSurveyor:
    """Looks anew at every call: disks fill, limits change."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def title(self) -> str:
        """This machine in a few words."""
        return title_of(_probe())

    def findings(self) -> Iterator[Check]:
        """What the kernel tells, at once; then what the GPUs' driver does, which may take a second."""
        machine = _probe(asks_driver=False)
        yield from check_host(machine, self._settings.isa, load_measured(machine))
        machine = _probe()
        yield from check_devices(machine, load_measured(machine))

    def outlooks(self) -> Mapping[str, Outlook]:
        """Of the catalogue and of what else is in the cache, as far as the config is known."""
        machine = _probe()
        rates = rates_of(machine, load_measured(machine))
        local = [*local_models(), *other_models()]
        present = [model.entry.name for model in local if model.state == "present"]
        entries = plannable(model.entry for model in local)
        return {one.name: one for one in outlooks(machine, self._settings, rates, entries, present)}

    def outlook(self, plan: "DownloadPlan") -> Outlook:
        """Of a model that may be fetched. UnsupportedModelError where localmoe does not run it."""
        from localmoe.cli.pull import outlook_of

        return outlook_of(plan, self._settings)

    def notes(self, found: Sequence[Outlook]) -> tuple[str, ...]:
        """As below doctor's table."""
        return tuple(notes_of(found, self._measured()))

    def best(self) -> Outlook | None:
        """The best real model that would run here; None: none would at a useful speed."""
        machine = _probe()
        return best_model(machine, self._settings, load_measured(machine))

    def measure(self, listener: Listener) -> None:
        """About ten seconds; kept for everything that asks later."""
        from localmoe.bench.machine import measure_and_save

        measure_and_save(_probe(), self._settings, listener)

    def _measured(self) -> Measured | None:
        return load_measured(_probe())


def _probe(*, asks_driver: bool = True) -> Machine:
    return probe(paths={"models": cache_folder(), "data": data_dir()}, asks_driver=asks_driver)
