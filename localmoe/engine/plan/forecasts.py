"""What a plan would take, from the machine's rates."""

from collections.abc import Sequence
from dataclasses import replace

from localmoe.engine.cost.predict import CONTEXTS, PROMPTS, STREAMS, Prediction, predict
from localmoe.engine.cost.rates import Rates
from localmoe.engine.plan.gpus import rates_for
from localmoe.engine.plan.parts import DRAM, Plan
from localmoe.model.config import ModelConfig


def forecast(
    plan: Plan,
    rates: Rates,
    config: ModelConfig,
    prompts: Sequence[int] = PROMPTS,
    contexts: Sequence[int] = CONTEXTS,
    streams: Sequence[int] = STREAMS,
) -> Prediction | None:
    """Forecasts for those prompts and contexts that the plan's memory holds: up to `plan.longest_context`.

    None where the plan reads from a disk whose rate is unknown.
    """
    if plan.placement.resident_share < 1 and rates.disk is None:
        return None
    return predict(*prediction_inputs(plan, rates, config), plan.placement, prompts, contexts, streams)


def prediction_inputs(plan: Plan, rates: Rates, config: ModelConfig) -> tuple[Rates, ModelConfig]:
    """Rates of the plan's GPUs with the room that they have, and the config with the longest context that fits."""
    free = [room - plan.beside_bytes for place, room in plan.available.items() if place != DRAM]
    rates = rates_for(rates, plan.gpus, (min(free, default=0),) * len(free), locked=plan.locks_experts)
    return rates, replace(config, max_position=max(1, min(config.max_position, plan.longest_context)))
