import pytest

from localmoe.engine.metrics import MOST_AHEAD, MOST_PARTS, Meter, estimate_s


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock) -> Meter:
    return Meter(clock)


def test_nothing_is_claimed_before_it_is_measured(meter):
    assert (meter.ttft_s, meter.prefill_tok_s, meter.decode_tok_s, meter.thought_s) == (None,) * 4


def test_time_to_first_token_includes_the_line(meter, clock):
    clock.now_s = 2.0
    meter.reading()
    clock.now_s = 5.0
    meter.made(thought=False)
    assert meter.ttft_s == 5.0


def test_an_answer_is_ahead_by_what_it_saved_but_for_so_many_tokens_at_most(meter, clock):
    assert meter.ahead_s(0.1) == 0
    for clock.now_s in (1.0, 1.05, 1.1):
        meter.made(thought=False)
    assert meter.ahead_s(0.1) == pytest.approx(0.1)
    clock.now_s = 1.5
    assert meter.ahead_s(0.1) == pytest.approx(-0.3)
    clock.now_s = 99.0
    assert meter.ahead_s(0.1) == pytest.approx(-0.1 * MOST_AHEAD)


def test_time_in_which_another_prompt_was_read_is_not_counted(meter, clock):
    meter.reading()
    clock.now_s = 2.0
    meter.read(100)
    clock.now_s = 7.0
    meter.resumed()
    clock.now_s = 8.0
    meter.read(50)
    assert meter.prefill_tok_s == pytest.approx(50.0)


def test_prefill_counts_tokens_read_since_reading_began(meter, clock):
    clock.now_s = 2.0
    meter.reading()
    for clock.now_s in (3.0, 4.0):
        meter.read(100)
    clock.now_s = 9.0
    assert meter.prefill_tok_s == 100.0


def test_reading_again_starts_again(meter, clock):
    meter.reading()
    clock.now_s = 1.0
    meter.read(50)
    meter.reading()
    clock.now_s = 2.0
    meter.read(10)
    assert meter.prefill_tok_s == 10.0


def test_decode_counts_tokens_after_the_first(meter, clock):
    for clock.now_s in (1.0, 1.5, 2.0):
        meter.made(thought=False)
    assert meter.decode_tok_s == 2.0


def test_thoughts_have_their_own_count_and_time(meter, clock):
    for clock.now_s in (1.0, 1.5, 2.5):
        meter.made(thought=True)
    clock.now_s = 9.0
    meter.made(thought=False)
    assert (meter.num_thought, meter.thought_s, meter.num_made) == (3, 1.5, 4)


def test_figures_are_due_four_times_a_second(meter, clock):
    due = 0
    for step in range(200):
        clock.now_s = step / 100
        due += meter.is_due()
    assert due == 8


def test_estimates_need_a_rate():
    assert estimate_s(100, None) is None and estimate_s(100, 0.0) is None
    assert estimate_s(100, 50.0) == 2.0


def test_the_rate_now_is_that_between_two_looks(meter, clock):
    meter.made(thought=False)
    assert meter.is_due() and meter.decode_now_tok_s is None
    for clock.now_s in (0.1, 0.2, 0.3, 0.4):
        meter.made(thought=False)
    assert meter.is_due() and meter.decode_now_tok_s == pytest.approx(10)
    clock.now_s = 0.5
    assert not meter.is_due() and meter.decode_now_tok_s == pytest.approx(10)


def test_parts_of_a_prompt_have_rates_of_their_own(meter, clock):
    meter.reading()
    assert meter.parts_tok_s(0) == ()
    clock.now_s = 1.0
    assert meter.parts_tok_s(50) == (50,)
    clock.now_s = 1.5
    meter.read(100)
    assert meter.parts_tok_s(0) == (50, 100)
    assert meter.parts_tok_s(0) == (50, 100)
    for _ in range(2 * MOST_PARTS):
        clock.now_s += 1
        meter.read(10)
        meter.parts_tok_s(0)
    assert meter.parts_tok_s(0) == (10,) * MOST_PARTS
