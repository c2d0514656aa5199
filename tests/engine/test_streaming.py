"""Streamed models in parts: the compute alone is the same work as the whole, without the transfer."""

from contextlib import closing

import numpy as np
import pytest
import tiny

from localmoe.engine.streaming import Shape, StreamedModel, StreamTrial

NUM_EXPERTS, TOP_K = tiny.V3["n_routed_experts"], tiny.V3["num_experts_per_tok"]
NUM_TOKENS = 64


@pytest.fixture
def model(tmp_path):
    """One whose experts lie at another place of a block in each layer, and in each second expert."""
    folder = tiny.make_checkpoint(tmp_path / "model", num_hidden_layers=4)
    with closing(StreamedModel(folder, 2, None, 2 * NUM_TOKENS)) as model:
        starts = {span.start % 4096 for layer in model.files._layers for span in layer.ranges}
        assert len(starts) == 6
        yield model


@pytest.mark.parametrize("shape", [Shape(8, 4), Shape(3, 2), Shape(5, 1)], ids=str)
def test_compute_alone_takes_weights_for_what_they_are(model, shape):
    with closing(StreamTrial(model, shape)) as trial:
        for measured in (trial.wall_s, trial.compute_s, trial.compute_s):
            measured(NUM_TOKENS)
            chosen = trial.pipeline.last_experts
            assert [len(np.unique(layer[layer >= 0])) for layer in chosen] == [NUM_EXPERTS, NUM_EXPERTS, TOP_K]
            assert np.isfinite(trial.pipeline._lanes[0].program.logits).all()


def test_nothing_is_loaded_while_compute_is_alone(model):
    with closing(StreamTrial(model, Shape(8, 4))) as trial:
        trial.wall_s(NUM_TOKENS)
        assert sum(trial.pipeline.loaded_bytes) > 0
        trial.compute_s(NUM_TOKENS)
        assert sum(trial.pipeline.loaded_bytes) == 0
        trial.transfer_s()
        assert sum(trial.pipeline.loaded_bytes) > 0
