"""A pull from a hub, over a line and onto a disk that fail: what is said, and that a later pull ends it."""

import errno
import os
from itertools import count

import pytest
from loopback_hub import Asked, Fault, sha256
from pulling import QUICK, REPO, contents, of_repo, pull

from localmoe.errors import (
    CancelledError,
    CheckpointError,
    HubError,
    LocalmoeError,
    ModelNotFoundError,
    OutOfMemoryError,
    VerificationError,
)
from localmoe.hub import hf_cache
from localmoe.hub.download import part
from localmoe.hub.download.progress import Notice
from localmoe.hub.download.pull import Pull

SHARD = "model-00002-of-000003.safetensors"


@pytest.fixture(autouse=True)
def marks(monkeypatch):
    """Journal lines every 32 KiB."""
    monkeypatch.setattr(part, "MARK_BYTES", 32 << 10)


def always(fault: Fault, **where):
    return lambda asked: fault if _is(asked, where) else None


def times(num: int, fault: Fault, **where):
    left = count(num, -1)
    return lambda asked: fault if _is(asked, where) and next(left) > 0 else None


def _is(asked: Asked, where: dict) -> bool:
    return all(getattr(asked, name) == value for name, value in where.items())


def assert_a_later_pull_ends_it(hub):
    hub.fault = lambda asked: None
    folder = pull()
    assert contents(folder) == of_repo(hub, folder)
    assert hf_cache.state_of(folder) == "present"
    assert not list(hf_cache.repository_folder(REPO).glob("blobs/*.*"))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(hang_up=True),
        Fault(cut_after=20_000),
        Fault(cut_after=0),
        Fault(stall_after=20_000),
        Fault(status=500),
        Fault(status=502),
        Fault(status=503, headers={"Retry-After": "0"}),
        Fault(status=429, headers={"Retry-After": "1"}),
        Fault(status=408),
        Fault(status=416),
        Fault(shift=1),
        Fault(claim_size=77),
        Fault(gzip=True),
        Fault(no_ranges=True),
        Fault(no_ranges=True, claim_size=77),
        Fault(flip=-5),
    ],
)
def test_what_passes_by_itself_needs_nobody(big_hub, fault):
    passes = fault.status != 416
    big_hub.fault = times(1, fault, file=SHARD, server="cdn")
    if passes:
        folder = pull()
        assert contents(folder) == of_repo(big_hub, folder)
    else:
        with pytest.raises(HubError):
            pull()
    assert_a_later_pull_ends_it(big_hub)


@pytest.mark.parametrize(
    ("fault", "kind", "message", "hint"),
    [
        (Fault(hang_up=True), HubError, "broke off its answer: Server disconnected", "check the network"),
        (Fault(cut_after=0), HubError, "broke off its answer: .*complete message body", "check the network"),
        (Fault(stall_after=0), HubError, "sent nothing for too long: .*timed out", "check the network"),
        (Fault(status=500), HubError, "answers 500", "try again later"),
        (Fault(status=503), HubError, "answers 503", "try again later"),
        (Fault(status=429, headers={"Retry-After": "1"}), HubError, "answers 429", "try again in 1 s"),
        (Fault(status=429, headers={"ratelimit": '"api";r=0;t=3000'}), HubError, "answers 429", "in 50 min"),
        (Fault(status=404), HubError, "no such file", "try again"),
        (Fault(status=403), HubError, "answers 403", "hf auth login"),
        (Fault(shift=1), HubError, "another range than was asked for", "HF_ENDPOINT"),
        (Fault(claim_size=77), HubError, "a file of 77 bytes instead of", "HF_ENDPOINT"),
        (Fault(gzip=True), HubError, "compressed bytes", "HF_ENDPOINT"),
        (Fault(drip_s=0.05), HubError, "sent only", "HF_ENDPOINT"),
        (Fault(flip=-5), VerificationError, "came with the checksum", "pull again"),
    ],
)
def test_what_does_not_pass_is_said(big_hub, fault, kind, message, hint):
    big_hub.fault = always(fault, file=SHARD, server="cdn")
    with pytest.raises(kind, match=message) as caught:
        pull(patience=QUICK)
    assert hint in caught.value.hint
    assert caught.value.exit_code == (6 if kind is VerificationError else 7)
    assert hf_cache.state_of(hf_cache.snapshot(REPO, "main")) == "incomplete"
    assert_a_later_pull_ends_it(big_hub)


