"""RoPE's frequencies and the softmax scale are transformers', bit by bit, so that far positions agree too."""

import copy

import numpy as np
import pytest
from tiny import V3, YARN
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding, yarn_apply_mscale

from localmoe.model.attention import mla_shape, rope
from localmoe.model.config import read_config

SCALINGS = {
    "none": None,
    "deepseek-v3": YARN,
    "deepseek-v2": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    "kimi-k2": YARN | {"factor": 32, "beta_fast": 1.0, "beta_slow": 1.0},
    "different-mscales": YARN | {"mscale": 1.0, "mscale_all_dim": 0.707},
    "one-mscale": {k: v for k, v in YARN.items() if k != "mscale_all_dim"},
    "no-mscales": {k: v for k, v in YARN.items() if not k.startswith("mscale")},
    "attention-factor": YARN | {"attention_factor": 1.25},
    "short-original": YARN | {"original_max_position_embeddings": 64},
    "not-truncated": YARN | {"truncate": False},
    "shrinking": YARN | {"factor": 0.5},
}


@pytest.mark.parametrize("dim", [2, 16, 64, 100])
@pytest.mark.parametrize("theta", [10000.0, 1e6])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_rope_is_that_of_transformers(scaling, theta, dim):
    config = V3 | {"rope_scaling": SCALINGS[scaling], "rope_theta": theta, "qk_rope_head_dim": dim}
    theirs = DeepseekV3Config(**copy.deepcopy({k: v for k, v in config.items() if k != "model_type"}))
    embedding = DeepseekV3RotaryEmbedding(theirs)
    ours = read_config(config)
    np.testing.assert_array_max_ulp(rope(ours).inv_freq, embedding.inv_freq.numpy(), 1)
    assert rope(ours).inv_freq.dtype == np.float32
    assert rope(ours).scale == pytest.approx(embedding.attention_scaling, rel=1e-7)
    softmax_scale = yarn_apply_mscale(theirs.rope_parameters, (32 + dim) ** -0.5)
    assert mla_shape(ours).softmax_scale == pytest.approx(softmax_scale, rel=1e-7)
