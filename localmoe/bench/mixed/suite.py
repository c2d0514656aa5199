"""All of suite mixed, in minutes."""

from collections.abc import Iterator

from localmoe.bench.checkpoint import mixed_checkpoint
from localmoe.bench.kernels import make_workers
from localmoe.bench.mixed import beside, goodput, preempt
from localmoe.bench.rows import Listener, Row
from localmoe.engine.instance import opened
from localmoe.settings import Settings


def measure(settings: Settings, model: str | None, listener: Listener) -> Iterator[Row]:
    """Rows of both phases at once on the CPU: beside each other, what urgent tiles wait, and goodput."""
    yield from preempt.measure(make_workers(settings), listener)
    name = model or str(mixed_checkpoint(listener))
    listener.progress(f"opening {name}")
    with opened(settings, name) as ground:
        yield from beside.measure(ground, listener)
        yield from goodput.measure(ground, listener)
