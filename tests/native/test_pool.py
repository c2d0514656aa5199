"""The worker pool: jobs from several threads at once, of both classes, cancelled at any moment."""

import os
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from localmoe import _native as native
from localmoe.errors import CancelledError
from localmoe.kernels.cpu import CpuProgram
from localmoe.kernels.ops import Segment


class Weight:
    """An ops.Linear of random float32."""

    scale = None

    def __init__(self, rows, cols):
        self.weight = np.random.default_rng(rows).standard_normal((rows, cols)).astype(np.float32)


class Pages:
    """An ops.PageTable that is never written to."""

    pages = np.zeros(20, np.int32)


def deep_program(pool, num_rows, num_layers=30, width=64, early=False):
    """x, times W again and again: many stages that depend on each other, short ones when W is small."""
    w, x = Weight(width, width), np.random.default_rng(1).standard_normal((num_rows, width)).astype(np.float32)

    def network(ops):
        value = ops.input(x)
        for _ in range(num_layers):
            value = ops.rms_norm(ops.linear(value, w), np.ones(width, np.float32), 1e-6)
        return value

    return CpuProgram(network, num_rows, pool, early=early)


def run(program, num_rows, urgent=True, cancel=None):
    segment = [Segment(Pages(), 0, num_rows)]
    return program.forward(np.zeros(num_rows, np.int32), segment, urgent=urgent, cancel=cancel, all_logits=True)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_jobs_of_both_classes_do_not_disturb_each_other(num_workers):
    pool = native.Pool([-1] * num_workers)
    expected = {rows: run(deep_program(pool, rows), rows) for rows in (1, 40)}
    wrong = []

    def work(rows, urgent):
        program = deep_program(pool, rows)
        for _ in range(40):
            if not np.array_equal(run(program, rows, urgent), expected[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=work, args=a) for a in [(1, True), (40, False), (1, True), (40, False)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(pool.counters().tiles)


def test_a_cancelled_job_ends_at_once_and_the_next_one_is_whole():
    pool, flag = native.Pool([-1, -1]), native.Flag()
    program = deep_program(pool, 40, 3000)
    expected = run(program, 40)
    rng = np.random.default_rng(5)
    for _ in range(20):
        flag.clear()
        timer = threading.Timer(float(rng.uniform(0, 0.02)), flag.set)
        timer.start()
        try:
            run(program, 40, cancel=flag)
        except CancelledError:
            assert flag.is_set()
        timer.join()
    flag.clear()
    assert np.array_equal(run(program, 40, cancel=flag), expected)


def test_a_flag_set_before_stops_everything():
    flag = native.Flag()
    flag.set()
    with pytest.raises(CancelledError):
        run(deep_program(native.Pool([-1]), 1), 1, cancel=flag)


def test_an_urgent_tile_waits_for_one_bulk_tile_at_most():
    pool, cancel = native.Pool([-1, -1]), native.Flag()
    urgent, bulk = deep_program(pool, 1), deep_program(pool, 40, width=1024)  # 22 tiles of 100 us a stage

    def read():
        with suppress(CancelledError):
            while True:
                run(bulk, 40, urgent=False, cancel=cancel)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while pool.counters().num_waits < 60:
            run(urgent, 1)
    finally:
        cancel.set()
        reader.join()
    counters = pool.counters()
    mean_us = 1e6 * sum(bulk_s for _, bulk_s in counters.busy_s) / counters.tiles[1]
    # Half a tile when tiles are interrupted at random; the rest of a stage would be 5 tiles and more.
    assert counters.wait_p50_us <= mean_us
    # What the machine does with our threads in the meantime stretches tiles and waits alike.
    assert counters.wait_p99_us <= counters.longest_tile_us[1] + counters.longest_begin_us[1]


@contextmanager
def running(program, num_rows, *, urgent):
    """One run of `program`, longer than what is done meanwhile."""
    cancel = native.Flag()

    def work():
        with suppress(CancelledError):
            run(program, num_rows, urgent=urgent, cancel=cancel)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        cancel.set()
        thread.join()


@pytest.mark.parametrize("early", [False, True])
def test_a_program_that_goes_early_gets_the_workers_of_other_bulk_work(early):
    pool = native.Pool([-1])
    long, short = deep_program(pool, 40, 3000, width=512), deep_program(pool, 40, 200, width=512, early=early)
    expected = run(short, 40)
    with running(long, 40, urgent=False):
        while not long.progress:
            time.sleep(0.001)
        assert np.array_equal(run(short, 40, urgent=False), expected)
        done = long.progress  # 15 times as long: else it ends first
    assert (done < 0.5) == early


@pytest.fixture(scope="module")
def endless():
    """A pool, and programs of both classes that run until they are cancelled."""
    pool = native.Pool([-1, -1])
    # Stages of 170 bulk tiles: where they end one worker may find none for a while, and then takes urgent ones.
    return pool, deep_program(pool, 1, 50000, width=1024), deep_program(pool, 1280, 500, width=1024)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_the_urgent_class_gets_its_share_of_the_workers_where_it_could_have_more(endless, share):
    pool, urgent, bulk = endless
    pool.share = share
    with running(urgent, 1, urgent=True), running(bulk, 1280, urgent=False):
        while not all(pool.counters().tiles):
            time.sleep(0.01)
        pool.reset_counters()
        while np.sum(pool.counters().busy_s) < 1.0:
            time.sleep(0.01)
        counters = pool.counters()
    used = np.sum(counters.busy_s, axis=0)
    assert used[0] / used.sum() == pytest.approx(share, abs=0.15)  # first always: two thirds
    assert counters.wait_p99_us <= counters.longest_tile_us[1] + counters.longest_begin_us[1]


@pytest.mark.parametrize("urgent", [True, False])
def test_a_class_alone_gets_all_workers_whatever_the_share(urgent):
    pool = native.Pool([-1, -1])
    rows = 1 if urgent else 40
    program = deep_program(pool, rows, num_layers=100, width=1024)
    run(program, rows, urgent)

    def seconds(share):
        pool.share = share
        start_s = time.perf_counter()
        run(program, rows, urgent)
        return time.perf_counter() - start_s

    pairs = [(seconds(1.0), seconds(0.01 if urgent else 0.99)) for _ in range(8)]
    whole, small = map(min, zip(*pairs, strict=True))
    assert small < 5 * whole  # held to its share it would take a hundred times as long


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    pool = native.Pool([-1])
    with pytest.raises(ValueError, match="share"):
        pool.share = share
    assert pool.share == 1.0


def test_counters_count_each_class_until_they_are_reset():
    pool = native.Pool([-1])
    fresh = pool.counters()
    assert fresh.tiles == [0, 0]
    assert (fresh.num_waits, fresh.wait_p50_us, fresh.wait_p99_us, fresh.wait_max_us) == (0, 0, 0, 0)
    since = time.perf_counter()
    run(deep_program(pool, 1, 10), 1)
    elapsed_s = time.perf_counter() - since
    used = pool.counters()
    num_tiles, busy_s = used.tiles[0], used.busy_s[0][0]
    assert num_tiles >= 10
    assert used.tiles[1] == used.busy_s[0][1] == used.longest_tile_us[1] == used.num_waits == 0
    assert 0 < used.longest_tile_us[0] <= 1e6 * busy_s <= 1e6 * elapsed_s
    run(deep_program(pool, 1, 10), 1)
    assert pool.counters().tiles[0] == 2 * num_tiles
    pool.reset_counters()
    reset = pool.counters()
    assert reset.tiles == reset.longest_tile_us == reset.longest_begin_us == reset.busy_s[0] == [0, 0]


def test_idle_workers_sleep():
    pool = native.Pool([-1] * 4)
    run(deep_program(pool, 1), 1)
    time.sleep(0.1)
    before = sum(os.times()[:2])
    time.sleep(0.5)
    assert sum(os.times()[:2]) - before < 0.05, "an idle pool burns CPU time"


def test_pools_come_and_go():
    for n in range(30):
        run(deep_program(native.Pool([-1] * (1 + n % 4)), 1, 5), 1)


def test_a_pool_without_workers_is_refused():
    with pytest.raises(ValueError, match="at least one worker"):
        native.Pool([])


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="no target"):
        native.check_target("sse9")
