"""A long life, compressed: requests that come, go, are cancelled and fail at random, and nothing that stays behind."""

import gc
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.engine.instance import Ground, Instance, opened
from localmoe.engine.job import Job, Targets
from localmoe.engine.scheduler import MAX_BATCH, Limits
from localmoe.engine.shares import ShareControl
from localmoe.errors import LocalmoeError
from localmoe.events import Failed, Finished
from localmoe.settings import Settings

HOUR = 3600  # requests: one a second


class Flaky:
    """A program that fails now and then, or gives logits that are no numbers, for one run."""

    def __init__(self, program, random: np.random.Generator) -> None:
        self._program, self._random = program, random
        self.num_failures = 0

    def __getattr__(self, name: str):
        return getattr(self._program, name)

    def forward(self, *args, **options):
        luck = self._random.random()
        logits = self._program.forward(*args, **options)
        if luck < 0.002:
            self.num_failures += 1
            raise LocalmoeError("the disk is gone", "look for it") if luck < 0.001 else RuntimeError("boom")
        if luck < 0.004:
            self.num_failures += 1
            logits[0] = np.nan
        return logits


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@contextmanager
def flaky_instance(ground: Ground, seed: int):
    random = np.random.default_rng(seed)
    programs = Flaky(ground.program(128), random), Flaky(ground.program(MAX_BATCH), random)
    shares = ShareControl(ground.pool, ground.network.config, 0.75)
    instance = Instance(ground, programs, passing_tokens=32, limits=Limits(128, MAX_BATCH), shares=shares)
    try:
        yield instance, programs
    finally:
        instance.close()


class Soak:
    """Submits at random, keeps a few in flight, and counts how each ended."""

    def __init__(self, instance: Instance, seed: int) -> None:
        self._instance = instance
        self._random = np.random.default_rng([seed, 1])
        self._open: list[tuple[Job, float]] = []  # and when it is cancelled
        self.reasons: Counter[str] = Counter()
        self.resident: list[int] = []

    def run(self, count: int) -> None:
        for n in range(count):
            self._submit(n)
            while len(self._open) > 12:
                self._look()
            if n % max(1, count // 20) == 0:
                self.resident.append(resident_bytes())
        end_s = time.monotonic() + 60
        while self._open and time.monotonic() < end_s:
            self._look()
        assert not self._open, "requests that never end"
        self.resident.append(resident_bytes())

    def _submit(self, n: int) -> None:
        random = self._random
        length = int(random.integers(1, 60)) if random.random() < 0.9 else int(random.integers(200, 600))
        targets = Targets(float(random.uniform(0.1, 30)), float(random.uniform(0.001, 0.1)))
        job = self._instance.ask(length, int(random.integers(1, 16)), seed=n, targets=targets)
        cancel_s = time.monotonic() + float(random.exponential(0.02)) if random.random() < 0.3 else float("inf")
        self._open.append((job, cancel_s))

    def _look(self) -> None:
        time.sleep(0.001)
        now_s = time.monotonic()
        for job, cancel_s in list(self._open):
            if cancel_s <= now_s:
                job.stream.cancel()
            if job.stream.ended:
                self._open.remove((job, cancel_s))
                end = list(job.stream.events())[-1]
                assert isinstance(end, Finished | Failed)
                self.reasons[end.reason if isinstance(end, Finished) else "failed"] += 1


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    model = make_checkpoint(tmp_path_factory.mktemp("soak") / "tiny", **SHAPES["v3"])
    with opened(Settings(threads=2), str(model)) as ground:
        yield ground


def soak(ground: Ground, count: int, seed: int) -> None:
    num_threads = threading.active_count()
    with flaky_instance(ground, seed) as (instance, programs):
        soaked = Soak(instance, seed)
        soaked.run(count)
        assert soaked.reasons.total() == count
        assert set(soaked.reasons) == {"length", "cancelled", "failed"}
        assert soaked.reasons["failed"] >= sum(p.num_failures for p in programs) > 0
        for program in programs:
            program._random = np.random.default_rng(0)
            program.forward = program._program.forward
        last = instance.ask(50, 4, seed=1)
        assert list(last.stream.events())[-1].reason == "length", "the engine still answers"
    assert threading.active_count() == num_threads
    cache = ground.network.cache
    assert cache.free_pages == cache.num_pages
    warm, end = soaked.resident[len(soaked.resident) // 3], soaked.resident[-1]
    assert end <= 1.02 * warm, soaked.resident


def test_minutes_of_requests_leave_nothing_behind(ground):
    soak(ground, 400, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 4))
def test_hours_of_requests_leave_nothing_behind(ground, seed):
    soak(ground, HOUR, seed)
