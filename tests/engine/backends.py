"""Engines on either backend."""

from localmoe.engine.engine import Engine
from localmoe.settings import Settings


def open_engine(model, backend: str, on_event=None, **settings) -> Engine:
    """An engine on a tiny checkpoint."""
    if backend == "cpu":
        return Engine.open(str(model), Settings(**settings), on_event)
    import torch
    from reference_backend import ReferenceBackend

    torch.set_num_threads(1)
    return Engine.open(str(model), Settings(**settings), on_event, backend=ReferenceBackend())
