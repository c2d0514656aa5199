"""What a machine can do with a model: whether it fits, how fast it would be, and which of the catalogue is best.

Nothing is downloaded or loaded for it. This is what `doctor` prints, and what a first screen may say in a line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from localmoe.engine.cost.predict import DecodeForecast, PrefillForecast
from localmoe.engine.cost.rates import Rates
from localmoe.engine.cost.sizes import common_bytes, routed_bytes
from localmoe.engine.machine_rates import rates_of
from localmoe.engine.measured import Measured
from localmoe.engine.plan import Plan, forecast, make_plan
from localmoe.errors import LocalmoeError, ModelError, NotReadyError, OutOfMemoryError, UsageError
from localmoe.hardware import Machine
from localmoe.hub.catalog import CatalogModel, load_catalog
from localmoe.model.config import ModelConfig, read_config
from localmoe.settings import Settings

LONG_PROMPT = 32 * 1024  # tokens
SHORT_CONTEXT = 1024  # tokens in the cache where decode is judged
TTFT_GOAL_S, DECODE_GOAL_TOK_S = 30.0, 20.0  # of the SLP paper's machine: a prompt of 32K, one stream
READING_TOK_S = 5.0  # slower than most people read: no model to choose while another one is faster

Fits = Literal["yes", "streaming", "no"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """One model on one machine."""

    name: str
    config: ModelConfig
    plan: Plan | None  # None: it does not fit, and `refusal` says why
    prefill: PrefillForecast | None  # of the longest prompt up to LONG_PROMPT that model and memory take
    decode: DecodeForecast | None  # one stream, SHORT_CONTEXT tokens in the cache
    is_estimate: bool  # some rate that counts was not measured on this machine
    refusal: LocalmoeError | None = None
    missing_disk_bytes: int = 0  # to fetch it, where it is not on this machine

    @property
    def weight_bytes(self) -> int:
        """All weights that the network reads, as the config says; norms left out."""
        return weight_bytes(self.config)

    @property
    def fits(self) -> Fits:
        """Whether it runs with all weights in memory, with experts from disk, or not at all."""
        if self.plan is None:
            return "no"
        return "streaming" if self.plan.kind == "disk" else "yes"

    @property
    def place(self) -> str:
        """Where it would lie and run: DRAM + 2 GPUs. Empty where it does not fit."""
        if self.plan is None:
            return ""
        if self.plan.kind == "disk":
            return "disk + DRAM"
        num = self.plan.placement.num_gpus
        return f"DRAM + {num} GPU{'s' * (num > 1)}" if num else "DRAM"

    @property
    def why(self) -> str:
        """A sentence: why this plan, or why none."""
        if self.plan is None:
            return self.refusal.message if self.refusal else ""
        return next((str(decision) for decision in self.plan.decisions if decision.what == "plan"), self.place)

    @property
    def missing_bytes(self) -> int | None:
        """What is missing where it does not fit; None where it fits, or where that was not counted."""
        return self.refusal.missing_bytes if isinstance(self.refusal, OutOfMemoryError) else None

    @property
    def is_quick_to_begin(self) -> bool:
        """Whether the prompt's first token comes within TTFT_GOAL_S."""
        return self.prefill is not None and self.prefill.ttft_s <= TTFT_GOAL_S

    @property
    def is_quick_to_write(self) -> bool:
        """Whether one stream makes DECODE_GOAL_TOK_S."""
        return self.decode is not None and self.decode.tok_s >= DECODE_GOAL_TOK_S


def weight_bytes(config: ModelConfig) -> int:
    """All weights of the network, without norms."""
    return routed_bytes(config) + common_bytes(config)


