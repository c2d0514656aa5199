"""Which kind of plan: the one that the settings force, or the fastest of those that fit."""

from collections.abc import Callable
from dataclasses import replace

from localmoe.engine.cost.predict import forecast_decode, forecast_prefill
from localmoe.engine.plan.asked import Asked
from localmoe.engine.plan.forecasts import prediction_inputs
from localmoe.engine.plan.from_disk import plan_disk, why_no_disk
from localmoe.engine.plan.gpus import usable_gpus, why_no_gpu
from localmoe.engine.plan.on_cpu import plan_cpu
from localmoe.engine.plan.on_gpus import all_gpus, best_gpu, plan_gpus
from localmoe.engine.plan.parts import Decision, Kind, Plan
from localmoe.engine.plan.refusal import unused_pages
from localmoe.errors import OutOfMemoryError, UsageError

ANSWER_TOKENS = 512  # of the exchange by which plans are compared; its prompt fills half of the context


def plan_for(asked: Asked) -> Plan:
    """Raises OutOfMemoryError where nothing fits, UsageError where the forced plan cannot be."""
    return _PLANNERS[asked.settings.plan](asked)


def _fastest(asked: Asked) -> Plan:
    """The fastest in memory; else the one from disk."""
    try:
        return fastest_in_memory(asked)
    except OutOfMemoryError as error:
        return _larger_than_memory(asked, error)


def fastest_in_memory(asked: Asked) -> Plan:
    """Of the plans that fit, those with the longest context, and of them the fastest; OutOfMemoryError for none."""
    plans, refusals = list[Plan](), dict[Kind, OutOfMemoryError]()
    for kind, planner in _IN_MEMORY.items():
        try:
            plans.append(planner(asked))
        except OutOfMemoryError as error:
            refusals[kind] = error
        except UsageError:  # this machine lacks the GPUs for it: there is nothing to compare
            continue
    if not plans:
        raise refusals["cpu"]
    times = {plan.kind: _exchange_seconds(asked, plan) for plan in plans}
    best = min(plans, key=lambda plan: (-plan.context_limit, times[plan.kind]))
    return _because(best, Decision("plan", best.kind, _why_best(asked, best, times, refusals)))


def _slp(asked: Asked) -> Plan:
    return plan_gpus(asked, best_gpu(asked))


def _dslp(asked: Asked) -> Plan:
    return plan_gpus(asked, all_gpus(asked))


def _exchange_seconds(asked: Asked, plan: Plan) -> float:
    """A prompt that fills half of the context, and ANSWER_TOKENS tokens of answer."""
    rates, config = prediction_inputs(plan, asked.rates, asked.config)
    tokens = max(1, plan.context_limit // 2)
    prefill = forecast_prefill(rates, config, plan.placement, tokens).ttft_s
    return prefill + ANSWER_TOKENS * forecast_decode(rates, config, plan.placement, tokens).term.seconds


def _why_best(asked: Asked, best: Plan, times: dict[Kind, float], refusals: dict[Kind, OutOfMemoryError]) -> str:
    tokens = best.context_limit // 2
    told = [f"{kind} {seconds:,.1f} s" for kind, seconds in sorted(times.items(), key=lambda item: item[1])]
    why = f"predicted for a prompt of {tokens:,} tokens and {ANSWER_TOKENS} of answer: {', '.join(told)}"
    if not usable_gpus(asked):
        return f"all weights fit into DRAM, and no GPU can help ({why_no_gpu(asked)})"
    return "; ".join([why, *(f"{kind} does not fit: {error.message}" for kind, error in refusals.items())])


def _larger_than_memory(asked: Asked, refusal: OutOfMemoryError) -> Plan:
    """From disk, or the `refusal` of the plan that needs nothing but DRAM."""
    if asked.dram_bytes is None or why_no_disk(asked):
        raise refusal
    try:
        plan = plan_disk(asked)
    except (OutOfMemoryError, UsageError) as error:
        raise refusal from error
    unused = unused_pages(asked)
    return _because(plan, Decision("plan", "disk", refusal.message + f" To have more, {unused}" * bool(unused)))


def _forced(kind: Kind, planner: Callable[[Asked], Plan]) -> Callable[[Asked], Plan]:
    def plan(asked: Asked) -> Plan:
        return _because(planner(asked), Decision("plan", kind, f"chosen by {asked.settings.said_by('plan')}"))

    return plan


def _because(plan: Plan, decision: Decision) -> Plan:
    return replace(plan, decisions=(decision, *plan.decisions))


_IN_MEMORY: dict[Kind, Callable[[Asked], Plan]] = {"cpu": plan_cpu, "slp": _slp, "dslp": _dslp}
_PLANNERS: dict[str, Callable[[Asked], Plan]] = {
    "auto": _fastest,
    "cpu": _forced("cpu", plan_cpu),
    "slp": _forced("slp", _slp),
    "dslp": _forced("dslp", _dslp),
    "disk": _forced("disk", plan_disk),
}
