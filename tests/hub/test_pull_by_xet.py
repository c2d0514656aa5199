"""Pulls with --xet: chunks from a store on this disk, which the hub's own library reads as it reads a remote one."""

import threading
import time

import hf_xet
import pytest
from loopback_hub import Fault, sha256
from pulling import REPO, STEADY, contents, of_repo, plan_of, pull

from localmoe.errors import CancelledError, HubError, VerificationError
from localmoe.hub import hf_cache
from localmoe.hub.download.pull import Pull

SHARD = "model-00002-of-000003.safetensors"


@pytest.fixture
def store(big_hub, tmp_path, monkeypatch):
    """Has all shards."""
    monkeypatch.setenv("HF_XET_CACHE", str(tmp_path / "xet"))
    monkeypatch.setattr("localmoe.hub.download.pull.HEAD_BYTES", 4096)
    big_hub.store = f"local://{tmp_path / 'store'}"
    (tmp_path / "store").mkdir()
    for name, data in big_hub.repos[REPO].files.items():
        if name.startswith("model-"):
            big_hub.xet[name] = put(big_hub, data)
    return big_hub


def put(hub, data: bytes) -> str:
    commit = hf_xet.XetSession().new_upload_commit(endpoint=hub.store)
    upload = commit.start_upload_bytes(data)
    commit.wait_to_finish()
    return upload.result().xet_info.hash


def blobs() -> set[str]:
    return {path.name for path in (hf_cache.repository_folder(REPO) / "blobs").iterdir()}


def test_weights_come_from_the_store_and_everything_else_as_always(store):
    told = []
    folder = pull(patience=STEADY, by_xet=True, on_event=told.append)
    assert contents(folder) == of_repo(store, folder)
    assert store.sent[SHARD] < 10_000  # its header, which is looked at before
    assert not any("." in name for name in blobs())
    assert told[-1].fetched_bytes >= sum(len(store.repos[REPO].files[name]) for name in store.xet)
    assert not store.leaked


def test_nobody_asks_the_store_unasked(store):
    pull(patience=STEADY)
    assert not [one for one in store.seen if "xet-read-token" in one.path]


def test_a_file_that_is_in_no_store_comes_by_ranges(store):
    del store.xet[SHARD]
    folder = pull(patience=STEADY, by_xet=True)
    assert contents(folder) == of_repo(store, folder)
    assert store.sent[SHARD] == len(store.repos[REPO].files[SHARD])


def test_what_was_begun_by_ranges_is_ended_by_ranges(store, monkeypatch):
    monkeypatch.setattr("localmoe.hub.download.pull.MARK_BYTES", 50_000)
    store.fault = lambda asked: (
        Fault(cut_after=max(0, 100_000 - asked.start)) if asked.file == SHARD and asked.server == "cdn" else None
    )
    with pytest.raises(HubError):
        pull()
    store.fault = lambda asked: None
    store.forget()
    folder = pull(patience=STEADY, by_xet=True)
    assert contents(folder) == of_repo(store, folder)
    assert 0 < store.sent[SHARD] < len(store.repos[REPO].files[SHARD]) - 50_000


def test_other_bytes_than_the_hub_lists_are_refused(store):
    data = store.repos[REPO].files[SHARD]
    store.xet[SHARD] = put(store, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(VerificationError, match=f"{SHARD} came by Xet with the checksum") as caught:
        pull(patience=STEADY, by_xet=True)
    assert "without --xet" in caught.value.hint and caught.value.exit_code == 6
    assert sha256(data) not in blobs()
    assert contents(pull(patience=STEADY)) == of_repo(store, hf_cache.snapshot(REPO, "main"))


@pytest.mark.parametrize(
    ("file_hash", "token", "message"),
    [
        ("0" * 64, {}, "did not give .* by Xet: .*mismatch"),
        ("", {"X-Xet-Token-Expiration": "soon"}, "did not give .* by Xet: it gives no access"),
    ],
)
def test_a_store_that_refuses(store, file_hash, token, message):
    store.xet[SHARD] = file_hash or store.xet[SHARD]
    store.fault = lambda asked: Fault(headers=token) if "xet-read-token" in asked.path else None
    with pytest.raises(HubError, match=message) as caught:
        pull(patience=STEADY, by_xet=True)
    assert caught.value.exit_code == 7 and "without --xet" in caught.value.hint
    folder = pull(patience=STEADY)
    assert contents(folder) == of_repo(store, folder) and not any("." in name for name in blobs())


def test_a_hub_that_gives_no_token(store):
    store.fault = lambda asked: Fault(status=403) if "xet-read-token" in asked.path else None
    with pytest.raises(HubError, match="answers 403"):
        pull(patience=STEADY, by_xet=True)


def test_a_store_that_is_silent_can_be_left(store):
    store.store = "http://127.0.0.1:9"
    running = Pull(plan_of(), lambda event: None, patience=STEADY, by_xet=True)
    threading.Timer(1.5, running.cancel).start()
    began_s = time.monotonic()
    with pytest.raises(CancelledError, match="paused"):
        running.run()
    assert time.monotonic() - began_s < 20
    while any("xet" in name for name in blobs()):
        assert time.monotonic() - began_s < 60
        time.sleep(0.05)


def test_what_a_killed_run_left_goes(store):
    left = hf_cache.repository_folder(REPO) / "blobs" / f"{sha256(store.repos[REPO].files[SHARD])}.incomplete.xet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    pull(patience=STEADY)
    assert not left.exists()
