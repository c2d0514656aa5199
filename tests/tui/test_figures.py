import pytest

from localmoe.tui import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9_999, "9,999"), (10_240, "10K"), (12_698, "12.4K"), (131_072, "128K")],
)
def test_tokens(value, text):
    assert figures.tokens(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (14_591_800, "14.6 MB"),
        (688_586_727_753, "688.6 GB"),
        (1_030_000_000_000, "1.03 TB"),
    ],
)
def test_sizes(value, text):
    assert figures.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0312, "31 ms"), (0.0996, "0.1 s"), (14.93, "14.9 s"), (59.96, "1 min 0 s"), (151.2, "2 min 31 s")],
)
def test_seconds(value, text):
    assert figures.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, ""), (3.6, "4 s left"), (-1, "0 s left"), (151, "2 min 31 s left")])
def test_estimates(value, text):
    assert figures.estimate(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0.0, "–"), (21.43, "21.4 tok/s"), (1212.3, "1,212 tok/s")])
def test_rates(value, text):
    assert figures.rate(value) == text


def test_nothing_is_done_before_it_is_done():
    assert figures.percent(0.9999) == "99 %"
    assert figures.percent(1.0) == "100 %"


def test_a_gauge_fills_and_never_overflows():
    assert figures.gauge(0.5, 4) == ("▓▓", "░░")
    assert figures.gauge(7, 4) == ("▓▓▓▓", "")
    assert figures.gauge(-1, 4) == ("", "░░░░")


def test_a_steady_rate_looks_steady():
    assert figures.sparkline([21.3, 21.4, 21.3], 8) == "███"
    assert figures.sparkline([1.0] * 20, 8) == "█" * 8
    assert figures.sparkline([0.0], 8) == ""
    assert figures.sparkline([], 8) == ""
