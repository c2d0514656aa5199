"""The order of a request's events, the same for every engine."""

import re
from collections.abc import Sequence

from localmoe.events import Event, Failed, Finished, Heat, Lanes, PrefillProgress, Stats, TextDelta

_LETTERS = {"Queued": "Q", "PrefillProgress": "P", "TextDelta": "D", "Stats": "S", "Finished": "F", "Failed": "X"}
_LOOKS = (Lanes, Heat)  # into the engine: anywhere before the last figures


def assert_in_order(events: Sequence[Event], *, crowded: bool = False) -> None:
    """Queued?, PrefillProgress..., TextDelta and Stats, Stats, Finished; or Failed at any point.

    In a `crowded` cache a request may lose its pages while it is read, and begin again.
    """
    letters = "".join(_LETTERS[type(e).__name__] for e in events if not isinstance(e, _LOOKS))
    pattern = "[QP]*[DS]*(SF|X)" if crowded else "Q*P*[DS]*(SF|X)"
    assert re.fullmatch(pattern, letters), letters
    if not crowded:
        assert_progress([e for e in events if isinstance(e, PrefillProgress)])
    if isinstance(end := events[-1], Finished):
        assert_sums(events, end)
    else:
        assert isinstance(end, Failed) and end.message


def assert_progress(progress: Sequence[PrefillProgress]) -> None:
    done = [p.done_tokens for p in progress]
    assert done == sorted(done)
    if progress:
        assert done[0] == progress[0].cached_tokens
        assert all(p.done_tokens <= p.total_tokens for p in progress)


def assert_sums(events: Sequence[Event], end: Finished) -> None:
    for channel, text in (("answer", end.text), ("thought", end.reasoning)):
        assert "".join(e.text for e in events if isinstance(e, TextDelta) and e.channel == channel) == text
    stats = events[-2]
    assert isinstance(stats, Stats)
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "ttft_s", "prefill_tok_s", "decode_tok_s"):
        assert getattr(stats, name) == getattr(end, name), name
    assert len(end.output_ids) == end.completion_tokens and len(end.prompt_ids) == end.prompt_tokens
    if any(isinstance(e, TextDelta) for e in events):
        last = [e for e in events if isinstance(e, PrefillProgress)][-1]
        assert last.done_tokens == last.total_tokens == end.prompt_tokens
