"""What a model is, before its weights are here: from a folder, the catalogue or a hub on this machine."""

import json
from pathlib import Path

import pytest
import shards
import tiny
from small_hub import serving

from localmoe.errors import CheckpointError, HubError, LocalmoeError, ModelNotFoundError
from localmoe.hub import hf_cache
from localmoe.hub.catalog import local_models
from localmoe.hub.checkpoint import INDEX
from localmoe.hub.small_files import fetch_small_files, find_small_files

REPO = "someone/Their-MoE"
FILES = {
    f"{REPO}/config.json": json.dumps(tiny.DEEPSEEK_V3).encode(),
    f"{REPO}/{INDEX}": json.dumps({"metadata": {"total_size": 7e9}, "weight_map": {"a": "x.safetensors"}}).encode(),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """No cache anywhere, and no hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture
def hub(monkeypatch):
    with serving(dict(FILES)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def test_only_the_small_files_of_a_repository_are_fetched(hub, home):
    found = find_small_files(REPO)
    assert (found.name, found.config, found.total_bytes) == (REPO, tiny.DEEPSEEK_V3, 7_000_000_000)
    assert (found.state, found.entry) == ("absent", None)
    asked = {line.rpartition("/")[2] for line in hub.seen if "/resolve/" in line}
    assert asked == {"config.json", INDEX, "generation_config.json"}


def test_what_was_fetched_is_no_model_to_anybody(hub, home):
    folder = fetch_small_files(REPO)
    assert folder.is_relative_to(home / "cache" / "localmoe")
    assert not (home / "hf").exists()
    assert hf_cache.snapshot(REPO, "main") is None
    assert all(model.state == "absent" for model in local_models() if not model.entry.is_embedded)


def test_a_second_time_only_changes_are_fetched(hub):
    find_small_files(REPO)
    hub.seen.clear()
    find_small_files(REPO)
    assert not [line for line in hub.seen if line.startswith("GET") and "/resolve/" in line]
    hub.files[f"{REPO}/config.json"] = b'{"changed": true}'
    assert find_small_files(REPO).config == {"changed": True}


def test_what_was_fetched_before_serves_without_a_hub(hub, monkeypatch):
    find_small_files(REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert find_small_files(REPO).config == tiny.DEEPSEEK_V3


def test_a_repository_without_an_index(hub):
    del hub.files[f"{REPO}/{INDEX}"]
    assert find_small_files(REPO).total_bytes is None


def test_a_repository_without_a_config(hub):
    hub.files[f"{REPO}/model.gguf"] = hub.files.pop(f"{REPO}/config.json")
    with pytest.raises(CheckpointError, match=r"someone/Their-MoE has no config\.json on the hub") as caught:
        find_small_files(REPO)
    assert "GGUF" in caught.value.hint


@pytest.mark.parametrize(
    ("refuse", "message", "hint"),
    [
        ((401, "GatedRepo"), "only for those who accepted its terms", "hf auth login"),
        ((404, "RepoNotFound"), "has no someone/Their-MoE", "check the name"),
        ((404, "RevisionNotFound"), "has no revision main", "/tree/main"),
        ((401, ""), "answers 401", "hf auth login"),
        ((403, ""), "answers 403", "hf auth login"),
        ((429, ""), "answers 429", "wait a few minutes"),
        ((500, ""), "answers 500", "try again later"),
    ],
)
def test_a_hub_that_refuses(hub, refuse, message, hint):
    hub.refuse = refuse
    with pytest.raises(HubError, match=message) as caught:
        find_small_files(REPO)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 7


def test_no_hub():
    with pytest.raises(HubError, match=r"http://127.0.0.1:9 cannot be reached: .*refused") as caught:
        find_small_files(REPO)
    assert "HF_ENDPOINT" in caught.value.hint


def test_a_server_that_is_no_hub(monkeypatch):
    with serving(dict(FILES)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.refuse = (200, "")
        with pytest.raises(HubError, match=r"does not answer as a hub does: .*X-Repo-Commit"):
            find_small_files(REPO)


def test_offline(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set") as caught:
        find_small_files(REPO)
    assert "unset HF_HUB_OFFLINE" in caught.value.hint
    assert not [line for line in hub.seen if "/resolve/" in line]


def test_a_name_that_no_repository_can_have(hub):
    with pytest.raises(ModelNotFoundError, match="neither a folder nor"):
        find_small_files("a b/c..d")


def test_a_cache_that_cannot_be_written(hub, home):
    (home / "cache").write_text("a file")
    with pytest.raises(LocalmoeError, match="cannot be written") as caught:
        find_small_files(REPO)
    assert "XDG_CACHE_HOME" in caught.value.hint


@pytest.mark.parametrize("name", ["deepseek-v3.1", "DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1"])
def test_a_catalogue_model_needs_no_hub(name):
    found = find_small_files(name)
    assert (found.name, found.source, found.state) == ("deepseek-v3.1", "the catalogue", "absent")
    assert found.config["n_routed_experts"] == 256


def test_a_download_that_has_just_begun(home):
    snapshot = hf_cache.repository_folder("deepseek-ai/DeepSeek-V3.1") / "snapshots" / "9a3c"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text("{}")
    assert find_small_files("deepseek-v3.1").source == "the catalogue"
    (snapshot / "config.json").write_text('{"mine": 1}')
    found = find_small_files("deepseek-v3.1")
    assert (found.config, found.state) == ({"mine": 1}, "incomplete")


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny.DEEPSEEK_V3))
    (tmp_path / INDEX).write_bytes(FILES[f"{REPO}/{INDEX}"])
    found = find_small_files(tmp_path)
    assert (found.config, found.total_bytes, found.state) == (tiny.DEEPSEEK_V3, 7_000_000_000, "incomplete")


@pytest.mark.parametrize("index", ["{}", '{"metadata": 3}', '{"metadata": {"total_size": "big"}}', '{"metadata": {}}'])
def test_an_index_that_tells_no_size(tmp_path, index):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / INDEX).write_text(index)
    assert find_small_files(tmp_path).total_bytes is None


def test_what_is_nowhere(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no model or folder"):
        find_small_files("llama")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        find_small_files(tmp_path)
    assert find_small_files(shards.make(tmp_path / "model")).state == "present"
