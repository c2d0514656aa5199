import pytest

from localmoe.engine.scheduler import (
    MAX_BATCH,
    Active,
    Admit,
    Decode,
    Idle,
    Prefill,
    State,
    Waiting,
    next_action,
    next_lead,
)

CHUNK = 512
READING, DECODING = Active("r", unread=2000), Active("d")


def action(waiting=(), active=(), free_pages=100, lead_s=0.0):
    return next_action(State(waiting, active, free_pages, lead_s), CHUNK)


def test_nothing_to_do():
    assert action() == Idle()


def test_the_first_in_the_line_is_read_first():
    assert action([Waiting("a", 3), Waiting("b", 1)]) == Admit(0)


def test_one_is_read_at_a_time():
    assert action([Waiting("a", 3)], [READING]) == Prefill(CHUNK)


def test_a_chunk_is_no_longer_than_what_is_left():
    assert action(active=[Active("r", unread=7)]) == Prefill(7)


@pytest.mark.parametrize("chunk", [1, 7, 63])
def test_a_chunk_beside_decoding_sessions_still_fits_the_reader(chunk):
    state = State((), [DECODING, READING], 100, lead_s=1.0)
    assert next_action(state, chunk) == Prefill(chunk)


def test_all_that_have_been_read_decode():
    assert action(active=[DECODING, Active("e")]) == Decode()


def test_a_new_request_is_admitted_beside_those_that_decode():
    assert action([Waiting("a", 3)], [DECODING]) == Admit(0)


def test_a_full_batch_admits_nobody():
    active = [Active(f"s{n}") for n in range(MAX_BATCH)]
    assert action([Waiting("a", 3)], active) == Decode()
    assert action([Waiting("a", 3)], active[1:]) == Admit(0)


def test_a_session_answers_one_request_at_a_time_and_others_pass():
    assert action([Waiting("d", 3)], [DECODING]) == Decode()
    assert action([Waiting("d", 3), Waiting("a", 3)], [DECODING]) == Admit(1)


def test_a_prompt_waits_for_its_pages_and_is_not_overtaken():
    waiting = [Waiting("long", 100), Waiting("short", 1)]
    assert action(waiting, [DECODING], free_pages=100) == Decode()
    assert action(waiting, [DECODING], free_pages=101) == Admit(0)
    assert action(waiting, free_pages=100) == Admit(0)


def test_who_has_run_less_has_its_turn():
    both = [DECODING, READING]
    assert action(active=both, lead_s=-0.01) == Decode()
    assert action(active=both, lead_s=0.0) == Decode()
    assert action(active=both, lead_s=0.01) == Prefill(CHUNK // 4)


@pytest.mark.parametrize(("decode_s", "prefill_s"), [(0.01, 0.01), (0.1, 0.01), (0.01, 1.3), (0.5, 0.07)])
def test_both_phases_get_half_of_the_time(decode_s, prefill_s):
    both, lead, spent = [DECODING, READING], 0.0, {Decode: 0.0, Prefill: 0.0}
    for _ in range(2000):
        chosen = action(active=both, lead_s=lead)
        seconds = decode_s if isinstance(chosen, Decode) else prefill_s
        spent[type(chosen)] += seconds
        lead = next_lead(lead, chosen, seconds, both)
    assert abs(spent[Decode] - spent[Prefill]) <= 2 * max(decode_s, prefill_s)


def test_time_alone_is_not_held_against_a_phase():
    assert next_lead(3.0, Decode(), 0.1, [DECODING]) == 0.0
    assert next_lead(-3.0, Prefill(9), 0.1, [READING]) == 0.0
    assert next_lead(3.0, Idle(), 0.1, []) == 0.0
