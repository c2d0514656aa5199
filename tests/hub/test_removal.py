"""Removing: what it says is what it frees, and what others use stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from loopback_hub import Fault
from pulling import REPO, STEADY, contents, pull

from localmoe.errors import HubError, LocalmoeError, ModelNotFoundError
from localmoe.hub import hf_cache
from localmoe.hub.download.place import Place
from localmoe.hub.removal import plan_removal, remove

SHARD = "model-00002-of-000003.safetensors"


def bytes_in(folder: Path) -> int:
    """Of regular files, locks apart: those stay, empty."""
    return sum(
        Path(parent, name).lstat().st_size
        for parent, _, names in os.walk(folder)
        for name in names
        if not Path(parent, name).is_symlink()
    )


def frees_exactly_what_it_says(cache: Path, revision: str | None = None) -> int:
    before = bytes_in(cache)
    planned = plan_removal(REPO, revision)
    remove(planned)
    assert before - bytes_in(cache) == planned.num_bytes
    return planned.num_bytes


def test_a_whole_model(big_hub, cache):
    folder = pull(patience=STEADY)
    size = sum(map(len, contents(folder).values()))
    assert frees_exactly_what_it_says(cache) == size + 40  # the ref
    assert not hf_cache.repository_folder(REPO).exists()
    with pytest.raises(ModelNotFoundError, match="nothing of"):
        plan_removal(REPO, None)


def test_of_two_revisions_one(big_hub, cache):
    old = pull(patience=STEADY)
    files = big_hub.repos[REPO].files
    big_hub.repos[REPO].older["v1"] = dict(files)
    files[SHARD] = files[SHARD][:-1] + bytes([files[SHARD][-1] ^ 1])
    pull(revision="v1", patience=STEADY)
    new = pull(patience=STEADY)
    planned = plan_removal(REPO, "main")
    assert (planned.commits, planned.kept) == ((new.name,), (old.name,))
    assert frees_exactly_what_it_says(cache, "main") == len(files[SHARD]) + 40
    assert not new.exists() and hf_cache.state_of(old) == "present"
    assert frees_exactly_what_it_says(cache, old.name) > len(files[SHARD])


def test_what_a_pull_has_begun(big_hub, cache):
    big_hub.fault = lambda asked: Fault(cut_after=0) if asked.file == SHARD and asked.server == "cdn" else None
    with pytest.raises(HubError):
        pull()
    assert frees_exactly_what_it_says(cache) > 0
    assert not hf_cache.repository_folder(REPO).exists()


def test_blobs_without_a_snapshot(cache):
    blobs = hf_cache.repository_folder(REPO) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "a.incomplete").write_bytes(b"12345")
    assert frees_exactly_what_it_says(cache) == 5


def test_a_revision_that_is_not_here(big_hub):
    folder = pull(patience=STEADY)
    with pytest.raises(ModelNotFoundError, match="not here at revision v9") as caught:
        plan_removal(REPO, "v9")
    assert folder.name in caught.value.hint


def test_a_model_that_is_just_being_pulled(big_hub, cache):
    from threading import Event

    from pulling import plan_of

    pull(patience=STEADY)
    place: Place = plan_of().place
    with place.locked("localmoe", Event(), lambda: None), pytest.raises(LocalmoeError, match="just being pulled"):
        remove(plan_removal(REPO, None))
    assert hf_cache.snapshot(REPO, "main")


def test_blobs_in_the_shared_store_of_the_hubs_client(big_hub, cache):
    folder = pull(patience=STEADY)
    share(cache, folder / SHARD)
    size = (folder / SHARD).stat().st_size
    planned = plan_removal(REPO, None)
    assert planned.num_bytes == sum(map(len, contents(folder).values())) + 40 and planned.num_bytes > size
    remove(planned)
    assert not [path for path in (cache / "blobs").rglob("*") if len(path.name) == 64]


def share(cache: Path, link: Path) -> None:
    """Moves a blob into the store, as a download by Xet does."""
    blob = Path(os.path.normpath(link.parent / link.readlink()))
    program = (
        "from huggingface_hub.utils._shared_blobs import publish_blob_to_shared_store as publish\n"
        f"assert publish(blob_path={str(blob)!r}, xet_hash={'a' * 64!r}, cache_dir={str(cache)!r},"
        f" expected_size={blob.stat().st_size})"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert blob.is_symlink()
