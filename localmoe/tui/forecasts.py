"""Forecasts in words short enough for columns; ~ marks an estimate."""

from localmoe.tui.figures import seconds

UNKNOWN = "–"


def marked(text: str, is_estimate: bool) -> str:
    """~16.1 s."""
    return f"~{text}" if is_estimate else text


def duration(duration_s: float) -> str:
    """0.21 -> "0.2 s"; 754 -> "12.6 min"; 9000 -> "2.5 h"."""
    if duration_s < 59.95:
        return seconds(duration_s)
    return f"{duration_s / 60:.1f} min" if duration_s < 3597 else f"{duration_s / 3600:.1f} h"


def speed(tok_s: float) -> str:
    """Three digits: 24.0, 118, 0.92."""
    digits = 0 if tok_s >= 99.95 else 1 if tok_s >= 0.995 else 2
    return f"{tok_s:,.{digits}f} tok/s"


def kilo(num_tokens: int) -> str:
    """32768 -> "32K"; 12345 -> "12.1K"."""
    if num_tokens < 1024:
        return f"{num_tokens}"
    return f"{num_tokens / 1024:.1f}".removesuffix(".0") + "K"


def gigabytes(num_bytes: int) -> str:
    """In few characters: 654 GB, 4.6 GB, 1.0 TB."""
    value = num_bytes / 1e9
    if value >= 999.5:
        return f"{value / 1000:.1f} TB"
    return f"{value:,.0f} GB" if value >= 9.95 else f"{value:.1f} GB"


def yes_or_no(value: bool) -> str:
    """For a cell."""
    return "yes" if value else "no"
