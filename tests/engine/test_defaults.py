from dataclasses import replace

import pytest

from localmoe.engine.defaults import sampling_defaults, stop_tokens
from localmoe.engine.request import Sampling
from localmoe.errors import CheckpointError, UsageError
from localmoe.hub.catalog import load_catalog
from localmoe.settings import Settings

ENTRY = replace(load_catalog()["deepseek-v3"], temperature=0.3, top_p=0.9)


def test_settings_come_before_the_models_file_before_the_catalogue():
    generation = {"temperature": 0.5, "top_p": None, "eos_token_id": 1}
    assert sampling_defaults(Settings(), {}, None) == Sampling()
    assert sampling_defaults(Settings(), {}, ENTRY) == Sampling(0.3, 0.9)
    assert sampling_defaults(Settings(), generation, ENTRY) == Sampling(0.5, 0.9)
    chosen = Settings(temperature=0.0, seed=3, min_p=0.1)
    assert sampling_defaults(chosen, generation, ENTRY) == Sampling(0.0, 0.9, 0.1, seed=3)


def test_a_model_that_does_not_sample_is_greedy():
    assert sampling_defaults(Settings(), {"do_sample": False, "temperature": 0.5}, None).temperature == 0


@pytest.mark.parametrize("generation", [{"temperature": "hot"}, {"top_p": True}, {"top_p": 7}, {"temperature": -1}])
def test_nonsense_in_the_models_file_is_named(generation):
    with pytest.raises(CheckpointError, match="generation_config"):
        sampling_defaults(Settings(), generation, None)


def test_nonsense_in_settings_is_the_users():
    with pytest.raises(UsageError):
        sampling_defaults(Settings(top_p=7), {}, None)


@pytest.mark.parametrize(("eos", "ids"), [(None, set()), (1, {1}), ([1, 2], {1, 2}), ([], set())])
def test_stop_tokens_may_be_one_or_many(eos, ids):
    assert stop_tokens({"eos_token_id": eos}) == ids


@pytest.mark.parametrize("eos", ["1", [None], -1, True, {"a": 1}])
def test_stop_tokens_must_be_ids(eos):
    with pytest.raises(CheckpointError, match="eos_token_id"):
        stop_tokens({"eos_token_id": eos})
