"""Both phases at once over one copy of the experts: nothing of it shows in the answers, nor in the memory."""

import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tiny import SHAPES, make_checkpoint

from localmoe.chat.message import Conversation, Message
from localmoe.engine.engine import Engine
from localmoe.engine.request import Request, Sampling
from localmoe.events import Finished, PrefillProgress, TextDelta
from localmoe.kernels import cpu
from localmoe.settings import Settings

LARGE = SHAPES["v3"] | {"hidden_size": 512, "n_routed_experts": 64, "moe_intermediate_size": 384}  # 75 MB of experts
GREEDY = Sampling(temperature=0)
SHORT, LONG = "How are you?", "Once upon a time there was a fox, and the fox was quick. " * 24


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("together") / "large", **LARGE))


def opened(model: str) -> Engine:
    return Engine.open(model, Settings(plan="cpu", context=4096, threads=2, prefill_chunk=256))


def request(text: str, session: str, max_tokens: int) -> Request:
    return Request(Conversation((Message("user", text),)), GREEDY, max_tokens, session=session)


def finished(stream) -> Finished:
    end = list(stream.events())[-1]
    assert isinstance(end, Finished), end
    return end


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Peak:
    """The largest resident set while it is entered."""

    def __enter__(self) -> "Peak":
        self.num_bytes = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            self.num_bytes = max(self.num_bytes, resident_bytes())


def both_at_once(engine: Engine) -> tuple[Finished, Finished, list[tuple[int, int]]]:
    """A long prompt is read while a short one's answer is made; also the workers' tiles of both classes by then."""
    pool = engine._opened.network.pool
    decoding = engine.submit(request(SHORT, "short", 1500))
    next(e for e in decoding.events() if isinstance(e, TextDelta))
    reading = engine.submit(request(LONG, "long", 4))
    next(e for e in reading.events() if isinstance(e, PrefillProgress))
    tiles = [tuple(pool.counters().tiles)]
    long = finished(reading)
    tiles.append(tuple(pool.counters().tiles))
    decoding.cancel()
    return finished(decoding), long, tiles


def test_answers_are_those_of_running_alone(large):
    with closing(opened(large)) as engine:
        short, long, tiles = both_at_once(engine)
        (urgent_0, bulk_0), (urgent_1, bulk_1) = tiles
        assert urgent_1 > urgent_0 and bulk_1 > bulk_0, "they did not run at the same time"
    with closing(opened(large)) as alone:
        assert finished(alone.submit(request(LONG, "a", 4))).output_ids == long.output_ids
        same = finished(alone.submit(request(SHORT, "b", len(short.output_ids))))
        assert same.output_ids == short.output_ids


def test_both_phases_read_the_same_bytes_and_memory_holds_them_once(large, monkeypatch):
    recorded: list[list[int]] = []

    def spied(experts, make=cpu.native_parts):
        if experts.parts:  # there are none where only scratch is counted
            recorded.append([part.blob.ctypes.data for part in experts.parts])
        return make(experts)

    monkeypatch.setattr(cpu, "native_parts", spied)
    before = resident_bytes()
    with closing(opened(large)) as engine, Peak() as peak:
        network = engine._opened.network
        per_program = network.config.num_moe_layers
        assert recorded == 3 * recorded[:per_program], "each phase's program has them, and the one of short prompts"
        arena = network._store._arena
        assert all(arena.address <= a < arena.address + engine.info.weight_bytes for part in recorded for a in part)
        both_at_once(engine)
        routed = sum(p.blob.nbytes for n in network.model.layers if n.moe for p in n.moe.experts.parts)
        others = engine.info.weight_bytes - routed + engine.info.cache_bytes + 3 * 16e6  # scratch of all programs
        assert routed > 70e6
        assert peak.num_bytes - before < 1.3 * routed + others, "more than one copy of the experts"


@pytest.mark.parametrize("seed", range(3))
def test_many_at_once_answer_as_each_does_alone(large, seed):
    random = np.random.default_rng(seed)
    texts = [LONG[: int(random.integers(10, len(LONG)))] + str(n) for n in range(6)]
    with closing(opened(large)) as engine:
        streams = []
        for n, text in enumerate(texts):
            streams.append(engine.submit(request(text, f"s{n}", 12)))
            time.sleep(float(random.random()) * 0.2)
        together = [finished(stream).output_ids for stream in streams]
        alone = [finished(engine.submit(request(text, f"a{n}", 12))) for n, text in enumerate(texts)]
    assert together == [end.output_ids for end in alone]
