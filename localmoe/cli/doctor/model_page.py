"""One model on this machine: its plan, what it takes at each place, and what to expect."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from localmoe.cli.doctor.page import WIDTH
from localmoe.engine.cost.predict import STREAMS, Prediction, Way
from localmoe.engine.opening import describe
from localmoe.engine.outlook import DECODE_GOAL_TOK_S, TTFT_GOAL_S, Outlook
from localmoe.engine.plan import Plan
from localmoe.hub.small_files import SmallFiles
from localmoe.tui.figures import size
from localmoe.tui.forecasts import duration, gigabytes, kilo, marked, speed, yes_or_no

_INDENT = 19
_WAYS: dict[Way, str] = {
    "cpu": "on the CPU",
    "cpu+gpu": "experts on the CPU, the rest on the GPU",
    "stream": "experts streamed",
}


def model_lines(files: SmallFiles, one: Outlook, prediction: Prediction | None) -> Iterator[str]:
    """All of it; where the model does not fit, what it is."""
    yield from _about(files, one)
    if one.plan is None:
        return
    yield from _decisions(one.plan)
    yield from _memory(one.plan)
    if prediction is None:
        yield from ("", " how fast it runs is unknown, as the disk's rate is: `localmoe doctor --measure` finds out")
        return
    yield from _prompts(one.plan, prediction, one.is_estimate)
    yield from _decode(prediction, one.is_estimate)
    yield from _verdict(one)


def _about(files: SmallFiles, one: Outlook) -> Iterator[str]:
    yield from wrap(f"{files.name}: {describe(one.config, is_demo=False)}; {_whereabouts(files, one)}", WIDTH)
    yield from wrap(f"its sizes are from {files.source}", WIDTH)


def _whereabouts(files: SmallFiles, one: Outlook) -> str:
    if files.state == "present":
        return "on this machine"
    total = files.total_bytes or (files.entry.size_bytes if files.entry else one.weight_bytes)
    return f"{'only in part' if files.state == 'incomplete' else 'not'} on this machine: {size(total)} in all"


def _decisions(plan: Plan) -> Iterator[str]:
    yield ""
    for decision in plan.decisions:
        lines = wrap(f"{decision.choice}; {decision.why}", WIDTH - _INDENT, break_on_hyphens=False)
        yield f" {decision.what:<{_INDENT - 1}}{lines[0]}"
        yield from (" " * _INDENT + line for line in lines[1:])


def _memory(plan: Plan) -> Iterator[str]:
    yield ""
    yield " memory"
    for place in plan.places:
        for item in plan.items:
            if item.place == place:
                yield f" {place:<9}{item.name:<36}{_amount(item.num_bytes):>10}{_by_node(item.nodes)}"
        room = plan.available.get(place)
        of = "" if room is None else f" of {_amount(room)}"
        yield f" {place:<9}{'in all':<36}{_amount(plan.needed(place)):>10}{of}"


def _by_node(nodes: Iterable[tuple[int, int]]) -> str:
    text = ", ".join(f"node {node}: {gigabytes(nbytes)}" for node, nbytes in nodes)
    return f"  {text}" if text and len(text) <= WIDTH - 58 else ""


def _amount(num_bytes: int) -> str:
    """In the unit of the column: a sum is seen at a glance."""
    return f"{num_bytes / 1e9:,.2f} GB"


def _prompts(plan: Plan, prediction: Prediction, is_estimate: bool) -> Iterator[str]:
    yield ""
    yield f" {'prompt':<9}{'TTFT':>10}{'prefill':>15}"
    for forecast in prediction.prefill:
        ttft, tok_s = marked(duration(forecast.ttft_s), is_estimate), marked(speed(forecast.tok_s), is_estimate)
        yield f" {kilo(forecast.num_tokens):<9}{ttft:>10}{tok_s:>15}  {_WAYS[forecast.way]}"
    if any(forecast.num_tokens > plan.context_limit for forecast in prediction.prefill):
        yield f" more than {plan.context_limit:,} tokens need a longer --context"


def _decode(prediction: Prediction, is_estimate: bool) -> Iterator[str]:
    heads = "".join(f"{f'{count} stream' + 's' * (count > 1):>17}" for count in STREAMS)
    yield ""
    yield f" {'context':<9}{heads}  together"
    for context in dict.fromkeys(forecast.context for forecast in prediction.decode):
        row = [forecast for forecast in prediction.decode if forecast.context == context]
        cells = "".join(f"{marked(speed(forecast.tok_s), is_estimate):>17}" for forecast in row)
        yield f" {kilo(context):<9}{cells}"


def _verdict(one: Outlook) -> Iterator[str]:
    assert one.plan and one.prefill
    shared, yes = one.plan.shared, yes_or_no
    yield ""
    text = (
        f"routed experts are {shared.routed_share:.0%} of the weights; prefill and decode share one copy, which"
        f" saves {size(shared.saved_bytes)} against one for each"
    )
    yield from (f" {line}" for line in wrap(text, WIDTH - 1))
    text = (
        f"a prompt of {kilo(one.prefill.num_tokens)} within {TTFT_GOAL_S:.0f} s: {yes(one.is_quick_to_begin)};"
        f" {DECODE_GOAL_TOK_S:.0f} tok/s: {yes(one.is_quick_to_write)}"
    )
    yield f" {text}"
