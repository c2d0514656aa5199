"""What runs where, what lies where and why: a pure function of machine, model, settings and rates.

Owns every decision and the bytes that follow from it, and refuses with what would help. Knows neither how a machine is
probed or measured nor how a plan is executed.
"""

from typing import TYPE_CHECKING, Any

from localmoe.engine.plan.make import make_plan
from localmoe.engine.plan.parts import Decision, Item, Kind, Plan, Ring, SharedCopy

if TYPE_CHECKING:
    from localmoe.engine.plan.forecasts import forecast

__all__ = ["Decision", "Item", "Kind", "Plan", "Ring", "SharedCopy", "forecast", "make_plan"]


def __getattr__(name: str) -> Any:
    """`forecast` comes with the model of cost, which an engine that opens has no use for."""
    if name != "forecast":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from localmoe.engine.plan.forecasts import forecast

    return forecast
