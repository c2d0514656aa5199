import itertools
from pathlib import Path

import numpy as np
import pytest

from localmoe.hub.checkpoint import TensorInfo
from localmoe.weights.pieces import BLOCK_BYTES, ITEM_BYTES, cut

PIECE = 2 * BLOCK_BYTES


def tensor(file: str, dtype: str, count: int, start: int) -> TensorInfo:
    name = f"{file}.{start}"
    return TensorInfo(name, dtype, (count,), Path(file), start, start + count * ITEM_BYTES[dtype])


def packed(seed: int) -> list[TensorInfo]:
    """Two files full of tensors of all dtypes, each where the last one ends: also at odd bytes."""
    rng, found = np.random.default_rng(seed), []
    for file in ("b", "a"):
        at = int(rng.integers(9, 300))
        for _ in range(20):
            dtype = list(ITEM_BYTES)[rng.integers(3)]
            found.append(tensor(file, dtype, int(rng.choice([1, 3, 700, 5000])), at))
            at = found[-1].stop
    return found


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_comes_once_and_in_order(seed):
    tensors = packed(seed)
    pieces = list(cut(reversed(tensors), PIECE))
    parts = [part for piece in pieces for part in piece.parts]
    for one in tensors:
        mine = [(part.start, part.stop) for part in parts if part.tensor is one]
        assert (mine[0][0], mine[-1][1]) == (one.start, one.stop)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(mine))
        assert all((stop - start) % ITEM_BYTES[one.dtype] == 0 for start, stop in mine)
    assert [str(piece.file) for piece in pieces] == sorted(str(piece.file) for piece in pieces)
    for one, other in itertools.pairwise(pieces):
        if one.file == other.file:
            assert other.start >= one.stop // BLOCK_BYTES * BLOCK_BYTES
            assert other.start - one.start == PIECE or one is pieces[0] or one.start % PIECE
    for piece in pieces:
        assert piece.start % BLOCK_BYTES == 0
        assert piece.stop - piece.start <= PIECE + BLOCK_BYTES
        assert piece.wanted_bytes == sum(part.stop - part.start for part in piece.parts)


def test_aligned_elements_are_never_read_twice():
    pieces = list(cut([tensor("a", "F32", 50_000, 256)], PIECE))
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]


def test_what_no_one_asks_for_is_not_read():
    first, second, far = (tensor("a", "F8_E4M3", 10, start) for start in (0, 300, 50 * PIECE + 5))
    one, other = cut([first, second, far], PIECE)
    assert (one.start, one.stop, one.wanted_bytes) == (0, 310, 20)
    assert (other.start, other.stop) == (50 * PIECE, 50 * PIECE + 15)


def test_empty_tensors_take_no_reads():
    assert list(cut([tensor("a", "F32", 0, 100)], PIECE)) == []
