"""What runs where, what lies where and why: a pure function of machine, model, settings and rates.

Owns every decision and the bytes that follow from it, and refuses with what would help. Knows neither how a machine is
probed or measured nor how a plan is executed.
"""

from localmoe.engine.plan.forecast import forecast
from localmoe.engine.plan.make import make_plan
from localmoe.engine.plan.parts import Decision, Item, Kind, Plan, Ring, SharedCopy

__all__ = ["Decision", "Item", "Kind", "Plan", "Ring", "SharedCopy", "forecast", "make_plan"]