@pytest.mark.parametrize(
    ("fault", "kind", "message", "hint"),
    [
        (Fault(status=401, headers={"X-Error-Code": "GatedRepo"}), HubError, "accepted its terms", "hf auth login"),
        (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), HubError, "let in", "hf auth whoami"),
        (Fault(status=403), HubError, "answers 403", "hf auth login"),
        (Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}), HubError, f"has no {REPO}", "check the name"),
        (Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}), HubError, "has no revision main", "/tree/"),
        (
            Fault(status=403, headers={"X-Error-Message": "Access to this resource is disabled."}),
            HubError,
            "disabled",
            "",
        ),
        (Fault(status=429), HubError, "answers 429", "wait a few minutes"),
        (Fault(status=504), HubError, "answers 504", "try again later"),
        (Fault(hang_up=True), HubError, "broke off its answer: Server disconnected", "check the network"),
        (Fault(stall_after=3), HubError, "sent nothing for too long", "check the network"),
    ],
)
def test_a_hub_that_does_not_give_its_list(big_hub, cache, fault, kind, message, hint):
    from dataclasses import replace

    big_hub.fault = always(fault, file="", server="hub")
    with pytest.raises(kind, match=message) as caught:
        pull(patience=replace(QUICK, connect_s=0.3))
    assert hint in caught.value.hint and caught.value.exit_code == 7
    assert not cache.exists()
    assert_a_later_pull_ends_it(big_hub)


