import threading
import time

import numpy as np
import pytest
from order import assert_in_order
from toy import STOP, ToyEngine, toy_answer

from localmoe.engine.request import Sampling
from localmoe.errors import LocalmoeError, OutOfMemoryError
from localmoe.events import Failed, Finished, PrefillProgress, Queued, Stats, TextDelta

RANDOM = np.random.default_rng(3)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([length, seed]).integers(8, 50, length).tolist()


def finished(stream) -> Finished:
    events = list(stream.events())
    assert_in_order(events)
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def next_of(stream, kind):
    return next(e for e in stream.events() if isinstance(e, kind))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 300])
def test_the_answer_is_the_networks(length):
    with ToyEngine() as engine:
        assert engine.answer(prompt_of(length)) == toy_answer(prompt_of(length), 20)


def test_steps_wake_nobody_where_nothing_is_to_be_read(monkeypatch):
    with ToyEngine() as engine:
        roster, wakes = engine.loop._roster, []
        wake = roster.wake
        monkeypatch.setattr(roster, "wake", lambda: (wakes.append(threading.current_thread().name), wake()))
        assert len(engine.answer(prompt_of(20), max_tokens=100)) == 100
        assert wakes.count("localmoe-decode") <= 3  # its end


def test_the_prompt_is_read_in_chunks_with_progress():
    with ToyEngine(chunk=100) as engine:
        events = list(engine.ask(prompt_of(250)).events())
        assert [e.done_tokens for e in events if isinstance(e, PrefillProgress)] == [0, 100, 200, 250]
        assert [run[0] for run in engine.prefill.runs] == [100, 100, 50]
        assert_in_order(events)


def test_estimates_are_measured_rates():
    with ToyEngine(chunk=100, token_s=0.0002) as engine:
        first = [e for e in engine.ask(prompt_of(250)).events() if isinstance(e, PrefillProgress)]
        assert first[0].eta_s is None and first[0].tok_s == 0
        assert first[1].eta_s == pytest.approx(150 / first[1].tok_s)
        again = next_of(engine.ask(prompt_of(250, seed=1)), PrefillProgress)
        assert again.eta_s == pytest.approx(250 / first[-1].tok_s)


def test_a_long_chunk_tells_its_progress_on_the_way():
    with ToyEngine(chunk=500, token_s=0.002) as engine:
        events = list(engine.ask(prompt_of(500)).events())
        assert_in_order(events)
        told = [e for e in events if isinstance(e, PrefillProgress)]
        assert 4 <= len(told) <= 6
        for e in told[1:]:
            assert e.eta_s == pytest.approx((500 - e.done_tokens) / e.tok_s)
            assert e.tok_s == pytest.approx(500, rel=0.3)


def test_a_follow_up_reads_only_what_is_new():
    with ToyEngine() as engine:
        prompt = prompt_of(100)
        answer = engine.answer(prompt, session="a", max_tokens=5)
        longer = prompt + answer + prompt_of(30, seed=1)
        end = finished(engine.ask(longer, session="a"))
        assert end.cached_tokens == 104  # the last token was never fed
        assert list(end.output_ids) == toy_answer(longer, 20)


def test_a_repeated_prompt_reads_one_token():
    with ToyEngine() as engine:
        prompt = prompt_of(100)
        engine.answer(prompt, session="a")
        end = finished(engine.ask(prompt, session="a"))
        assert end.cached_tokens == 99 and list(end.output_ids) == toy_answer(prompt, 20)


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 65, 130])
def test_a_changed_prompt_rewinds(kept):
    with ToyEngine() as engine:
        engine.answer(prompt_of(150), session="a")
        changed = [*prompt_of(150)[:kept], 1, *prompt_of(40, seed=2)]
        end = finished(engine.ask(changed, session="a"))
        assert end.cached_tokens == kept and list(end.output_ids) == toy_answer(changed, 20)


