"""From names of suites to a report."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches
from typing import Literal

from localmoe.bench import answers, kernels, load, on_gpu, plan, slp, startup, tui
from localmoe.bench.checkpoint import bench_checkpoint
from localmoe.bench.mixed import suite as mixed
from localmoe.bench.rows import Listener, Report, Row
from localmoe.engine.engine import Engine
from localmoe.engine.gpu_trials import require_gpu
from localmoe.engine.plan_json import plan_json
from localmoe.engine.request import EngineInfo
from localmoe.errors import UsageError
from localmoe.hardware import probe
from localmoe.hub.catalog import resolve
from localmoe.settings import Settings, cache_dir

Device = Literal["host", "cuda"]
DEVICES: tuple[Device, ...] = ("host", "cuda")
SUITES = ("kernels", "load", "prefill", "decode", "slp", "mixed", "plan", "startup", "tui")


def run_suites(suites: tuple[str, ...], settings: Settings, listener: Listener, device: Device = "host") -> Report:
    """Measures `suites`, in their order, on this machine's CPU, or with its GPU (NotReadyError where none can be)."""
    machine = probe(paths={"bench": cache_dir()})
    if device == "cuda":
        on_gpu.check_suites(suites)
        require_gpu(machine)
        settings = on_gpu.on_gpu(settings)
    model = settings.model if _names_model(settings) else None
    name = resolve(model).name if model else None  # refused before minutes of measuring
    rows: list[Row] = []
    info: EngineInfo | None = None
    if "kernels" in suites:
        rows += on_gpu.kernels(machine, listener) if device == "cuda" else kernels.measure(settings, listener)
    if "load" in suites:
        rows += load.measure(model, listener)
    if answered := tuple(suite for suite in suites if suite in answers.CASES):
        with closing(_open(answered, settings, listener)) as engine:
            info = engine.info
            rows += _answered(engine, answered, listener)
    if "slp" in suites and device == "cuda":
        rows += on_gpu.streamed(machine, model, listener)
    elif "slp" in suites:
        rows += slp.measure(settings, model, listener)
    if "mixed" in suites:
        rows += mixed.measure(settings, model, listener)
    if "plan" in suites:
        rows += plan.measure(machine, settings, model, listener)
    if "startup" in suites:
        rows += startup.measure(model, listener)
    if "tui" in suites:
        rows += tui.measure(settings, model, listener)
    num_threads = info.num_threads if info else kernels.num_workers(settings)
    decided = plan_json(info) if info else None
    return Report(machine.to_json(), info.model if info else name, decided, tuple(rows), num_threads)


def parse_suites(names: str) -> tuple[str, ...]:
    """The suites in `names`, which commas part, in the order of SUITES; UsageError for an unknown one."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    for name in sorted(wanted - set(SUITES)):
        close = get_close_matches(name, SUITES, n=1)
        hint = f"did you mean {close[0]}?" if close else ""
        raise UsageError(f"there is no suite {name!r}", f"{hint} known: {', '.join(SUITES)}".strip())
    if not wanted:
        raise UsageError("no suite is named", f"known: {', '.join(SUITES)}")
    return tuple(suite for suite in SUITES if suite in wanted)


def parse_device(name: str) -> Device:
    """One of DEVICES; UsageError for another."""
    for device in DEVICES:
        if name == device:
            return device
    raise UsageError(f"there is no device {name!r}", f"known: {', '.join(DEVICES)}")


def _open(suites: tuple[str, ...], settings: Settings, listener: Listener) -> Engine:
    """The model that was asked for, or the benchmark's own, with room for all cases."""
    model = settings.model if _names_model(settings) else str(bench_checkpoint(listener))
    listener.progress(f"opening {model}")
    origins = {**settings.origins, "context": "flag"}  # as if --context had been given
    return Engine.open(model, replace(settings, context=answers.context_for(suites), origins=origins))


def _names_model(settings: Settings) -> bool:
    """Whether this run is about a certain model; what config.toml says is about chats."""
    return settings.origin("model") in ("flag", "environment")


def _answered(engine: Engine, suites: tuple[str, ...], listener: Listener) -> Iterator[Row]:
    for suite in suites:
        yield from answers.measure(engine, suite, listener)
