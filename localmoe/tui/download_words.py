"""What a download would fetch, and what this machine could do with it, in words."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from localmoe.hub.amount import amount
from localmoe.hub.hf_cache import cache_folder
from localmoe.hub.json_file import shown
from localmoe.tui.forecasts import duration, kilo, marked, speed

if TYPE_CHECKING:
    from localmoe.engine.outlook import Outlook
    from localmoe.hub.download.plan import DownloadPlan


def plan_lines(plan: "DownloadPlan", outlook: "Outlook") -> Iterator[str]:
    """What would be fetched, where to, and what this machine could do with it."""
    listing = plan.listing
    total, count = amount(plan.total_bytes), len(plan.files)
    here = f"; {amount(plan.here_bytes)} here already" if plan.here_bytes else ""
    yield f"{shown(listing.repository)} @ {listing.commit[:7]}: {count} files, {total}{here}"
    if plan.missing_bytes:
        free = f"free at {shown(short(cache_folder()))}: {amount(plan.free_bytes)}"
        yield f"to fetch: {amount(plan.missing_bytes)} · {free}"
    yield f"this machine: {fits(outlook)}"


def fits(outlook: "Outlook") -> str:
    """Whether this machine runs it, in what memory and how fast, or why not."""
    if outlook.plan is None or outlook.prefill is None or outlook.decode is None:
        return f"does not run it: {outlook.why}"
    needs = ", ".join(f"{amount(outlook.plan.needed(place))} of {place}" for place in outlook.plan.places)
    ttft = marked(duration(outlook.prefill.ttft_s), outlook.is_estimate)
    decode = marked(speed(outlook.decode.tok_s), outlook.is_estimate)
    kind = "runs it" if outlook.fits == "yes" else "runs it with --plan disk"
    return f"{kind} in {needs}; TTFT {ttft} at {kilo(outlook.prefill.num_tokens)}, {decode}"


def short(path: Path) -> str:
    """With ~ for the home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