def test_another_session_shares_the_pages_of_a_common_beginning():
    with ToyEngine() as engine:
        common = prompt_of(150)
        engine.answer(common, session="a")
        end = finished(engine.ask([*common, 1, 2], session="b"))
        assert end.cached_tokens == 150 and list(end.output_ids) == toy_answer([*common, 1, 2], 20)
        again = finished(engine.ask([*common, 3], session="a"))
        assert list(again.output_ids) == toy_answer([*common, 3], 20)


@pytest.mark.parametrize(("together", "passing"), [(False, 0), (True, 0), (True, 40)])
def test_many_at_once_give_what_each_gives_alone(together, passing):
    with ToyEngine(num_pages=200, token_s=0.0001, together=together, passing=passing) as engine:
        prompts = [prompt_of(n, seed=n) for n in (3, 70, 150, 20, 64, 1, 90, 33, 128, 5, 60)]
        streams = [engine.ask(p, max_tokens=40) for p in prompts]
        ends = [finished(s) for s in streams]
        assert [list(e.output_ids) for e in ends] == [toy_answer(p, 40) for p in prompts]
        assert max(len(run) for run in engine.decode.runs) > 1


def test_the_line_is_first_come_first_served_and_told():
    with ToyEngine(token_s=0.002) as engine:
        streams = [engine.ask(prompt_of(60, seed=i)) for i in range(4)]
        events = [list(s.events()) for s in streams]
        for es in events:
            assert_in_order(es)
        assert not any(isinstance(e, Queued) for e in events[0])
        assert [[e.position for e in es if isinstance(e, Queued)] for es in events[1:]] == [[0], [1, 0], [2, 1, 0]]
        ttfts = [es[-1].ttft_s for es in events]
        assert ttfts == sorted(ttfts)


def test_a_short_prompt_passes_a_long_one_between_chunks():
    with ToyEngine(num_pages=200, context=4096, chunk=100, token_s=0.001) as engine:
        long = engine.ask(prompt_of(1500), max_tokens=1)
        next_of(long, PrefillProgress)
        short = engine.ask(prompt_of(20), max_tokens=1)
        assert finished(short).ttft_s < 1.0 and not long.ended
        end = list(long.events())[-1]
        assert list(end.output_ids) == toy_answer(prompt_of(1500), 1)
        assert end.prefill_tok_s > 1500 / end.ttft_s  # the time in which it gave way is not its own


def test_a_short_prompt_passes_a_long_one_in_the_middle_of_its_run():
    with ToyEngine(num_pages=200, context=4096, chunk=2000, token_s=0.001, passing=32) as engine:
        long = engine.ask(prompt_of(1500), max_tokens=1)
        next_of(long, PrefillProgress)
        shorts = [engine.ask(prompt_of(20, seed=n), max_tokens=3) for n in range(3)]
        longer = engine.ask(prompt_of(33), max_tokens=1)  # than what passes
        assert [list(finished(s).output_ids) for s in shorts] == [toy_answer(prompt_of(20, n), 3) for n in range(3)]
        assert engine.passing.runs == [(20,)] * 3 and not longer.ended and len(engine.prefill.runs) == 1
        end = list(long.events())[-1]
        assert list(end.output_ids) == toy_answer(prompt_of(1500), 1)
        assert end.prefill_tok_s > 1500 / (end.ttft_s - 0.06)  # the time in which it gave way is not its own
        assert list(finished(longer).output_ids) == toy_answer(prompt_of(33), 1)


def test_time_in_which_a_short_prompt_is_read_beside_a_run_that_goes_on_is_that_runs_own():
    with ToyEngine(num_pages=200, context=4096, chunk=2000, token_s=0.001, passing=128) as engine:
        engine.prefill.gives_way = False
        long = engine.ask(prompt_of(1000), max_tokens=1)
        next_of(long, PrefillProgress)
        assert finished(engine.ask(prompt_of(128), max_tokens=1)) and not long.ended
        end = list(long.events())[-1]
        assert end.prefill_tok_s < 1000 / (1000 * 0.001)  # and would be a tenth more without that time


