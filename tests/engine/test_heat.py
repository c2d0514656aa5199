"""Which experts were chosen: counted by layer, forgotten after a while."""

import numpy as np

from localmoe.engine.heat import LOOK_EVERY_S, MOST_CELLS, WINDOW_S, ExpertHeat


def test_choices_are_counted_by_layer():
    heat = ExpertHeat(num_layers=3, num_dense=1, num_experts=4)
    heat.add(np.array([[[0, 3]], [[1, 3]]], np.int32), 10.0)
    heat.add(np.array([[[0, 2], [0, 1]], [[-1, -1], [3, 0]]], np.int32), 10.5)
    event = heat.event(10.6)
    assert (event.first_layer, event.num_experts, event.num_steps) == (2, 4, 2)
    assert event.layers == ((3, 1, 1, 1), (1, 1, 0, 2))


def test_old_steps_are_forgotten():
    heat = ExpertHeat(1, 0, 4)
    heat.add(np.array([[[0]]], np.int32), 10.0)
    heat.add(np.array([[[2]]], np.int32), 12.0)
    assert heat.event(10.0 + WINDOW_S).layers == ((0, 0, 1, 0),)
    assert heat.event(12.0 + WINDOW_S) is None


def test_many_experts_are_told_in_runs():
    heat = ExpertHeat(1, 0, 384)
    heat.add(np.array([[[0, 11, 12, 383]]], np.int32), 1.0)
    cells = heat.event(1.0).layers[0]
    assert len(cells) == MOST_CELLS
    assert cells[:2] == (2, 1) and cells[-1] == 1 and sum(cells) == 4


def test_steps_are_looked_at_now_and_then():
    heat = ExpertHeat(1, 0, 4)
    assert heat.is_due(1.0)
    heat.add(np.array([[[0]]], np.int32), 1.0)
    assert not heat.is_due(1.0 + 0.9 * LOOK_EVERY_S)
    assert heat.is_due(1.0 + 1.1 * LOOK_EVERY_S)
    assert not ExpertHeat(3, 3, 0).is_due(9.0)
