"""Parts of the engine's work alone, for those who measure: choosing a token, and what a model would need."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from localmoe.decode.sampler import Sampler
from localmoe.engine.cost.placement import Placement
from localmoe.engine.request import Sampling
from localmoe.hub.checkpoint import Checkpoint
from localmoe.model.config import ModelConfig, read_config
from localmoe.settings import Settings

CHAT = Sampling(temperature=0.6, top_p=0.95)  # as most models of the catalogue are sampled
NUM_CHOICES = 8


def choice_s(vocab: int) -> float:
    """Seconds in which a token is chosen from logits of that many entries, new ones each time: the least of a few."""
    logits = np.random.default_rng(0).standard_normal(vocab, np.float32)
    sampler, best_s = Sampler(replace(CHAT, seed=0)), float("inf")
    for _ in range(NUM_CHOICES):
        start_s = time.perf_counter()
        sampler.pick(logits.copy())
        best_s = min(best_s, time.perf_counter() - start_s)
    return max(best_s, 1e-9)


def config_of(folder: Path) -> ModelConfig:
    """The config of the checkpoint in `folder`; errors as when it is opened."""
    return read_config(Checkpoint.open(folder).config)


def cpu_placement(settings: Settings) -> Placement:
    """How the CPU engine runs a model: all in DRAM, chunks and cache as set."""
    return Placement(chunk=settings.prefill_chunk, cache_element_bytes=2 if settings.cache_dtype == "bf16" else 4)