def test_a_prompt_that_passes_can_be_cancelled_and_can_fail():
    with ToyEngine(num_pages=200, context=4096, chunk=2000, token_s=0.001, passing=300) as engine:
        long = engine.ask(prompt_of(1500), max_tokens=1)
        next_of(long, PrefillProgress)
        engine.passing.fail_next = OutOfMemoryError("no", "wait")
        assert list(engine.ask(prompt_of(5)).events())[-1].message == "no"
        short = engine.ask(prompt_of(300), max_tokens=1)
        while len(engine.passing.runs) < 2:
            time.sleep(0.001)
        short.cancel()
        assert finished(short).reason == "cancelled" and not long.ended
        assert list(list(long.events())[-1].output_ids) == toy_answer(prompt_of(1500), 1)


def test_the_same_session_waits_for_its_answer():
    with ToyEngine(token_s=0.001) as engine:
        first = engine.ask(prompt_of(30), session="a", max_tokens=30, stop_ids=frozenset())
        second = engine.ask(prompt_of(30), session="a", max_tokens=3, stop_ids=frozenset())
        third = engine.ask(prompt_of(30, seed=1), session="b", max_tokens=3, stop_ids=frozenset())
        assert finished(third).completion_tokens == 3
        assert not second.ended
        assert finished(first).completion_tokens == 30
        assert finished(second).cached_tokens == 29


@pytest.mark.parametrize("together", [True, False])
def test_decoding_goes_on_beside_a_long_prompt(together):
    with ToyEngine(num_pages=200, context=4096, token_s=0.0005, together=together) as engine:
        first = engine.ask(prompt_of(5), max_tokens=2000, stop_ids=frozenset())
        next_of(first, TextDelta)
        second = engine.ask(prompt_of(1000), max_tokens=1)
        next_of(second, PrefillProgress)
        before = len(engine.decode.runs)
        list(second.events())
        assert len(engine.decode.runs) - before > 5
        first.cancel()


def test_stop_length_context():
    with ToyEngine(num_pages=2, context=100) as engine:
        prompt = prompt_of(90)
        assert finished(engine.ask(prompt, max_tokens=4, stop_ids=frozenset())).reason == "length"
        full = finished(engine.ask(prompt, max_tokens=None, stop_ids=frozenset()))
        assert full.reason == "context" and full.completion_tokens == 11  # ten of them in the cache
        stopped = finished(engine.ask(prompt, max_tokens=None, stop_ids=frozenset(range(50))))
        assert stopped.reason == "stop" and len(stopped.output_ids) == 1 and stopped.text == ""


def test_a_prompt_that_fills_the_context_gets_one_token():
    with ToyEngine(num_pages=2, context=128) as engine:
        end = finished(engine.ask(prompt_of(128), max_tokens=None, stop_ids=frozenset()))
        assert (end.reason, end.completion_tokens) == ("context", 1)


def test_thoughts_are_counted_and_timed():
    with ToyEngine(token_s=0.001) as engine:
        events = list(engine.ask(prompt_of(9), num_thought=4, max_tokens=9, stop_ids=frozenset()).events())
        stats = events[-2]
        assert stats.thought_tokens == 4 and 0 < stats.thought_s < stats.ttft_s + 1
        assert len(events[-1].reasoning.split()) == 4 and len(events[-1].text.split()) == 5
        assert_in_order(events)


def test_statistics_come_about_four_times_a_second():
    with ToyEngine(token_s=0.02) as engine:
        start_s = time.monotonic()
        events = list(engine.ask([8], max_tokens=60, stop_ids=frozenset()).events())
        quarters = (time.monotonic() - start_s) / 0.25
        assert 4 <= sum(isinstance(e, Stats) for e in events) <= quarters + 2


def test_seeds_are_reproducible_and_independent_of_the_batch():
    with ToyEngine() as engine:
        sampling = Sampling(temperature=1.0, top_p=1.0, seed=11)
        alone = engine.answer(prompt_of(20), sampling=sampling)
        streams = [engine.ask(prompt_of(20, seed=i)) for i in range(3)] + [engine.ask(prompt_of(20), sampling=sampling)]
        assert list(finished(streams[-1]).output_ids) == alone
        assert engine.answer(prompt_of(20), sampling=Sampling(1.0, 1.0, seed=12)) != alone


