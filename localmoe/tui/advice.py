"""Which real model to take on this machine, in two lines at 80 columns."""

from localmoe.engine.outlook import LONG_PROMPT, Outlook
from localmoe.hub.catalog import load_catalog
from localmoe.tui import figures
from localmoe.tui.forecasts import duration, kilo, marked, speed

NONE = "No real model of the catalogue would run on this machine at a useful speed. {key} shows what each one needs."


def advice_of(best: Outlook | None, key: str) -> str:
    """`best` with its size and its speed; `key` leads to the models."""
    if best is None or best.prefill is None or best.decode is None:
        return NONE.format(key=key)
    entry = load_catalog()[best.name]
    size = figures.size(entry.size_bytes or best.weight_bytes)
    writes = marked(speed(best.decode.tok_s), best.is_estimate)
    begins = marked(duration(best.prefill.ttft_s), best.is_estimate)
    prompt = f"a prompt of {kilo(min(best.prefill.num_tokens, LONG_PROMPT))}"
    could = f"This machine could run {best.name} ({size}): {writes}, and {begins} to read {prompt}."
    return f"{could} {key} fetches it."
