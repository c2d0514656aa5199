import itertools

import pytest

from localmoe.engine.scheduler import (
    AIM,
    ASSUMED_TOK_S,
    MAX_BATCH,
    MAX_BEGUN,
    PATIENCE,
    Active,
    Admit,
    Decode,
    Idle,
    Limits,
    Prefill,
    State,
    Waiting,
    due_s,
    needed_share,
    next_lead,
    next_pass,
    next_read,
    next_step,
    next_turn,
)

CHUNK = 512
LIMITS = Limits(CHUNK)
READING, DECODING = Active("r", unread=2000), Active("d")


def read(waiting=(), active=(), free_pages=100, limits=LIMITS):
    return next_read(State(waiting, active, free_pages, read_tok_s=ASSUMED_TOK_S), limits)


def turn(waiting=(), active=(), free_pages=100, lead_s=0.0, limits=LIMITS):
    return next_turn(State(waiting, active, free_pages, lead_s), limits)


@pytest.mark.parametrize("policy", [next_read, next_pass, next_step, next_turn])
def test_nothing_to_do(policy):
    assert policy(State((), (), 100), LIMITS) == Idle()


def test_the_first_in_the_line_is_read_first():
    assert read([Waiting("a", 3, 100, since_s=1), Waiting("b", 3, 100, since_s=2)]) == Admit(0)
    assert read([Waiting("a", 3, 100, since_s=2), Waiting("b", 3, 100, since_s=1)]) == Admit(1)


def test_a_short_prompt_passes_a_long_one_that_came_little_earlier():
    assert read([Waiting("long", 9, 5000, since_s=0), Waiting("short", 1, 50, since_s=10)]) == Admit(1)


def test_but_not_once_the_long_one_has_waited_for_its_time():
    time_s = PATIENCE * 5000 / ASSUMED_TOK_S
    assert read([Waiting("long", 9, 5000, since_s=0), Waiting("short", 1, 1, since_s=time_s)]) == Admit(0)


def test_a_long_prompt_gives_way_between_chunks():
    reading = Active("long", unread=5000)
    assert read([Waiting("short", 1, 50, since_s=10)], [reading]) == Admit(0)
    assert read((), [reading, Active("short", unread=50, since_s=10)]) == Prefill(1, 50)


def test_a_prompt_that_is_nearly_read_does_not_give_way():
    nearly = Active("long", unread=40, admitted=5000)
    assert read([Waiting("short", 1, 50, since_s=10)], [nearly]) == Prefill(0, 40)
    assert read([Waiting("short", 1, 30, since_s=10)], [nearly]) == Admit(0)


def passing(waiting=(), active=(), free_pages=100):
    return next_pass(State(waiting, active, free_pages, read_tok_s=ASSUMED_TOK_S), Limits(CHUNK, passing=100))


RUNNING = Active("long", unread=5000, runs=True)


def test_a_short_prompt_is_read_while_a_longer_ones_run_goes_on():
    assert passing([Waiting("short", 1, 100, since_s=10)], [RUNNING]) == Admit(0)
    assert passing((), [RUNNING, Active("short", unread=100, since_s=10)]) == Prefill(1, 100)
    assert passing([Waiting("other", 1, 100)], [RUNNING, Active("short", unread=100, since_s=10)]) == Prefill(1, 100)


@pytest.mark.parametrize(
    ("waiting", "active"),
    [
        (Waiting("short", 1, 100), ()),  # nothing to pass
        (Waiting("short", 1, 100), [Active("long", unread=5000)]),  # whose run has ended
        (Waiting("short", 1, 100), [Active("answer", runs=True)]),
        (Waiting("long", 1, 101), [RUNNING]),
        (Waiting("as long", 1, 90), [Active("nearly read", unread=90, runs=True, admitted=5000)]),
        (Waiting("late", 1, 100, since_s=PATIENCE * 5000 / ASSUMED_TOK_S), [RUNNING]),
        (Waiting("long", 1, 100), [RUNNING]),  # of the same session
        (Waiting("short", 100, 100), [RUNNING]),  # without room
    ],
)
def test_who_passes_nobody(waiting, active):
    assert passing([waiting], active) == Idle()


def test_who_runs_already_is_not_read_twice():
    short = Active("short", unread=100, since_s=10, runs=True)
    assert read((), [RUNNING, short]) == Idle()
    assert read((), [Active("long", unread=5000), short]) == Prefill(0, CHUNK)
    assert passing((), [RUNNING, short]) == Idle()


def test_prompts_need_what_brings_each_in_time():
    def need(*prompts, now_s=0.0, read_tok_s=100.0):
        return needed_share(State(prompts, (), 100, read_tok_s=read_tok_s), now_s)

    first, second = Waiting("a", 1, 100, target_s=2.0 / AIM), Waiting("b", 1, 200, target_s=10.0 / AIM)
    assert need(first) == pytest.approx(0.5) and need(second) == pytest.approx(0.2)
    assert need(second, first) == pytest.approx(0.5)
    assert need(second, first, now_s=1.0) == need(second, first, now_s=1.6) == 1.0
    assert need(second, first, now_s=1.7) == pytest.approx(2 / 8.3), "what comes too late anyway needs no haste"
    assert need(first, Waiting("b", 1, 200, target_s=3.5 / AIM)) == pytest.approx(3 / 3.5)  # each in its turn
    assert need() == 0.0 and need(first, read_tok_s=None) == 0.0
    reading = [Active("a", unread=50, target_s=2.0 / AIM), Active("answer")]
    assert needed_share(State((), reading, 100, read_tok_s=100.0), 0.0) == pytest.approx(0.25)


