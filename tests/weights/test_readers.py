import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import shards

from localmoe.errors import CancelledError, CheckpointError, OutOfMemoryError
from localmoe.hub.checkpoint import Checkpoint
from localmoe.weights import load as loading
from localmoe.weights.arena import Arena
from localmoe.weights.load import load


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    return Checkpoint.open(shards.make(tmp_path / "model"))


def open_shards() -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(link.readlink().suffix == ".safetensors" for link in links if link.is_symlink())


def num_readers() -> int:
    return sum(thread.name == "localmoe-load" for thread in threading.enumerate())


@pytest.fixture
def hanging(monkeypatch):
    """A disk that answers when the event is set."""
    release, real = threading.Event(), os.preadv

    def hang(*arguments):
        release.wait(20)
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", hang)
    yield release
    release.set()


@pytest.mark.parametrize("by", ["cancelled", "interrupted"])
def test_a_disk_that_hangs_holds_up_no_cancel_and_changes_nothing_later(checkpoint, hanging, by):
    arenas, asked = [], []

    def remember(nbytes: int) -> Arena:
        arenas.append(Arena(nbytes))
        return arenas[0]

    def cancelled() -> bool:
        asked.append(time.perf_counter())
        if by == "interrupted" and len(asked) > 1:
            raise KeyboardInterrupt
        return len(asked) > 1

    with pytest.raises(CancelledError if by == "cancelled" else KeyboardInterrupt):
        load(checkpoint, shards.specs(), cancelled=cancelled, new_arena=remember)
    assert time.perf_counter() - asked[-1] < 0.1
    assert num_readers() > 0  # those that the disk holds up
    hanging.set()
    deadline_s = time.monotonic() + 10
    while num_readers() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert (num_readers(), open_shards()) == (0, 0)
    assert not arenas[0].view(0, arenas[0].nbytes).any()


def test_an_error_does_not_wait_for_other_readers(checkpoint, monkeypatch):
    first, release, real = threading.Lock(), threading.Event(), os.preadv

    def fail_once(*arguments):
        if first.acquire(blocking=False):
            raise OSError(5, "Input/output error")
        release.wait(20)
        return real(*arguments)

    monkeypatch.setattr(loading, "num_readers", lambda total: 4)
    monkeypatch.setattr(os, "preadv", fail_once)
    start_s = time.perf_counter()
    with pytest.raises(CheckpointError, match="Input/output error"):
        load(checkpoint, shards.specs())
    assert time.perf_counter() - start_s < 1
    release.set()


def test_a_system_without_threads_is_an_error_that_keeps_nothing_open(checkpoint, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OutOfMemoryError, match="no thread can be started"):
        load(checkpoint, shards.specs())
    assert open_shards() == 0


def test_buffers_take_64_mib_at_most():
    assert loading.num_readers(1 << 40) * (loading.DIRECT_PIECE_BYTES + 4096) <= 64 << 20
    assert loading.num_readers(3 * loading.DIRECT_PIECE_BYTES) == 3
    assert loading.num_readers(100) == 1


def test_the_same_memory_can_be_filled_again(checkpoint):
    arena: list[Arena] = []

    def once(nbytes: int) -> Arena:
        arena[:] = arena or [Arena(nbytes)]
        return arena[0]

    first = load(checkpoint, shards.specs(), new_arena=once)
    second = load(checkpoint, shards.specs(), new_arena=once)
    name = "model.embed_tokens"
    assert np.shares_memory(first.linear(name).weight, second.linear(name).weight)
