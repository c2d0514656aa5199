from collections.abc import Callable, Iterator

import pytest
from backends import open_engine
from tiny import SHAPES, make_checkpoint

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
