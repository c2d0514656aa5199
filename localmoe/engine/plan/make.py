"""One question: how this model should run on this machine. Pure: values in, values out."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from localmoe.engine.plan.asked import Asked, dram_for, memory_nodes, weights_of
from localmoe.engine.plan.on_cpu import plan_cpu
from localmoe.engine.plan.parts import Decision, Plan
from localmoe.errors import NotReadyError, UsageError
from localmoe.hardware.machine import Machine
from localmoe.model.config import ModelConfig
from localmoe.settings import Settings

if TYPE_CHECKING:
    from localmoe.engine.cost.rates import Rates


def make_plan(
    machine: Machine,
    config: ModelConfig,
    settings: Settings,
    rates: "Rates | Callable[[], Rates]",
    *,
    name: str,
    weight_bytes: int | None = None,
    expert_bytes: int | None = None,
    isa: str | None = None,
    on_disk: bool = False,
    executable_only: bool = False,
    why_no_gpu: Callable[[], str] = lambda: "",
) -> Plan:
    """The plan for `config` on `machine`, whose GPUs `rates` (or what it returns) has in the same order.

    `weight_bytes` are those in memory, `expert_bytes` the routed experts' among them; None: as the config says. `isa`:
    the kernels that will run; None: what the settings ask for, or the best. `on_disk`: the model's files are here, and
    need no more room. `executable_only`: of the plans that can run here, the others being refused; `why_no_gpu` then
    says why none can on the GPUs that the driver shows, or is empty.

    Raises OutOfMemoryError with every line item and the smallest changes that make it fit, UsageError where the
    settings force a plan that cannot be, NotReadyError where no kernels run.
    """
    weights = weights_of(config, weight_bytes, expert_bytes)
    asked = Asked(
        machine=machine,
        config=config,
        settings=settings,
        give_rates=cache(rates) if callable(rates) else lambda: rates,
        name=name,
        weights=weights,
        isa=isa or _choose_isa(machine, settings),
        dram_bytes=dram_for(machine, weights.total),
        nodes=memory_nodes(machine),
        on_disk=on_disk,
    )
    if executable_only:
        return _executable(asked, why_no_gpu)
    from localmoe.engine.plan.compare import plan_for  # an engine that opens is spared what cannot run yet

    return plan_for(asked)


def _executable(asked: Asked, why_no_gpu: Callable[[], str]) -> Plan:
    """What was asked for, or the fastest of what fits into memory; from disk only where that is asked for."""
    wanted = asked.settings.plan
    if wanted in ("slp", "dslp") or (wanted == "auto" and asked.machine.gpus and asked.config.num_moe_layers):
        why = why_no_gpu() if asked.machine.gpus else ""
        if why and wanted != "auto":
            raise UsageError(f"the plan {wanted} needs a GPU: {why}", "--plan cpu needs none")
        if not why:
            from localmoe.engine.plan.compare import fastest_in_memory, plan_for  # with the model of cost

            return fastest_in_memory(asked) if wanted == "auto" else plan_for(asked)
        return _because(plan_cpu(asked), "cpu", f"the GPU cannot be used: {why}")
    if wanted == "disk":
        from localmoe.engine.plan.from_disk import plan_disk  # with the model of cost: not for who fits

        return _because(plan_disk(asked), "disk", f"chosen by {asked.settings.said_by('plan')}")
    why = f"chosen by {asked.settings.said_by('plan')}" if wanted == "cpu" else _why_cpu(asked)
    return _because(plan_cpu(asked), "cpu", why)


def _because(plan: Plan, choice: str, why: str) -> Plan:
    return replace(plan, decisions=(Decision("plan", choice, why), *plan.decisions))


def _why_cpu(asked: Asked) -> str:
    if asked.machine.gpus:
        return "the model has no routed experts that a GPU could stream"
    if names := [gpu.name or "NVIDIA GPU" for gpu in asked.machine.pci_gpus]:
        return f"the bus shows {', '.join(names)}, but {asked.machine.why_unknown('GPU') or 'no driver answers'}"
    return "the bus shows no NVIDIA GPU"


def _choose_isa(machine: Machine, settings: Settings) -> str:
    targets = machine.cpu.targets
    if not targets:
        why = machine.why_unknown("ISA")
        raise NotReadyError(f"no kernels of localmoe run on this CPU{f': {why}' if why else ''}", "see localmoe doctor")
    if settings.isa is not None and settings.isa not in targets:
        raise UsageError(f"{settings.isa} kernels do not run on this CPU", f"here run {', '.join(targets)}")
    return settings.isa or targets[-1]
