"""The catalogue on this machine: one line for each model."""

from collections.abc import Iterator, Sequence
from typing import Any

from localmoe.engine.outlook import DECODE_GOAL_TOK_S, LONG_PROMPT, TTFT_GOAL_S, Outlook
from localmoe.tui.forecasts import UNKNOWN, duration, gigabytes, kilo, marked, speed, yes_or_no

_ROW = " {:<26} {:<15} {:>10} {:>12}  {}"
_GOALS = f"{TTFT_GOAL_S:.0f} s/{DECODE_GOAL_TOK_S:.0f} t/s"


def table_lines(found: Sequence[Outlook]) -> Iterator[str]:
    """Head and rows, within 80 columns."""
    yield _ROW.format("model", "fits", f"TTFT {kilo(LONG_PROMPT)}", "decode", _GOALS)
    yield from (_row(one).rstrip() for one in found)


def table_json(one: Outlook) -> dict[str, Any]:
    """A model as `--json` has it."""
    prefill, decode = one.prefill, one.decode
    is_long = prefill is not None and prefill.num_tokens == LONG_PROMPT
    predicted = None
    if prefill and decode:
        predicted = {
            "prompt_tokens": prefill.num_tokens,
            "prefill_tok_s": prefill.tok_s,
            "ttft_s": prefill.ttft_s,
            "ttft_32k_s": prefill.ttft_s if is_long else None,
            "decode_tok_s": decode.tok_s,
            "is_estimate": one.is_estimate,
            "meets": {"ttft": one.is_quick_to_begin, "decode": one.is_quick_to_write},
        }
    return {
        "name": one.name,
        "fits": one.fits,
        "place": one.place,
        "why": one.why,
        "missing_bytes": one.missing_bytes,
        "missing_disk_bytes": one.missing_disk_bytes,
        "weight_bytes": one.weight_bytes,
        "predicted": predicted,
    }


def _row(one: Outlook) -> str:
    if one.prefill is None or one.decode is None:
        return _ROW.format(one.name, _missing(one), UNKNOWN, UNKNOWN, UNKNOWN)
    shorter = "" if one.prefill.num_tokens >= LONG_PROMPT else f" {kilo(one.prefill.num_tokens)}"
    ttft = marked(duration(one.prefill.ttft_s), one.is_estimate)
    decode = marked(speed(one.decode.tok_s), one.is_estimate)
    met = f"{yes_or_no(one.is_quick_to_begin)} / {yes_or_no(one.is_quick_to_write)}"
    return _ROW.format(one.name, one.place, f"{ttft}{shorter}", decode, met)


def _missing(one: Outlook) -> str:
    return f"no: {gigabytes(one.missing_bytes)} more" if one.missing_bytes else "no"
