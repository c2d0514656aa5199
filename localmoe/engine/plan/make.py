"""One question: how this model should run on this machine. Pure: values in, values out."""

from collections.abc import Callable
from dataclasses import replace

from localmoe.engine.cost.predict import forecast_decode, forecast_prefill
from localmoe.engine.cost.rates import Rates
from localmoe.engine.plan.asked import Asked, dram_for, memory_nodes, weights_of
from localmoe.engine.plan.forecast import prediction_inputs
from localmoe.engine.plan.from_disk import plan_disk, why_no_disk
from localmoe.engine.plan.gpus import usable_gpus, why_no_gpu
from localmoe.engine.plan.on_cpu import plan_cpu
from localmoe.engine.plan.on_gpus import all_gpus, best_gpu, plan_gpus
from localmoe.engine.plan.parts import Decision, Kind, Plan
from localmoe.errors import NotReadyError, OutOfMemoryError, UsageError
from localmoe.hardware.machine import Machine
from localmoe.model.config import ModelConfig
from localmoe.settings import Settings

ANSWER_TOKENS = 512  # of the exchange by which plans are compared; its prompt fills half of the context


def make_plan(
    machine: Machine,
    config: ModelConfig,
    settings: Settings,
    rates: Rates,
    *,
    name: str,
    weight_bytes: int | None = None,
    expert_bytes: int | None = None,
    isa: str | None = None,
    on_disk: bool = False,
    executable_only: bool = False,
) -> Plan:
    """The plan for `config` on `machine`, whose GPUs `rates` has in the same order.

    `weight_bytes` are those in memory, `expert_bytes` the routed experts' among them; None: as the config says. `isa`:
    the kernels that will run; None: what the settings ask for, or the best. `on_disk`: the model's files are here, and
    need no more room. `executable_only`: of the plans that this version can run, the others being refused.

    Raises OutOfMemoryError with every line item and the smallest changes that make it fit, UsageError where the
    settings force a plan that cannot be, NotReadyError where no kernels run.
    """
    weights = weights_of(config, weight_bytes, expert_bytes)
    asked = Asked(
        machine=machine,
        config=config,
        settings=settings,
        rates=rates,
        name=name,
        weights=weights,
        isa=isa or _choose_isa(machine, settings),
        dram_bytes=dram_for(machine, weights.total),
        nodes=memory_nodes(machine),
        on_disk=on_disk,
        executable_only=executable_only,
    )
    return _executable(asked) if executable_only else _PLANNERS[settings.plan](asked)


def _executable(asked: Asked) -> Plan:
    """This version computes on the CPU."""
    wanted = asked.settings.plan
    if wanted not in ("auto", "cpu"):
        where = asked.settings.origin("plan")
        raise UsageError(
            f"the plan {wanted}{'' if where == 'default' else f', chosen by {where},'} cannot run yet: this version"
            " computes on the CPU, with all weights in memory",
            "--plan cpu runs; localmoe doctor shows what the others would do",
        )
    plan = plan_cpu(asked)
    return _because(
        plan,
        Decision("plan", "cpu", "chosen by " + asked.settings.origin("plan") if wanted == "cpu" else _why_cpu(asked)),
    )


def _why_cpu(asked: Asked) -> str:
    names = [gpu.name for gpu in asked.machine.gpus] or [gpu.name or "NVIDIA GPU" for gpu in asked.machine.pci_gpus]
    if names:
        return f"this version computes on the CPU; the GPU is not used yet ({', '.join(names)})"
    return "this version computes on the CPU, and no GPU is here"


def _fastest(asked: Asked) -> Plan:
    """Of the plans that fit, those with the longest context, and of them the fastest; else the one from disk."""
    plans, refusals = [], list[OutOfMemoryError]()
    for planner in _candidates(asked):
        try:
            plans.append(planner(asked))
        except OutOfMemoryError as error:
            refusals.append(error)
    if not plans:
        return _larger_than_memory(asked, refusals)
    times = {plan.kind: exchange_seconds(asked.rates, asked.config, plan) for plan in plans}
    best = min(plans, key=lambda plan: (-plan.context_limit, times[plan.kind]))
    return _because(best, Decision("plan", best.kind, _why_best(asked, best, times, refusals)))


def _candidates(asked: Asked) -> list[Callable[[Asked], Plan]]:
    num_gpus = len(usable_gpus(asked))
    return [_PLANNERS["cpu"], *([_PLANNERS["slp"]] if num_gpus else []), *([_PLANNERS["dslp"]] if num_gpus > 1 else [])]


def exchange_seconds(rates: Rates, config: ModelConfig, plan: Plan) -> float:
    """A prompt that fills half of the context, and ANSWER_TOKENS tokens of answer."""
    rates, config = prediction_inputs(plan, rates, config)
    tokens = max(1, plan.context_limit // 2)
    prefill = forecast_prefill(rates, config, plan.placement, tokens).ttft_s
    return prefill + ANSWER_TOKENS * forecast_decode(rates, config, plan.placement, tokens).term.seconds


def _why_best(asked: Asked, best: Plan, times: dict[Kind, float], refusals: list[OutOfMemoryError]) -> str:
    tokens = best.context_limit // 2
    told = [f"{kind} {seconds:,.1f} s" for kind, seconds in sorted(times.items(), key=lambda item: item[1])]
    why = f"predicted for a prompt of {tokens:,} tokens and {ANSWER_TOKENS} of answer: {', '.join(told)}"
    if not usable_gpus(asked):
        return f"all weights fit into DRAM, and no GPU can help ({why_no_gpu(asked)})"
    return "; ".join([why, *(error.message for error in refusals)])


def _larger_than_memory(asked: Asked, refusals: list[OutOfMemoryError]) -> Plan:
    """From disk, or the refusal of the plan that needs nothing but DRAM."""
    if asked.dram_bytes is None or why_no_disk(asked):
        raise refusals[0]
    try:
        plan = plan_disk(asked)
    except (OutOfMemoryError, UsageError) as error:
        raise refusals[0] from error
    return _because(plan, Decision("plan", "disk", refusals[0].message))


def _forced(kind: Kind, planner: Callable[[Asked], Plan]) -> Callable[[Asked], Plan]:
    def plan(asked: Asked) -> Plan:
        return _because(planner(asked), Decision("plan", kind, f"chosen by {asked.settings.origin('plan')}"))

    return plan


def _because(plan: Plan, decision: Decision) -> Plan:
    rest = tuple(d for d in plan.decisions if d.what != "plan")
    return replace(plan, decisions=(decision, *rest))


def _choose_isa(machine: Machine, settings: Settings) -> str:
    targets = machine.cpu.targets
    if not targets:
        why = machine.why_unknown("ISA")
        raise NotReadyError(f"no kernels of localmoe run on this CPU{f': {why}' if why else ''}", "see localmoe doctor")
    if settings.isa is not None and settings.isa not in targets:
        raise UsageError(f"{settings.isa} kernels do not run on this CPU", f"here run {', '.join(targets)}")
    return settings.isa or targets[-1]


_PLANNERS: dict[str, Callable[[Asked], Plan]] = {
    "auto": _fastest,
    "cpu": _forced("cpu", plan_cpu),
    "slp": _forced("slp", lambda asked: plan_gpus(asked, best_gpu(asked))),
    "dslp": _forced("dslp", lambda asked: plan_gpus(asked, all_gpus(asked))),
    "disk": _forced("disk", plan_disk),
}