def test_only_so_many_prompts_are_begun():
    begun = [Active(f"r{n}", unread=5000) for n in range(MAX_BEGUN)]
    assert read([Waiting("short", 1, 50)], begun[1:]) == Admit(0)
    assert read([Waiting("short", 1, 50)], begun) == Prefill(0, CHUNK)


def test_a_tighter_target_goes_first():
    waiting = [Waiting("a", 3, 1000, target_s=30.0), Waiting("b", 3, 1000, since_s=1, target_s=15.0)]
    assert read(waiting) == Admit(1)


@pytest.mark.parametrize("num_tokens", [1, 100, 1000, 3000, 3001, 100_000])
def test_a_prompt_is_due_within_its_target_where_it_can_be_read_by_then(num_tokens):
    patience_s = due_s(Waiting("a", 1, num_tokens, since_s=7.0), 100.0) - 7.0
    assert 0 < patience_s <= max(30.0, PATIENCE * num_tokens / 100.0)
    assert num_tokens > 3000 or patience_s <= 30.0


def test_more_to_read_is_never_due_earlier():
    dues = [due_s(Waiting("a", 1, n), 100.0) for n in range(1, 6000, 7)]
    assert all(a <= b for a, b in itertools.pairwise(dues))


def test_a_chunk_is_no_longer_than_what_is_left():
    assert read(active=[Active("r", unread=7)]) == Prefill(0, 7)


def test_beside_others_a_chunk_is_as_short_as_the_plan_says():
    reading, limits = Active("r", unread=2000), Limits(CHUNK, beside=128)
    assert read((), [reading], limits=limits) == Prefill(0, CHUNK)
    assert read((), [reading, DECODING], limits=limits) == Prefill(0, 128)
    assert read([Waiting("a", 1, 5000)], [reading], limits=limits) == Prefill(0, 128)


def test_both_phases_ask_for_themselves_where_they_run_at_once():
    state = State((), [DECODING, READING], 100)
    assert next_read(state, LIMITS) == Prefill(1, CHUNK)
    assert next_step(state, LIMITS) == Decode()
    assert next_step(State((), [READING], 100), LIMITS) == Idle()


@pytest.mark.parametrize("chunk", [1, 7, 63])
def test_a_chunk_in_turns_still_fits_the_reader(chunk):
    assert turn(active=[DECODING, READING], lead_s=1.0, limits=Limits(chunk)) == Prefill(1, chunk)


def test_all_that_have_been_read_decode():
    assert turn(active=[DECODING, Active("e")]) == Decode()


def test_a_new_request_is_admitted_beside_those_that_decode():
    assert turn([Waiting("a", 3)], [DECODING]) == Admit(0)


@pytest.mark.parametrize("batch", [1, 3, MAX_BATCH])
def test_a_full_batch_admits_nobody(batch):
    active = [Active(f"s{n}") for n in range(batch)]
    assert read([Waiting("a", 3)], active, limits=Limits(CHUNK, batch)) == Idle()
    assert read([Waiting("a", 3)], active[1:], limits=Limits(CHUNK, batch)) == Admit(0)


def test_a_session_answers_one_request_at_a_time_and_others_pass():
    assert read([Waiting("d", 3)], [DECODING]) == Idle()
    assert read([Waiting("d", 3), Waiting("a", 3)], [DECODING]) == Admit(1)


def test_a_prompt_waits_for_its_pages_and_is_not_overtaken():
    waiting = [Waiting("first", 100), Waiting("second", 1, since_s=1)]
    assert read(waiting, [DECODING], free_pages=100) == Idle()
    assert read(waiting, [DECODING], free_pages=101) == Admit(0)
    assert read(waiting, free_pages=100) == Admit(0)


def test_who_has_run_less_has_its_turn():
    both = [DECODING, READING]
    assert turn(active=both, lead_s=-0.01) == Decode()
    assert turn(active=both, lead_s=0.0) == Decode()
    assert turn(active=both, lead_s=0.01) == Prefill(1, CHUNK // 4)


@pytest.mark.parametrize(("decode_s", "prefill_s"), [(0.01, 0.01), (0.1, 0.01), (0.01, 1.3), (0.5, 0.07)])
def test_in_turns_both_phases_get_half_of_the_time(decode_s, prefill_s):
    both, lead, spent = [DECODING, READING], 0.0, {Decode: 0.0, Prefill: 0.0}
    for _ in range(2000):
        chosen = turn(active=both, lead_s=lead)
        seconds = decode_s if isinstance(chosen, Decode) else prefill_s
        spent[type(chosen)] += seconds
        lead = next_lead(lead, chosen, seconds, both)
    assert abs(spent[Decode] - spent[Prefill]) <= 2 * max(decode_s, prefill_s)


def test_time_alone_is_not_held_against_a_phase():
    assert next_lead(3.0, Decode(), 0.1, [DECODING]) == 0.0
    assert next_lead(-3.0, Prefill(0, 9), 0.1, [READING]) == 0.0
    assert next_lead(3.0, Idle(), 0.1, []) == 0.0
