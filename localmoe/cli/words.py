"""Events in one line each, for stderr."""

from localmoe.engine.request import EngineInfo
from localmoe.events import Event, Finished, Loading, PrefillProgress, Queued, Stats
from localmoe.tui.figures import estimate, percent, rate, seconds, size, turn


def progress_line(event: Event) -> str:
    """What goes on, for the line that is drawn over; "" when `event` is no progress."""
    match event:
        case Loading():
            return _loading(event)
        case Queued():
            return _joined(f"waiting behind {event.position + 1}", turn(event.eta_s))
        case PrefillProgress():
            return _prefill(event)
        case Stats() if event.completion_tokens:
            return _joined(f"{event.completion_tokens:,} tok", rate(event.decode_tok_s) if event.decode_tok_s else "")
    return ""


def _loading(event: Loading) -> str:
    """Reading 34 % · 1.5 GB of 4.4 GB · 812 MB/s · 4 s left."""
    if not event.total_bytes:
        return event.stage
    share = percent(event.done_bytes / event.total_bytes)
    speed = f"{size(round(event.rate_bytes_s))}/s" if event.rate_bytes_s else ""
    amount = f"{size(event.done_bytes)} of {size(event.total_bytes)}"
    return _joined(f"{event.stage} {share}", amount, speed, estimate(event.eta_s))


def _prefill(event: PrefillProgress) -> str:
    """Prefill 71 % · 12,410 of 17,480 tok · 1,212 tok/s · 4 s left."""
    share = percent(event.done_tokens / max(1, event.total_tokens))
    speed = rate(event.tok_s) if event.tok_s else ""
    amount = f"{event.done_tokens:,} of {event.total_tokens:,} tok"
    return _joined(f"prefill {share}", amount, speed, estimate(event.eta_s))


def stats_line(info: EngineInfo, finished: Finished) -> str:
    """As one line: guide · 1,204 prompt tok (900 cached) · TTFT 1.8 s · prefill 171 tok/s · 14 tok at 22.3 tok/s."""
    cached = f" ({finished.cached_tokens:,} cached)" if finished.cached_tokens else ""
    speed = f" at {rate(finished.decode_tok_s)}" if finished.decode_tok_s else ""
    return _joined(
        info.model,
        f"{finished.prompt_tokens:,} prompt tok{cached}",
        f"TTFT {seconds(finished.ttft_s)}" if finished.ttft_s is not None else "",
        f"prefill {rate(finished.prefill_tok_s)}" if finished.prefill_tok_s else "",
        f"{finished.completion_tokens:,} tok{speed}",
        "" if finished.reason == "stop" else finished.reason,
        f"{info.isa}, {info.num_threads} threads",
    )


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
