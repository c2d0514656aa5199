import errno
import os
import resource
import threading

import pytest
import shards

from localmoe.hub.checkpoint import Checkpoint
from localmoe.weights import page_lock
from localmoe.weights.load import load
from localmoe.weights.page_lock import PageLock

PAGE = 2 << 20
ADDRESS = 1024 * PAGE


class Driver:
    """What registers memory; it refuses the call number `refuses`."""

    def __init__(self, refuses: int = -1, error: BaseException | None = None) -> None:
        self.held: dict[int, int] = {}
        self.threads: set[int] = set()
        self.released: list[int] = []
        self._refuses = refuses
        self._error = error or OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def register(self, address: int, nbytes: int) -> None:
        self.threads.add(threading.get_ident())
        if len(self.held) == self._refuses:
            raise self._error
        self.held[address] = nbytes

    def unregister(self, address: int) -> None:
        self.released.append(address)
        del self.held[address]


def lock(driver: Driver, nbytes: int = 11 * PAGE) -> PageLock:
    return PageLock(ADDRESS, nbytes, driver.register, driver.unregister)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(page_lock, "SLICE_BYTES", 4 * PAGE)


@pytest.fixture(params=[8 << 30, resource.RLIM_INFINITY])
def limit(request, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (request.param, resource.RLIM_INFINITY))
    return request.param


def test_memory_is_locked_in_aligned_slices_by_the_calling_thread():
    driver = Driver()
    held = lock(driver)
    assert driver.held == {ADDRESS: 4 * PAGE, ADDRESS + 4 * PAGE: 4 * PAGE, ADDRESS + 8 * PAGE: 3 * PAGE}
    assert driver.threads == {threading.get_ident()}
    assert held.is_locked and "page-locked for the GPU" in held.note


def test_everything_is_let_go_once():
    driver = Driver()
    held = lock(driver)
    held.release()
    held.release()
    assert (driver.held, len(driver.released), held.is_locked) == ({}, 3, False)


@pytest.mark.parametrize("refuses", [0, 1, 2])
def test_a_refusal_lets_go_of_what_was_locked_and_says_what_to_do(refuses, limit):
    driver = Driver(refuses)
    held = lock(driver)
    assert not held.is_locked and driver.held == {}
    assert driver.released == [ADDRESS + n * 4 * PAGE for n in reversed(range(refuses))]
    assert "(ENOMEM: Cannot allocate memory)" in held.note
    assert "`ulimit -l`" in held.note if limit == resource.RLIM_INFINITY else "may lock 8.6 GB" in held.note


def test_an_interrupt_lets_go_too():
    driver = Driver(2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lock(driver)
    assert driver.held == {} and len(driver.released) == 2


def test_a_driver_that_is_gone_does_not_stop_the_rest():
    driver = Driver()

    def gone(address: int) -> None:
        driver.released.append(address)
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    held = PageLock(ADDRESS, 8 * PAGE, driver.register, gone)
    held.release()
    assert len(driver.released) == 2


@pytest.mark.parametrize("nodes", [[], [0, 1, 2]])
def test_a_store_locks_all_of_its_weights_and_lets_go_when_it_closes(tmp_path, nodes):
    store, driver = load(Checkpoint.open(shards.make(tmp_path)), shards.specs(), nodes=nodes), Driver()
    store.lock_pages(driver.register, driver.unregister)
    assert store.is_page_locked and "page-locked" in store.notes[-1]
    start = store.experts("model.layers.0.mlp.experts").parts[0].blob.ctypes.data
    assert min(driver.held) == start and start % PAGE == 0
    assert sum(driver.held.values()) % PAGE == 0 and sum(driver.held.values()) >= store.nbytes
    store.close()
    assert driver.held == {} and not store.is_page_locked


def test_a_store_that_may_not_lock_says_so_and_stays(tmp_path):
    store = load(Checkpoint.open(shards.make(tmp_path)), shards.specs())
    store.lock_pages(Driver(0).register, Driver().unregister)
    assert not store.is_page_locked and "not page-locked" in store.notes[-1]
    assert store.linear("model.embed_tokens").weight.size
    store.close()
