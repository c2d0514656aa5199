"""Intervals of work: kept in a bounded buffer that any thread may look into."""

from localmoe.devices.spans import Span, Spans


def span(start_s, end_s):
    return Span("host", "load", 0, 0, start_s, end_s, 8)


def test_the_oldest_go_first():
    spans = Spans(most=3)
    for n in range(5):
        spans.add(span(n, n + 1))
    assert [s.start_s for s in spans.all()] == [2, 3, 4]


def test_a_reader_gets_each_once():
    spans = Spans(most=3)
    assert spans.added_from(0) == ([], 0)
    spans.add(span(0, 1))
    new, count = spans.added_from(0)
    assert [s.start_s for s in new] == [0]
    for n in range(1, 6):
        spans.add(span(n, n + 1))
    new, count = spans.added_from(count)
    assert [s.start_s for s in new] == [3, 4, 5]
    assert spans.added_from(count) == ([], 6)