def test_no_network(big_hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127.0.0.1:9 cannot be reached: .*refused"):
        pull()


def test_a_name_that_no_network_knows(big_hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    with pytest.raises(HubError, match=r"http://hub.invalid cannot be reached"):
        pull()


def test_a_network_that_goes_away_in_mid_download(big_hub, monkeypatch):
    """The hub's servers are gone when the next range is asked for."""
    import socket

    real = socket.create_connection

    def connect(*where, **how):
        if big_hub.sent[SHARD] >= 60_000:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return real(*where, **how)

    big_hub.fault = always(Fault(cut_after=60_000), file=SHARD, server="cdn")
    with monkeypatch.context() as patched:
        patched.setattr("socket.create_connection", connect)
        with pytest.raises(HubError, match=r"cannot be reached: .*unreachable"):
            pull(at_once=1)
    assert_a_later_pull_ends_it(big_hub)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [(401, {"X-Error-Code": "GatedRepo"}, "accepted its terms"), (403, {"X-Error-Code": "GatedRepo"}, "let in")],
)
def test_a_login_that_ends_in_mid_download(big_hub, status, headers, message):
    big_hub.fault = always(Fault(status=status, headers=headers), file=SHARD, server="hub")
    with pytest.raises(HubError, match=message) as caught:
        pull()
    assert caught.value.exit_code == 7
    assert_a_later_pull_ends_it(big_hub)


def test_offline(big_hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        pull()
    assert not big_hub.seen


def test_a_wait_that_the_hub_asks_for_is_kept_and_told(big_hub):
    big_hub.fault = times(1, Fault(status=429, headers={"Retry-After": "1"}), file=SHARD, server="hub")
    told = []
    pull(on_event=told.append)
    assert any("429" in event.text and "1 s" in event.text for event in told if isinstance(event, Notice))


@pytest.mark.parametrize("name", ["no/such/thing", "a b/c", "..", "-/-"])
def test_a_name_that_no_repository_can_have(big_hub, name):
    with pytest.raises((ModelNotFoundError, HubError)):
        pull(name)


def test_an_etag_that_changes_in_mid_download(big_hub):
    big_hub.fault = lambda asked: (
        Fault(etag="0" * 64)
        if asked.file == SHARD and asked.start > 0 and asked.server == "hub"
        else Fault(cut_after=50_000)
        if asked.file == SHARD and asked.server == "cdn"
        else None
    )
    with pytest.raises(HubError, match="was changed on the hub while it was fetched") as caught:
        pull()
    assert "takes the new version" in caught.value.hint
    assert_a_later_pull_ends_it(big_hub)


def test_a_break_costs_nothing_that_came(big_hub):
    big_hub.fault = times(3, Fault(cut_after=60_000), file=SHARD, server="cdn")
    pull()
    assert big_hub.sent[SHARD] == len(big_hub.repos[REPO].files[SHARD])


def test_a_server_without_ranges_loses_nothing_either(big_hub):
    big_hub.fault = lambda asked: (
        Fault(no_ranges=True, cut_after=60_000 if asked.start == 0 else None)
        if asked.file == SHARD and asked.server == "cdn"
        else None
    )
    folder = pull()
    assert contents(folder) == of_repo(big_hub, folder)


def test_a_wrong_file_is_known_before_the_bulk_is_fetched(big_hub, monkeypatch):
    monkeypatch.setattr("localmoe.hub.download.pull.HEAD_BYTES", 4096)
    files = big_hub.repos[REPO].files
    index = files["model.safetensors.index.json"]
    files["model.safetensors.index.json"] = index.replace(b"model.norm.weight", b"model.nork.weight")
    with pytest.raises(CheckpointError, match=r"model\.nork\.weight into shard .* does not hold it"):
        pull()
    assert sum(big_hub.sent.values()) < 60_000
    files["model.safetensors.index.json"] = index
    assert_a_later_pull_ends_it(big_hub)


def test_a_model_of_the_wrong_shapes_is_known_before_the_bulk_is_fetched(big_hub, monkeypatch):
    from localmoe.hub.checkpoint import TensorSpec

    monkeypatch.setattr("localmoe.hub.download.pull.HEAD_BYTES", 4096)
    with pytest.raises(CheckpointError, match="has the shape"):
        pull(expected=lambda config: [TensorSpec("model.norm.weight", (3, 3), ("BF16",))])
    assert_a_later_pull_ends_it(big_hub)


def test_a_header_that_is_none(big_hub):
    files = big_hub.repos[REPO].files
    right = files[SHARD]
    files[SHARD] = b"<html>" + right[6:]
    with pytest.raises(CheckpointError, match="announces a header"):
        pull()
    files[SHARD] = right
    assert_a_later_pull_ends_it(big_hub)


def test_a_disk_that_becomes_full(big_hub, monkeypatch):
    real, room = os.write, [400_000]

    def write(fd, data):
        if room[0] < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(data)
        return real(fd, data)

    monkeypatch.setattr(part.os, "write", write)
    with pytest.raises(OutOfMemoryError, match="is full") as caught:
        pull()
    assert "make room" in caught.value.hint and caught.value.exit_code == 5
    monkeypatch.setattr(part.os, "write", real)
    assert_a_later_pull_ends_it(big_hub)


def test_a_cache_that_cannot_be_written(big_hub, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    with pytest.raises(LocalmoeError, match="cannot be written"):
        pull()


def blob_of(hub, file: str):
    return hf_cache.repository_folder(REPO) / "blobs" / sha256(hub.repos[REPO].files[file])


def breaks_off(hub, at: int):
    """What comes of SHARD ends at byte `at`, for good."""
    hub.fault = lambda asked: (
        Fault(cut_after=max(0, at - asked.start)) if asked.file == SHARD and asked.server == "cdn" else None
    )
    with pytest.raises(HubError):
        pull()


def test_a_part_that_was_damaged_is_used_up_to_the_damage(big_hub):
    breaks_off(big_hub, 120_000)
    path = part.part_of(blob_of(big_hub, SHARD))
    data = bytearray(path.read_bytes())
    assert len(data) == 120_000
    data[100_000] ^= 1
    path.write_bytes(data)
    big_hub.forget()
    assert_a_later_pull_ends_it(big_hub)
    assert 32_768 <= min(one.start for one in big_hub.asked(SHARD)) <= 100_000


@pytest.mark.parametrize("journal", [b"", b"{", b"[]\n", b'{"etag": 3}\n', b"\xff\xfe\n", b'{"bytes": 1}\n' * 3])
def test_a_part_whose_journal_says_nothing_counts_for_nothing(big_hub, journal):
    breaks_off(big_hub, 100_000)
    part.journal_of(blob_of(big_hub, SHARD)).write_bytes(journal)
    assert_a_later_pull_ends_it(big_hub)


def test_a_cancel_keeps_what_came(big_hub):
    from pulling import plan_of

    big_hub.bytes_per_s = 400_000
    running = Pull(plan_of(), lambda event: running.cancel() if big_hub.sent[SHARD] > 100_000 else None, patience=QUICK)
    with pytest.raises(CancelledError, match=r"paused: .* are here and stay") as caught:
        running.run()
    assert "localmoe pull" in caught.value.hint and caught.value.exit_code == 130
    big_hub.bytes_per_s = 0
    before = big_hub.sent[SHARD]
    plan = plan_of()
    assert plan.here_bytes > 100_000
    assert_a_later_pull_ends_it(big_hub)
    assert big_hub.sent[SHARD] - before <= len(big_hub.repos[REPO].files[SHARD]) - 65_536
