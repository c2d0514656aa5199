"""Numbers as people read them. Every string here is ASCII or one cell a character."""

import math
from collections.abc import Sequence
from datetime import datetime
from unicodedata import combining, east_asian_width

UNKNOWN = "–"
_BARS = "▁▂▃▄▅▆▇█"


def tokens(count: int) -> str:
    """4096 -> "4,096"; 131072 -> "128K" (1,024 a K)."""
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1024:.1f}".removesuffix(".0") + "K"


def size(num_bytes: int) -> str:
    """14591800 -> "14.6 MB"."""
    value = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def seconds(duration_s: float | None) -> str:
    """0.0312 -> "31 ms"; 14.93 -> "14.9 s"; 151 -> "2 min 31 s"."""
    if duration_s is None:
        return UNKNOWN
    if duration_s < 0.0995:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 59.95:
        return f"{duration_s:.1f} s"
    minutes, rest_s = divmod(round(duration_s), 60)
    return f"{minutes} min {rest_s} s"


def estimate(eta_s: float | None) -> str:
    """What is left, in whole seconds: an estimate deserves no decimals."""
    if eta_s is None:
        return ""
    minutes, rest_s = divmod(max(0, round(eta_s)), 60)
    return f"{minutes} min {rest_s} s left" if minutes else f"{rest_s} s left"


def turn(eta_s: float | None) -> str:
    """When a request that waits is read, as estimated."""
    return f"its turn in {estimate(eta_s).removesuffix(' left')}" if eta_s is not None else ""


def rate(tok_s: float | None) -> str:
    """21.43 -> "21.4 tok/s"; 1212.3 -> "1,212 tok/s"."""
    if not tok_s:
        return UNKNOWN
    return f"{tok_s:,.0f} tok/s" if tok_s >= 100 else f"{tok_s:.1f} tok/s"


def percent(fraction: float) -> str:
    """0.714 -> "71 %". Not 100 before it is done."""
    return f"{int(fraction * 100)} %"


def gauge(fraction: float, width: int) -> tuple[str, str]:
    """The full and the empty part of a bar of `width` cells."""
    full = round(min(1.0, max(0.0, fraction)) * width)
    return "▓" * full, "░" * (width - full)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars over zero, so that steady looks steady."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(_BARS[min(7, int(value / top * 7.99))] for value in shown) if top > 0 else ""


def levels(shares: Sequence[float]) -> str:
    """A cell for each share of 0 to 1: empty for nothing, and seen as soon as there is anything."""
    return "".join(" " if share <= 0 else _BARS[min(7, math.ceil(share * 8) - 1)] for share in shares)


def moment(ms: int) -> str:
    """When, where the user is: "2026-11-30 05:29"."""
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M")


def cells(text: str) -> int:
    """How wide `text` is on a terminal: characters of East Asia take two cells."""
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """One line of `text`, at most `width` cells."""
    line = " ".join(text.split())
    if cells(line) <= width:
        return line
    while cells(line) > width - 1:
        line = line[:-1]
    return line.rstrip() + "…"
