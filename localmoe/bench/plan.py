"""Suite plan: what the model of cost predicts of a model on this machine, beside what the engine then does.

The rates behind a prediction are measured right before the model is run, so that both see the same machine. Of a few
rounds the best counts, as it does there: other programs only ever make one slower. A ratio above 1 means that the model
is faster than predicted.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from localmoe.bench import answers
from localmoe.bench.answers import Case, NotMeasuredError
from localmoe.bench.checkpoint import LARGE, large_checkpoint
from localmoe.bench.machine import measure_machine
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.cost.predict import forecast_decode, forecast_prefill
from localmoe.engine.cost.rates import Rates
from localmoe.engine.engine import Engine
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.request import EngineFace
from localmoe.engine.trial import config_of, cpu_placement
from localmoe.errors import LocalmoeError
from localmoe.hardware import Machine
from localmoe.hub.catalog import resolve
from localmoe.settings import Settings

CASES = tuple(Case("prefill", n, 1) for n in (512, 2048)) + tuple(Case("decode", n, 64) for n in (128, 3072))
EMBEDDED = "guide"
NUM_ROUNDS = 3
ROUNDS_S = 60.0  # no further round of a model is begun after this
AGAINST = "predicted from rates measured just before"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, as rows call it, and as an engine opens it."""

    name: str
    folder: Path
    model: str


def measure(machine: Machine, settings: Settings, model: str | None, listener: Listener) -> Iterator[Row]:
    """Rows `prefill-N-MODEL` and `decode-N-MODEL` in tokens per second.

    Without a `model`, of the embedded one and of two that are made for it, as far as disk and memory allow.
    """
    for subject in _subjects(model, listener):
        rates = rates_of(machine, measure_machine(machine, settings, listener, subject.folder))
        listener.progress(f"opening {subject.name}")
        context = max(case.context for case in CASES)
        chosen = replace(settings, context=context, origins={**settings.origins, "context": "flag"})
        with closing(Engine.open(subject.model, chosen)) as engine:
            yield from _rows(engine, subject, rates, settings, listener)


def predicted_tok_s(case: Case, subject: Subject, rates: Rates, settings: Settings) -> float:
    """Tokens per second of `case`, decode halfway through its answer."""
    config, placement = config_of(subject.folder), cpu_placement(settings)
    if case.suite == "prefill":
        return forecast_prefill(rates, config, placement, case.num_tokens).tok_s
    return forecast_decode(rates, config, placement, case.num_tokens + case.num_decoded // 2).tok_s


def _subjects(model: str | None, listener: Listener) -> Iterator[Subject]:
    wanted = model or EMBEDDED
    named = resolve(wanted)
    yield Subject(named.name, named.folder, wanted)
    for name in () if model else LARGE:
        try:
            folder = large_checkpoint(name, listener)
            yield Subject(name, folder, str(folder))
        except LocalmoeError as error:
            listener.warn(f"{name} is left out: {error.message}")


def _rows(engine: EngineFace, subject: Subject, rates: Rates, settings: Settings, listener: Listener) -> Iterator[Row]:
    found = _found(engine, subject, listener)
    for case, values in found.items():
        row = Row("plan", f"{case.name}-{subject.name}", "tok_s", max(values), "tok/s", isa=engine.info.isa)
        yield compared(row, predicted_tok_s(case, subject, rates, settings), AGAINST)


def _found(engine: EngineFace, subject: Subject, listener: Listener) -> dict[Case, list[float]]:
    """Tokens per second of each case, a few times over."""
    answers.warm_up(engine)
    found: dict[Case, list[float]] = {}
    start_s = time.monotonic()
    for number in range(NUM_ROUNDS):
        if number and time.monotonic() - start_s > ROUNDS_S:
            break
        for case in CASES:
            listener.progress(f"{case.name} with {subject.name}")
            try:
                found.setdefault(case, []).append(answers.rate(engine, case, number))
            except NotMeasuredError as reason:
                listener.warn(f"{case.name} of {subject.name} is left out of round {number + 1}: {reason}")
    return {case: values for case, values in found.items() if values}