def outlook(
    machine: Machine, settings: Settings, rates: Rates, name: str, config: ModelConfig, *, on_disk: bool = False
) -> Outlook:
    """Plan and forecasts for one model. What cannot be is in the answer; UsageError for settings that cannot be."""
    try:
        plan = make_plan(machine, config, settings, rates, name=name, on_disk=on_disk)
        most = max(1, min(config.max_position, plan.longest_context))
        prompts, contexts = (min(LONG_PROMPT, most),), (min(SHORT_CONTEXT, most),)
        prediction = forecast(plan, rates, config, prompts, contexts, streams=(1,))
    except (OutOfMemoryError, NotReadyError) as error:
        return Outlook(name, config, None, None, None, is_estimate=True, refusal=error)
    prefill, decode = (prediction.prefill[0], prediction.decode[0]) if prediction else (None, None)
    missing = 0 if on_disk else _missing_on_disk(machine, weight_bytes(config))
    return Outlook(name, config, plan, prefill, decode, rests_on_estimates(rates, plan), missing_disk_bytes=missing)


def outlooks(
    machine: Machine,
    settings: Settings,
    rates: Rates,
    entries: Iterable[CatalogModel],
    present: Iterable[str] = (),
) -> tuple[Outlook, ...]:
    """One for each of `entries`; `present`: the names whose files are on this machine. Models of one shape share it.

    UsageError where the plan that the settings force cannot be for any of them.
    """
    here, known, found = set(present), dict[tuple[ModelConfig, bool], Outlook](), list[Outlook]()
    for entry in entries:
        key = read_config(entry.config), entry.name in here
        if key not in known or known[key].fits != "yes":  # what else comes of it names the model
            known[key] = _outlook_or_refusal(machine, settings, rates, entry.name, key[0], on_disk=key[1])
        found.append(replace(known[key], name=entry.name))
    errors = [one.refusal for one in found if isinstance(one.refusal, UsageError)]
    if errors and len(errors) == len(found):
        raise errors[0]
    return tuple(found)


def _outlook_or_refusal(
    machine: Machine, settings: Settings, rates: Rates, name: str, config: ModelConfig, *, on_disk: bool
) -> Outlook:
    """A plan that the settings force and this model cannot have is no reason to say nothing of the others."""
    try:
        return outlook(machine, settings, rates, name, config, on_disk=on_disk)
    except UsageError as error:
        return Outlook(name, config, None, None, None, is_estimate=True, refusal=error)


def best_model(
    machine: Machine,
    settings: Settings,
    measured: Measured | None = None,
    catalog: Mapping[str, CatalogModel] | None = None,
) -> Outlook | None:
    """The catalogue's best model that would run here, the embedded one apart; None: none would at a useful speed.

    The largest that meets both goals; else the largest of those that write as fast as people read.
    """
    entries = [entry for entry in plannable((catalog or load_catalog()).values()) if not entry.is_embedded]
    found = [one for one in outlooks(machine, settings, rates_of(machine, measured), entries) if one.fits == "yes"]
    quick = [one for one in found if one.is_quick_to_begin and one.is_quick_to_write]
    readable = [one for one in found if one.decode and one.decode.tok_s >= READING_TOK_S]
    # The catalogue is in the order of release within a maker: of models of one size the last is the newest.
    return max(reversed(quick or readable), key=lambda one: one.weight_bytes, default=None)


def plannable(entries: Iterable[CatalogModel]) -> list[CatalogModel]:
    """Those whose config is known and of a kind that runs: of a user's own models that may not be so."""
    return [entry for entry in entries if entry.config and _is_runnable(entry.config)]


def _is_runnable(config: Mapping[str, Any]) -> bool:
    try:
        read_config(config)
    except ModelError:
        return False
    return True


def _missing_on_disk(machine: Machine, num_bytes: int) -> int:
    """Beyond what is free where models are kept; 0 where that is unknown."""
    free = next((disk.free_bytes for disk in machine.disks if disk.purpose == "models"), None)
    return 0 if free is None else max(0, num_bytes - free)


def rests_on_estimates(rates: Rates, plan: Plan) -> bool:
    """Whether any rate that the plan's speed depends on was not measured on this machine."""
    used = [rates.cpu.stream, rates.cpu.fma]
    used += [rate for n in plan.gpus for rate in (rates.gpus[n].h2d, rates.gpus[n].gemm)]
    if plan.placement.resident_share < 1 and rates.disk:
        used.append(rates.disk)
    return any(rate.is_estimate for rate in used)
