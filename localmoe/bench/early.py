"""Rows of tokens that cross between a device and the CPU: how many of their bytes do so beside attention.

The model lies in memory; a host device attends, and the CPU computes the experts, so that every row crosses twice.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

from localmoe.bench.kernels import num_workers
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.early_trial import ResidentModel
from localmoe.errors import OutOfMemoryError
from localmoe.settings import Settings

NUM_TOKENS = 1024  # as many as a plan gives to a GPU and the CPU at once
NUM_ROUNDS = 5
WHOLE = 1  # tile: what crosses waits for all tokens


def measure(folder: Path, settings: Settings, listener: Listener, num_tokens: int = NUM_TOKENS) -> Iterator[Row]:
    """Row `early-move`: the share of bytes under attention in tiles, beside the same of a prompt in one piece."""
    listener.progress(f"early-move: {num_tokens:,} tokens whose experts the CPU computes beside a device")
    try:
        opened = ResidentModel(folder, num_workers(settings), settings.isa, num_tokens)
    except OutOfMemoryError as error:
        listener.warn(f"early-move is left out: {error.message}")
        return
    with closing(opened) as model:
        found, whole = (_share(model, num_tokens, tiles) for tiles in (None, WHOLE))
    listener.progress(f"early-move: {whole:.0%} of the bytes when the prompt is one piece")
    row = Row("slp", "early-move", "share", found, "x", isa=model.isa)
    yield compared(row, 1.0, "all bytes that cross under attention")


def _share(model: ResidentModel, num_tokens: int, num_tiles: int | None) -> float:
    with closing(model.trial() if num_tiles is None else model.trial(num_tiles)) as trial:
        trial.hidden(num_tokens)  # touches memory
        return median(trial.hidden(num_tokens) for _ in range(NUM_ROUNDS))
