import importlib.util
from collections.abc import Callable, Iterator

import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.engine.engine import Engine
from localmoe.settings import Settings

BACKENDS = ["reference", "cpu"]


def open_engine(model, backend: str, on_event=None, **settings) -> Engine:
    """An engine on a tiny checkpoint."""
    if backend == "cpu":
        if importlib.util.find_spec("localmoe._native") is None:
            pytest.skip("the native module is not built")
        return Engine.open(str(model), Settings(**settings), on_event)
    import torch
    from reference_backend import ReferenceBackend

    torch.set_num_threads(1)
    return Engine.open(str(model), Settings(**settings), on_event, backend=ReferenceBackend())


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
