"""Which pieces are captured, and when they are replayed, with graphs that only count."""

import pytest

from localmoe.kernels.gpu.graphs import MOST_SHAPES, Graphs


class Noted:
    """A graph that notes what it is asked for."""

    def __init__(self, told):
        self._told = told

    def capture(self, issue):
        self._told.append("capture")
        issue()

    def replay(self):
        self._told.append("replay")


@pytest.fixture
def told():
    return []


@pytest.fixture
def graphs(told):
    return Graphs(lambda: Noted(told))


def test_a_piece_is_issued_then_captured_then_only_replayed(graphs, told):
    for _ in range(4):
        graphs.run((3, 3), (0, 7), lambda: told.append("issue"))
    assert told == ["issue", "capture", "issue", "replay", "replay", "replay"]


def test_pieces_of_other_ops_shapes_and_groups_are_others(graphs, told):
    first, second = object(), object()
    for shape, piece, reads in [(1, 2, None), (2, 2, None), (1, 3, None), (1, 2, first), (1, 2, second)]:
        graphs.run(shape, piece, lambda: told.append("issue"), reads)
    assert told == ["issue"] * 5


def test_what_fails_while_it_is_captured_is_captured_again(graphs, told):
    graphs.run(1, 1, lambda: None)
    with pytest.raises(ZeroDivisionError):
        graphs.run(1, 1, lambda: 1 // 0)
    graphs.run(1, 1, lambda: None)
    assert told == ["capture", "capture", "replay"]


def test_shapes_that_have_not_come_for_long_are_forgotten(graphs, told):
    for shape in [*range(MOST_SHAPES + 1), 0, MOST_SHAPES]:
        graphs.run(shape, 1, lambda: told.append("issue"))
    assert told == ["issue"] * (MOST_SHAPES + 2) + ["capture", "issue", "replay"]


def test_all_is_forgotten_where_memory_moves(graphs, told):
    graphs.run(1, 1, lambda: told.append("issue"))
    graphs.forget()
    graphs.run(1, 1, lambda: told.append("issue"))
    assert told == ["issue", "issue"]
