"""How fast this machine is: what the cost model needs to know, measured in about ten seconds."""

from localmoe.bench.machine.measure import measure_and_save, measure_machine

__all__ = ["measure_and_save", "measure_machine"]
