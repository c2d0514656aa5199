"""A pull from a hub that does what it should: what is fetched, where it goes, and who finds it."""

import pytest
from loopback_hub import Repo, commit_of, digest
from pulling import REPO, contents, of_repo, plan_of, pull

from localmoe.errors import CheckpointError, OutOfMemoryError
from localmoe.hub import hf_cache


def test_the_model_is_in_the_cache_as_hf_download_puts_it(big_hub, cache):
    folder = pull()
    files = big_hub.repos[REPO].files
    assert folder == cache / "models--someone--Their-MoE" / "snapshots" / commit_of(files)
    assert hf_cache.snapshot(REPO, "main") == folder
    assert hf_cache.state_of(folder) == "present"
    assert contents(folder) == of_repo(big_hub, folder)
    for path in folder.iterdir():
        assert path.readlink().as_posix() == f"../../blobs/{digest(path.name, files[path.name])}"


def test_only_what_is_needed_is_fetched_and_once(big_hub):
    folder = pull()
    names = set(contents(folder))
    assert "README.md" not in names and "consolidated.safetensors" not in names
    assert {"config.json", "generation_config.json", "model.safetensors.index.json"} < names
    files = big_hub.repos[REPO].files
    assert {name: sent for name, sent in big_hub.sent.items() if name} == {name: len(files[name]) for name in names}


def test_the_plan_says_exactly_what_is_fetched(big_hub):
    plan = plan_of()
    planned = {one.file.path: one.missing_bytes for one in plan.files}
    documents = {name: len(data) for name, data in plan.documents.items()}
    folder = pull()
    assert plan.missing_bytes == plan.total_bytes == sum(len(data) for data in contents(folder).values())
    assert planned == {name: len(data) for name, data in contents(folder).items()}
    assert set(documents) == {"config.json", "model.safetensors.index.json"}
    again = plan_of()
    assert (again.missing_bytes, again.is_complete) == (0, True)


def test_a_plan_leaves_nothing_in_the_cache(big_hub, cache):
    plan_of()
    assert not cache.exists()


def test_a_second_pull_fetches_nothing(big_hub):
    pull()
    big_hub.forget()
    pull()
    assert not [one for one in big_hub.seen if one.file]


def test_a_new_revision_fetches_only_what_changed_and_the_old_one_stays(big_hub):
    old = pull()
    files = big_hub.repos[REPO].files
    before = dict(files)
    big_hub.repos[REPO].older["v1"] = before
    files["generation_config.json"] = b'{"temperature": 0.9}'
    big_hub.forget()
    new = pull()
    assert old != new and hf_cache.snapshot(REPO, "main") == new
    assert {name for name in big_hub.sent if name} == {"generation_config.json"}
    assert contents(old)["generation_config.json"] == before["generation_config.json"]
    assert pull(revision="v1") == old
    assert hf_cache.snapshot(REPO, "v1") == old and hf_cache.snapshot(REPO, "main") == new


def test_until_a_new_revision_is_complete_the_old_one_is_what_runs(big_hub):
    old = pull()
    files = big_hub.repos[REPO].files
    shard = next(name for name in files if name.startswith("model-00001"))
    changed = bytearray(files[shard])
    changed[-1] ^= 1
    files[shard] = bytes(changed)
    during = []
    pull(on_event=lambda event: during.append(hf_cache.snapshot(REPO, "main")))
    assert set(during[:-1]) == {old}
    assert hf_cache.snapshot(REPO, "main") != old


def test_a_commit_is_a_revision(big_hub):
    commit = commit_of(big_hub.repos[REPO].files)
    assert pull(revision=commit).name == commit
    assert not (hf_cache.repository_folder(REPO) / "refs").exists()


def test_a_model_of_a_single_file(big_hub, tmp_path):
    import shards

    one = shards.make(tmp_path / "one", num_shards=1)
    big_hub.repos["someone/one"] = Repo({path.name: path.read_bytes() for path in one.iterdir()})
    assert set(contents(pull("someone/one"))) == {"config.json", "generation_config.json", "model.safetensors"}


def test_a_disk_without_room_is_told_before_anything_is_fetched(big_hub, cache, monkeypatch):
    monkeypatch.setattr("localmoe.hub.download.plan._free_bytes", lambda folder: 1000)
    with pytest.raises(OutOfMemoryError, match=r"needs .* more on the disk of .* free") as caught:
        pull()
    assert caught.value.exit_code == 5
    assert caught.value.missing_bytes == plan_of().missing_bytes - 1000
    assert not cache.exists()


def test_what_is_here_of_a_file_needs_no_room_again(big_hub, monkeypatch):
    pull()
    monkeypatch.setattr("localmoe.hub.download.plan._free_bytes", lambda folder: 0)
    assert pull()


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors.index.json"])
def test_a_repository_without_a_model(big_hub, missing):
    del big_hub.repos[REPO].files[missing]
    with pytest.raises(CheckpointError, match=f"has no {missing} on the hub"):
        pull()


def test_a_renamed_repository_goes_where_it_was_asked_for(big_hub, cache):
    big_hub.repos["old/name"] = Repo({}, moved_to=REPO)
    plan = plan_of("old/name")
    assert plan.listing.renamed_to == REPO
    assert pull("old/name").is_relative_to(cache / "models--old--name")


def test_the_token_goes_to_the_hub_and_never_to_the_cdn(big_hub, monkeypatch):
    big_hub.repos[REPO].token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull()
    assert not big_hub.leaked


def test_a_place_without_links_gets_the_files_themselves(big_hub, monkeypatch):
    def refuse(self, target, target_is_directory=False):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    folder = pull()
    assert contents(folder) == of_repo(big_hub, folder)
    assert not any(path.is_symlink() for path in folder.iterdir())
    big_hub.forget()
    assert pull() == folder
    assert not [one for one in big_hub.seen if one.file.endswith(".safetensors")]
