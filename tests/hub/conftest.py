"""A loopback hub with one model, and a home without a cache."""

from pathlib import Path

import pytest
import shards
from loopback_hub import LoopbackHub, serving
from pulling import REPO, repo_of


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """HF_HOME of its own; no token, no hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "hf" / "hub"


@pytest.fixture(scope="session")
def model_files(tmp_path_factory):
    return repo_of(shards.make(tmp_path_factory.mktemp("model"), num_shards=3)).files


@pytest.fixture
def big_hub(cache, monkeypatch, model_files) -> LoopbackHub:
    """Has REPO, three shards of about 0.3 MB."""
    from loopback_hub import Repo

    with serving({REPO: Repo(dict(model_files))}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running
