"""All of it, in about ten seconds on two cores."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import localmoe
from localmoe.bench.kernels import make_workers
from localmoe.bench.machine.cores import measure_cores
from localmoe.bench.machine.disk import disk_bytes_s
from localmoe.bench.machine.steps import logit_s, step_s
from localmoe.bench.rows import Listener
from localmoe.engine.cost.rates import Rates
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.measured import Measured, save_measured
from localmoe.hardware import Machine
from localmoe.hub.hf_cache import cache_folder
from localmoe.settings import Settings


def measure_machine(machine: Machine, settings: Settings, listener: Listener, folder: Path) -> Measured:
    """Everything that the cost model asks of this machine; `folder` is the one whose disk is read.

    What cannot be measured is None, and `listener` is told why. UsageError where `settings` ask for kernels that
    this CPU does not run.
    """
    workers = make_workers(settings)
    found = Measured(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        version=localmoe.__version__,
        isa=workers.target,
        num_threads=int(workers.pool.num_workers),
        **measure_cores(machine, workers, listener),
    )
    del workers  # before an engine has its own
    listener.progress("choosing tokens")
    found = replace(found, logit_s=logit_s())
    listener.progress("a step of the embedded model")
    found = replace(found, step_s=step_s(settings, _without_steps(machine, found)))
    found = replace(found, disk_bytes_s=disk_bytes_s(folder, listener), disk_folder=str(folder))
    return with_gpus(machine, found, listener)


def measure_and_save(machine: Machine, settings: Settings, listener: Listener, folder: Path | None = None) -> Measured:
    """Measures, with the disk of the models if no other is named, and keeps it for `load_measured`.

    A cache folder that cannot be written only costs a warning: what was measured is returned all the same.
    """
    found = measure_machine(machine, settings, listener, folder or cache_folder())
    try:
        save_measured(machine, found)
    except OSError as error:
        listener.warn(f"what was measured is not kept: {error}")
    return found


def with_gpus(machine: Machine, found: Measured, listener: Listener) -> Measured:
    """With figures of the GPUs, where the probe found one. Without one torch is not imported."""
    if not machine.gpus:
        return found
    from localmoe.bench.machine.gpu import measure_gpus

    gpus, together = measure_gpus(machine, listener)
    return replace(found, gpus=gpus, h2d_together_bytes_s=together)


def _without_steps(machine: Machine, found: Measured) -> Rates:
    rates = rates_of(machine, found)
    return replace(rates, cpu=replace(rates.cpu, step=None))
