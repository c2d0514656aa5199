"""What those who wait in the line are told."""

from localmoe.chat.message import Conversation, Message
from localmoe.engine.job import Job
from localmoe.engine.line import Line
from localmoe.engine.request import Request
from localmoe.events import Queued


class NoText:
    num_thought_tokens = 0

    def feed(self, token_id):
        return []

    def flush(self):
        return []


def job(num_tokens: int) -> Job:
    request = Request(Conversation((Message("user", "a"),)))
    return Job(request, [0] * num_tokens, NoText(), max_tokens=1, stop_ids=frozenset(), on_cancel=lambda job: None)


def line_of(*lengths: int) -> tuple[Line, list[Job]]:
    line, jobs = Line(), [job(length) for length in lengths]
    for each in jobs:
        line.join(each)
    return line, jobs


def told(each: Job) -> list[Queued]:
    return list(each.stream._events)


def test_the_estimate_is_of_all_that_is_read_before():
    line, jobs = line_of(100, 50, 10)
    line.tell_positions(num_unread=200, tok_s=100.0)
    assert [told(each) for each in jobs] == [[Queued(0, 2.0)], [Queued(1, 3.0)], [Queued(2, 3.5)]]


def test_whoever_is_read_at_once_waits_for_nobody_and_is_waited_for():
    line, jobs = line_of(100, 50)
    line.tell_positions(num_leaving=1, tok_s=100.0)
    assert [told(each) for each in jobs] == [[], [Queued(0, 1.0)]]


def test_without_a_known_speed_there_is_no_estimate():
    line, (first,) = line_of(100)
    line.tell_positions(num_unread=200)
    assert told(first) == [Queued(0, None)]


def test_only_what_a_reader_would_notice_is_told_again():
    line, (first,) = line_of(100)
    for num_unread in (1000, 950, 899, 890, 100):
        line.tell_positions(num_unread=num_unread, tok_s=100.0)
    assert told(first) == [Queued(0, 10.0), Queued(0, 8.99), Queued(0, 1.0)]