def cancel_s(stream) -> float:
    """How long a cancel takes."""
    start = time.monotonic()
    stream.cancel()
    end = finished(stream)
    assert end.reason == "cancelled"
    return time.monotonic() - start


def test_cancel_while_reading():
    with ToyEngine(token_s=0.02) as engine:
        times = []
        for _ in range(3):  # the best of three: other programs run on this machine
            stream = engine.ask(prompt_of(500), session="a")
            time.sleep(0.05)
            times.append(cancel_s(stream))
        assert min(times) < 0.1
        assert engine.answer([9], session="a", max_tokens=3) == toy_answer([9], 3)


def test_cancel_while_decoding_keeps_the_answer_and_spares_the_others():
    with ToyEngine(token_s=0.002) as engine:
        keep = engine.ask(prompt_of(20), max_tokens=60, stop_ids=frozenset())
        stop = engine.ask(prompt_of(20, seed=1), session="b", max_tokens=None, stop_ids=frozenset())
        for event in stop.events():
            if isinstance(event, TextDelta):
                break
        stop.cancel()
        events = list(stop.events())
        assert events[-1].reason == "cancelled" and events[-1].text
        ids = prompt_of(20, seed=1) + list(events[-1].output_ids)
        assert finished(engine.ask([*ids, 9], session="b")).cached_tokens == len(ids) - 1
        assert finished(keep).completion_tokens == 60


def test_cancel_in_the_line_is_at_once():
    with ToyEngine(token_s=0.005) as engine:
        first = engine.ask(prompt_of(500))
        next_of(first, PrefillProgress)
        second, third = engine.ask(prompt_of(9)), engine.ask(prompt_of(9))
        assert cancel_s(second) < 0.5 and not first.ended
        assert [e.position for e in [next_of(third, Queued), next_of(third, Queued)]] == [1, 0]
        first.cancel()
        assert finished(third)


def test_cancel_twice_or_too_late_is_harmless():
    with ToyEngine() as engine:
        stream = engine.ask(prompt_of(9))
        finished(stream)
        stream.cancel()
        assert engine.answer(prompt_of(9)) == toy_answer(prompt_of(9), 20)


def test_a_failing_run_fails_its_requests_only():
    with ToyEngine() as engine:
        engine.answer(prompt_of(64), session="a")
        engine.prefill.fail_next = RuntimeError("boom")
        events = list(engine.ask(prompt_of(64), session="a").events())
        assert_in_order(events)
        assert "boom" in events[-1].message and events[-1].hint
        engine.decode.fail_next = OutOfMemoryError("full", "empty it")
        assert list(engine.ask(prompt_of(9)).events())[-1] == Failed("full", "empty it", 5)
        assert engine.answer(prompt_of(64), session="a") == toy_answer(prompt_of(64), 20)


def test_logits_that_are_no_numbers_fail_one_request():
    with ToyEngine() as engine:
        engine.prefill.nan_for = 3
        good, bad = engine.ask(prompt_of(20)), engine.ask([8, 9, 3])
        end = list(bad.events())[-1]
        assert isinstance(end, Failed) and end.exit_code == 6 and "not a number" in end.message
        assert list(finished(good).output_ids) == toy_answer(prompt_of(20), 20)


def test_idle_sessions_make_room_oldest_first():
    with ToyEngine(num_pages=4, context=256) as engine:
        for name in "abc":
            engine.answer(prompt_of(60, seed=ord(name)), session=name, max_tokens=2)
        finished(engine.ask(prompt_of(100), session="d"))
        assert finished(engine.ask(prompt_of(60, seed=ord("c")), session="c")).cached_tokens == 59
        assert finished(engine.ask(prompt_of(60, seed=ord("a")), session="a")).cached_tokens == 0


