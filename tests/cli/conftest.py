"""A home of its own for every test of the command line, and a hub on this machine with one model."""

import pytest
import tiny
from inside import Inside
from loopback_hub import Repo, files_in, serving
from process import Home

REPO = "someone/Tiny-MoE"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return Home(tmp_path / "home")


@pytest.fixture(scope="session")
def model_files(tmp_path_factory):
    """Three shards that run."""
    return files_in(tiny.make_checkpoint(tmp_path_factory.mktemp("tiny"), shards=3))


@pytest.fixture
def hub(model_files):
    with serving({REPO: Repo(dict(model_files))}) as running:
        yield running


@pytest.fixture
def inside(tmp_path, monkeypatch, hub):
    """`localmoe` in this process, with that hub."""
    (tmp_path / "home").mkdir(exist_ok=True)
    made = Inside(tmp_path / "home", monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    return made


@pytest.fixture
def home_of_hub(home, hub):
    home.env |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home.folder / "hf")}
    return home
