from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from backends import open_engine
from planned import GB, SLOW, gpus
from tiny import SHAPES, make_checkpoint

from localmoe.engine import opening
from localmoe.engine.engine import Engine

BACKENDS = ["reference", "cpu"]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("engine") / "tiny", **SHAPES["v3"]))


@pytest.fixture(scope="module", params=BACKENDS)
def engine(request, checkpoint) -> Iterator[Engine]:
    """One engine for all tests of a module that leave it open."""
    engine = open_engine(checkpoint, request.param, prefill_chunk=32, context=512)
    yield engine
    engine.close()


@pytest.fixture(params=BACKENDS)
def opener(request, checkpoint) -> Callable[..., Engine]:
    """Opens engines with settings, and a model, of the test's own."""
    return lambda model=checkpoint, **options: open_engine(model, request.param, **options)


@pytest.fixture
def with_gpus(monkeypatch) -> Callable[..., None]:
    """This machine, with so many GPUs."""
    probe = opening.probe

    def set_up(count, rates=SLOW):
        def found(**options):
            machine = probe(**{**options, "asks_driver": False})
            return replace(machine, gpus=gpus(*[32 * GB] * count), limits=replace(machine.limits, locks_freely=True))

        monkeypatch.setattr(opening, "probe", found)
        monkeypatch.setattr(opening, "_rates", lambda machine: rates)

    return set_up
