import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import shards
import tiny

from localmoe.errors import CheckpointError, ModelNotFoundError
from localmoe.hub import catalog, hf_cache
from localmoe.hub.catalog import data_path, load_catalog, local_models, resolve
from localmoe.hub.checkpoint import INDEX, Checkpoint
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.tensors import expected_tensors

NAMES = [
    "guide", "deepseek-v3", "deepseek-v3-0324", "deepseek-r1", "deepseek-r1-0528", "deepseek-v3.1",
    "deepseek-v3.1-terminus", "kimi-k2-instruct-0905", "moonlight-16b-a3b-instruct", "deepseek-v2-lite-chat",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty Hugging Face cache."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def download(cache: Path, repo: str, commit: str = "9a3c", ref: str | None = "main") -> Path:
    """What `hf download` leaves: blobs, links to them in a snapshot, a ref."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    made, snapshot = shards.make(folder / "blobs"), folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for blob in made.iterdir():
        (snapshot / blob.name).symlink_to(os.path.relpath(blob, snapshot))
    if ref:
        (folder / "refs").mkdir()
        (folder / "refs" / ref).write_text(commit)
    return snapshot


def test_the_catalogue_holds_what_it_promises():
    entries = load_catalog()
    assert list(entries) == NAMES
    for name, entry in entries.items():
        assert entry.name == name == name.lower()
        assert entry.format in ("fp8", "bf16")
        assert entry.template in ("v3", "r1", "v3.1", "guide", "jinja")
        assert 0 < entry.active_params < entry.params
        bytes_per_param = entry.size_bytes / entry.params
        assert (0.95 < bytes_per_param < 1.3) if entry.format == "fp8" else (1.9 < bytes_per_param < 2.1)
        assert 0 <= entry.temperature <= 1 and 0 < entry.top_p <= 1
        assert entry.is_embedded == (name == "guide") == (entry.fetch_command == "")
        assert len(entry.title) < 80 and "\n" not in entry.title
        assert entry.is_embedded or entry.repo.split("/")[1].lower() == name


def with_mtp_layer(entry) -> tuple[ModelConfig, int]:
    """V3's files hold one more layer, with an embedding, a head and a projection of its own: localmoe skips it."""
    config = read_config(entry.config)
    if not entry.config.get("num_nextn_predict_layers"):
        return config, 0
    extra = 2 * 2 * config.vocab * config.hidden + 2 * config.hidden * config.hidden
    return replace(config, num_layers=config.num_layers + 1), extra


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_gives_the_size_and_the_parameters(name):
    entry = load_catalog()[name]
    config, width = read_config(entry.config), {"BF16": 2, "F8_E4M3": 1, "F32": 4}
    assert config.weight_format == entry.format
    assert config.max_position >= entry.context
    whole, extra = with_mtp_layer(entry)
    nbytes = sum(math.prod(spec.shape) * width[spec.dtypes[0]] for spec in expected_tensors(whole)) + extra
    assert nbytes == pytest.approx(entry.size_bytes, rel=0.01)
    assert config.num_params() == pytest.approx(entry.params, rel=0.03)
    assert config.num_active_params() == pytest.approx(entry.active_params, rel=0.03, abs=0.5e9)


def test_the_shape_of_v3_is_that_of_its_config():
    shape = read_config(load_catalog()["deepseek-r1"].config)
    assert shape == replace(read_config(tiny.DEEPSEEK_V3), bos_id=None, eos_ids=())


def test_the_embedded_model_has_its_config_beside_it():
    assert load_catalog()["guide"].config == json.loads((data_path("guide") / "config.json").read_text())


def test_every_field_is_documented():
    comments = [line for line in data_path("models.toml").read_text().splitlines() if line.startswith("#")]
    for field in catalog.CatalogModel.__dataclass_fields__:
        assert field == "name" or any(field in line for line in comments), field


def test_guide_comes_with_localmoe():
    source = resolve("guide")
    assert (source.name, source.folder) == ("guide", data_path("guide"))
    assert source.entry.template == "guide"


def test_data_that_is_missing_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(catalog.localmoe, "__file__", str(tmp_path / "localmoe" / "__init__.py"))
    with pytest.raises(ModelNotFoundError, match="missing from this installation") as caught:
        data_path("guide")
    assert "pip install ." in caught.value.hint


def test_installed_data_comes_before_the_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(catalog.localmoe, "__file__", str(tmp_path / "localmoe" / "__init__.py"))
    (tmp_path / "models.toml").write_text("")
    assert data_path("models.toml") == tmp_path / "models.toml"
    (tmp_path / "localmoe" / "_data").mkdir(parents=True)
    (tmp_path / "localmoe" / "_data" / "models.toml").write_text("")
    assert data_path("models.toml") == tmp_path / "localmoe" / "_data" / "models.toml"


@pytest.mark.parametrize(
    "name", ["deepseek-v3.1", "DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1", "DEEPSEEK-AI/deepseek-v3.1"]
)
def test_a_catalogue_model_is_found_in_the_cache(cache, name):
    snapshot = download(cache, "deepseek-ai/DeepSeek-V3.1")
    source = resolve(name)
    assert (source.name, source.folder) == ("deepseek-v3.1", snapshot)
    assert source.entry.template == "v3.1"
    Checkpoint.open(source.folder).validate(shards.specs())


@pytest.mark.parametrize("name", ["deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1"])
def test_a_known_model_that_is_absent_says_how_to_fetch_it(name):
    with pytest.raises(ModelNotFoundError, match=r"deepseek-v3\.1 is not on this machine") as caught:
        resolve(name)
    assert caught.value.hint == "localmoe pull deepseek-v3.1 (688.6 GB) fetches it."
    assert caught.value.exit_code == 4


def test_a_repository_that_the_catalogue_does_not_know(cache):
    snapshot = download(cache, "someone/Their-MoE")
    source = resolve("someone/Their-MoE")
    assert (source.name, source.folder, source.entry) == ("someone/Their-MoE", snapshot, None)
    with pytest.raises(ModelNotFoundError, match="neither a folder nor in the Hugging Face cache") as caught:
        resolve("someone/else")
    assert "localmoe pull someone/else" in caught.value.hint


def test_a_folder_is_itself(tmp_path, monkeypatch):
    folder = shards.make(tmp_path / "some" / "model")
    assert (resolve(folder).name, resolve(folder).folder) == ("model", folder)
    monkeypatch.chdir(folder)
    assert (resolve(".").name, resolve(".").entry) == ("model", None)
    monkeypatch.chdir(tmp_path)
    assert resolve("some/model").folder == Path("some/model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/some/model").folder == folder


def test_a_catalogue_name_goes_before_a_folder_of_that_name(tmp_path, monkeypatch):
    shards.make(tmp_path / "guide")
    monkeypatch.chdir(tmp_path)
    assert resolve("guide").entry is not None
    assert resolve("./guide").entry is None


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("deepseek-v31", "no model or folder named 'deepseek-v31'", "did you mean deepseek-v3.1 or"),
        ("moonlight", "no model or folder", "did you mean moonlight-16b-a3b-instruct?"),
        ("llama", "no model or folder", "`localmoe models` lists"),
        ("", "no model or folder", "`localmoe models` lists"),
        ("nul\0", "no model or folder", "`localmoe models` lists"),
        ("x" * 9000, "no model or folder", "`localmoe models` lists"),
        ("/no/such/folder", "there is no folder /no/such/folder", "check the path"),
        ("./nowhere", "there is no folder", "check the path"),
        ("~nobody-at-all/x", "there is no folder", "check the path"),
        ("../x", "there is no folder", "check the path"),
    ],
)
def test_what_is_not_there_gets_a_hint(name, message, hint):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(name)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(ModelNotFoundError, match="is a file"):
        resolve(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"HF_HOME": "~/b"}, "/home/me/b/hub"),
        ({"HF_HOME": "$OTHER/b", "OTHER": "/o"}, "/o/b/hub"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": ""}, "/home/me/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_hugging_face_says(monkeypatch, variables, wanted):
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hf_cache.cache_folder() == Path(wanted)


def test_hugging_face_itself_agrees(cache, monkeypatch):
    script = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert Path(out.strip()) == hf_cache.cache_folder() == cache


def test_a_revision_can_be_a_commit_or_the_only_one_there_is(cache):
    snapshot = download(cache, "a/b", commit="c0ffee", ref=None)
    assert hf_cache.snapshot("a/b", "c0ffee") == snapshot
    assert hf_cache.snapshot("a/b", "main") == snapshot
    (snapshot.parent / "beef").mkdir()
    assert hf_cache.snapshot("a/b", "main") is None
    assert hf_cache.snapshot("a/b", "c0ffee") == snapshot


@pytest.mark.parametrize("ref", ["", "../../..", "gone", "\0", "\ud800"])
def test_a_ref_that_leads_nowhere(cache, ref):
    snapshot = download(cache, "a/b")
    (snapshot.parent / "other").mkdir()
    (cache / "models--a--b" / "refs" / "main").write_bytes(ref.encode("utf-8", "surrogatepass"))
    assert hf_cache.snapshot("a/b", "main") is None


def test_what_is_on_disk(cache):
    whole = download(cache, "deepseek-ai/DeepSeek-V3")
    part = download(cache, "deepseek-ai/DeepSeek-R1")
    shard = json.loads((part / INDEX).read_text())["weight_map"]["model.norm.weight"]
    (part / shard).resolve().rename(cache / "models--deepseek-ai--DeepSeek-R1" / "blobs" / "77.incomplete")
    (part / shard).unlink()
    begun = cache / "models--moonshotai--Kimi-K2-Instruct-0905" / "blobs"
    begun.mkdir(parents=True)
    (begun / "1.incomplete").write_bytes(b"12345")
    models = {m.entry.name: m for m in local_models()}
    assert list(models) == NAMES
    size = sum(path.stat().st_size for path in whole.iterdir())
    assert (models["deepseek-v3"].state, models["deepseek-v3"].path) == ("present", whole)
    assert models["deepseek-v3"].bytes_on_disk == models["deepseek-r1"].bytes_on_disk == size
    assert models["deepseek-r1"].state == "incomplete"
    assert (models["kimi-k2-instruct-0905"].state, models["kimi-k2-instruct-0905"].bytes_on_disk) == ("incomplete", 5)
    assert (models["deepseek-v3.1"].state, models["deepseek-v3.1"].path) == ("absent", None)


@pytest.mark.parametrize(
    "index", ["", "[]", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": "\\u0000"}}']
)
def test_an_index_that_is_none_is_incomplete(cache, index):
    snapshot = download(cache, "deepseek-ai/DeepSeek-V3")
    (snapshot / INDEX).unlink()
    (snapshot / INDEX).write_text(index)
    assert hf_cache.state_of(snapshot) == "incomplete"


def test_a_model_in_one_file_is_present(tmp_path):
    folder = shards.make(tmp_path / "model", num_shards=1)
    assert hf_cache.state_of(folder) == "present"
    (folder / "config.json").unlink()
    assert hf_cache.state_of(folder) == "incomplete"
    assert hf_cache.state_of(tmp_path / "nowhere") == hf_cache.state_of(None) == "absent"


def test_an_incomplete_model_resolves_and_its_checkpoint_tells(cache):
    snapshot = download(cache, "deepseek-ai/DeepSeek-V3.1")
    (snapshot / "model-00002-of-000002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="shard model-00002-of-000002") as caught:
        Checkpoint.open(resolve("deepseek-v3.1").folder)
    assert caught.value.hint == "localmoe pull deepseek-ai/DeepSeek-V3.1 fetches what is missing."


def test_the_catalogue_loads_neither_torch_nor_the_hub_client():
    script = (
        "import sys, localmoe.hub.catalog as c; c.local_models();"
        "print({'torch', 'huggingface_hub', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"
