"""Suite kernels: the native kernels beside the fastest streaming read of the same bytes."""

from collections.abc import Iterator

from localmoe.bench.rows import Note, Row
from localmoe.settings import Settings


def measure(settings: Settings, note: Note) -> Iterator[Row]:
    """Nothing yet."""
    yield from ()