def test_when_pages_run_out_the_youngest_starts_again_with_the_same_answer():
    with ToyEngine(num_pages=6, context=300, token_s=0.0001) as engine:
        prompts = [prompt_of(n, seed=n) for n in (60, 61, 62)]
        streams = [engine.ask(p, max_tokens=150, stop_ids=frozenset()) for p in prompts]
        ends = [finished(s) for s in streams]
        for prompt, end in zip(prompts, ends, strict=True):
            assert end.completion_tokens == 150
            with ToyEngine() as alone:
                assert alone.answer(prompt, max_tokens=150, stop_ids=frozenset()) == list(end.output_ids)
        assert sum(map(len, engine.decode.runs)) >= 3 * 149 - 6


def test_a_prompt_waits_for_pages():
    with ToyEngine(num_pages=4, context=256, token_s=0.001) as engine:
        first = engine.ask(prompt_of(120), max_tokens=30, stop_ids=frozenset())
        second = engine.ask(prompt_of(200), max_tokens=3, stop_ids=frozenset())
        assert finished(first).completion_tokens == 30
        assert finished(second).completion_tokens == 3


def test_close_ends_everything_and_refuses_more():
    engine = ToyEngine(token_s=0.005)
    streams = [engine.ask(prompt_of(200, seed=i)) for i in range(3)]
    time.sleep(0.02)
    start = time.monotonic()
    engine.loop.close()
    engine.loop.close()
    assert time.monotonic() - start < 0.5
    assert all(finished(s).reason == "cancelled" for s in streams)
    with pytest.raises(LocalmoeError, match="closed"):
        engine.ask(prompt_of(3))


@pytest.mark.parametrize("seed", range(6))
def test_random_cancels_leave_the_engine_whole(seed):
    random = np.random.default_rng(seed)
    options = {"together": seed % 3 > 0, "passing": 60 * (seed % 3 > 1)}
    with ToyEngine(num_pages=12, context=400, chunk=70, token_s=0.0003, **options) as engine:
        threads, streams = [], []
        for _i in range(25):
            prompt = prompt_of(int(random.integers(1, 300)), seed=int(random.integers(3)))
            stream = engine.ask(prompt, session=f"s{random.integers(4)}", max_tokens=int(random.integers(1, 60)))
            streams.append((prompt, stream))
            if random.random() < 0.6:
                threads.append(threading.Timer(random.random() * 0.3, stream.cancel))
                threads[-1].start()
            time.sleep(random.random() * 0.02)
        for prompt, stream in streams:
            events = list(stream.events())
            assert_in_order(events, crowded=True)
            made = list(events[-1].output_ids)
            assert made == toy_answer(prompt, len(made))
        for thread in threads:
            thread.join()
        assert engine.answer(prompt_of(399), max_tokens=1) == toy_answer(prompt_of(399), 1)
        for session in list(engine.loop.sessions._sessions.values()):
            session.table.release()
        assert engine.cache.free_pages == engine.cache.num_pages


@pytest.mark.parametrize("together", [True, False])
def test_an_error_of_the_engine_itself_ends_streams_and_not_the_engine(together):
    with ToyEngine(together=together) as engine:
        broken = engine.loop.sessions.num_available
        engine.loop.sessions.num_available = lambda: 1 // 0
        assert "ZeroDivisionError" in list(engine.ask(prompt_of(9)).events())[-1].message
        engine.loop.sessions.num_available = broken
        assert engine.answer(prompt_of(9)) == toy_answer(prompt_of(9), 20)


def test_only_where_both_phases_run_at_once_do_runs_overlap():
    for together in (True, False):
        with ToyEngine(num_pages=200, context=4096, token_s=0.0005, together=together) as engine:
            first = engine.ask(prompt_of(5), max_tokens=300, stop_ids=frozenset())
            next_of(first, TextDelta)
            engine.answer(prompt_of(600), max_tokens=1)
            first.cancel()
            overlap = any(a < d and c < b for a, b in engine.prefill.times for c, d in engine.decode.times)
            assert overlap == together


def test_the_stop_token_is_an_output_but_not_text():
    with ToyEngine() as engine:
        for seed in range(40):
            end = finished(engine.ask(prompt_of(10, seed=seed), max_tokens=400))
            if end.reason == "stop":
                assert end.output_ids[-1] == STOP and f"{STOP} " not in end.text.split(" ")
                return
        pytest.fail("no answer stopped")
