"""From a model's name to everything that answers: the steps of opening, each told as it begins."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from localmoe.chat.template import Template, guess_template, template_for
from localmoe.engine import defaults
from localmoe.engine.checks import check_vocabulary
from localmoe.engine.from_disk import open_from_disk, resting_specs
from localmoe.engine.gpu_devices import Gpus
from localmoe.engine.on_gpus import open_on_gpus
from localmoe.engine.plan import Plan, make_plan
from localmoe.engine.plan_json import plan_object
from localmoe.engine.request import EngineInfo
from localmoe.errors import CancelledError
from localmoe.events import Event, Loading
from localmoe.hardware import Machine, probe
from localmoe.hardware.placement import worker_cpus
from localmoe.hub.catalog import Source, resolve
from localmoe.hub.checkpoint import Checkpoint, TensorSpec
from localmoe.hub.tokenizer import Tokenizer
from localmoe.kernels.ops import CancelFlag, Program
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.tensors import expected_tensors
from localmoe.settings import Settings
from localmoe.weights.layout import plan_layout
from localmoe.weights.load import load
from localmoe.weights.numa import memory_nodes
from localmoe.weights.store import Store

if TYPE_CHECKING:
    from localmoe.engine.cost.rates import Rates

TELL_EVERY_S = 0.1
LARGE_BYTES = 1 << 30  # a smaller model is read in less time than a GPU's driver may take to answer

Listener = Callable[[Event], None]
Cancelled = Callable[[], bool]


class Network(Protocol):
    """A model that is ready to run, whatever it runs on."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def cache(self) -> LatentCache: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def runs_together(self) -> bool:
        """Whether two of its programs may run at the same time."""
        ...

    def program(self, max_tokens: int) -> Program: ...
    def passing(self, max_tokens: int) -> Program | None:
        """What reads prompts of up to so many tokens while a longer one's run goes on; None: nothing may."""
        ...

    def self_test(self) -> None: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """What makes networks: the CPU's, or a test's."""

    def choose_isa(self, isa: str | None) -> str: ...
    def open(self, config: ModelConfig, store: Store, plan: Plan) -> Network: ...
    def new_flag(self) -> CancelFlag: ...


class CpuBackend:
    """Native code on this machine's CPU."""

    def choose_isa(self, isa: str | None) -> str:
        from localmoe.model.network import choose_target

        return choose_target(isa)

    def open(self, config: ModelConfig, store: Store, plan: Plan) -> Network:
        from localmoe.model.network import open_network

        return open_network(
            config,
            store,
            cpus=worker_cpus(plan.num_threads),
            isa=plan.isa,
            cache_dtype="bf16" if plan.cache_dtype == "bf16" else "float32",
            num_pages=plan.num_pages,
        )

    def new_flag(self) -> CancelFlag:
        from localmoe.model.network import new_flag

        return new_flag()


@dataclass(frozen=True)
class Opened:
    """All that an engine is made of."""

    network: Network
    tokenizer: Tokenizer
    template: Template
    plan: Plan
    info: EngineInfo
    settings: Settings
    stop_ids: frozenset[int]
    new_flag: Callable[[], CancelFlag]


def open_model(
    model: str, settings: Settings, on_event: Listener, cancelled: Cancelled, backend: Backend, gpus: Gpus
) -> Opened:
    """Finds, checks, plans, loads and tests `model`. Nothing is allocated before all of it is known to be in order."""
    start_s = time.monotonic()
    steps = _Steps(on_event, cancelled)
    steps.begin("checking", 0)
    source = resolve(model)
    checkpoint = Checkpoint.open(source.folder, steps.check)
    config = read_config(checkpoint.config)
    specs = expected_tensors(config)
    checkpoint.validate(specs)
    steps.check()
    tokenizer = Tokenizer.open(source.folder)
    check_vocabulary(tokenizer.vocab_size - 1, config.vocab)
    entry = source.entry
    template = (
        template_for(entry.template, tokenizer)
        if entry and entry.template
        else guess_template(tokenizer, checkpoint.config)
    )
    sampling = defaults.sampling_defaults(settings, checkpoint.generation_config, entry)
    stop_ids = template.stop_ids | defaults.stop_tokens(checkpoint.generation_config) | set(config.eos_ids)
    steps.check()
    machine, plan = _plan(source, checkpoint, config, specs, settings, backend, gpus)
    is_disk = plan.kind == "disk"
    store = steps.load(checkpoint, resting_specs(specs) if is_disk else specs, in_one_part=is_disk)
    try:
        steps.begin("preparing", store.nbytes)
        network: Network
        if is_disk:
            network = open_from_disk(checkpoint, config, store, plan)
        elif plan.gpus:
            network = open_on_gpus(config, store, plan, machine, gpus)
        else:
            network = backend.open(config, store, plan)
        steps.begin("self-test", store.nbytes)
        network.self_test()
    except BaseException:
        store.close()
        raise
    info = EngineInfo(
        model=source.name,
        description=describe(config, is_demo=bool(entry and entry.is_embedded)),
        is_demo=bool(entry and entry.is_embedded),
        isa=network.isa,
        num_threads=network.num_threads,
        context_limit=plan.context_limit,
        weight_bytes=store.nbytes,
        cache_bytes=network.cache.nbytes,
        load_s=time.monotonic() - start_s,
        plan=(*plan.reasons, *store.notes, f"prompts are written in {template.why}"),
        sampling=sampling,
        attention_flops=config.attention_flops(),
        details=plan_object(plan),
    )
    return Opened(network, tokenizer, template, plan, info, settings, stop_ids, backend.new_flag)


def describe(config: ModelConfig, *, is_demo: bool) -> str:
    """The model in a few words, for titles."""
    total, active = _count(config.num_params()), _count(config.num_active_params())
    if is_demo:
        return f"a tiny demonstration model ({total})"
    return f"{total}, {active} active, {config.weight_format.upper()}"


def _count(number: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= size:
            value = number / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{number:,}"


def _plan(
    source: Source,
    checkpoint: Checkpoint,
    config: ModelConfig,
    specs: list[TensorSpec],
    settings: Settings,
    backend: Backend,
    gpus: Gpus,
) -> tuple[Machine, Plan]:
    layout = plan_layout((checkpoint.tensors[spec.name] for spec in specs), memory_nodes())
    asks_driver = layout.nbytes >= LARGE_BYTES or settings.plan in ("slp", "dslp")
    machine = probe(paths={"models": source.folder}, asks_driver=asks_driver)
    plan = make_plan(
        machine,
        config,
        settings,
        lambda: _rates(machine),
        name=source.name,
        weight_bytes=layout.nbytes,
        expert_bytes=layout.expert_bytes,
        isa=backend.choose_isa(settings.isa),
        on_disk=True,
        executable_only=True,
        why_no_gpu=gpus.why_not,
    )
    return machine, plan


def _rates(machine: Machine) -> "Rates":
    """As measured here once, or estimated."""
    from localmoe.engine.machine_rates import rates_of  # what fits is opened without knowing
    from localmoe.engine.measured import load_measured

    return rates_of(machine, load_measured(machine))


class _Steps:
    """Tells what is being done, and stops between steps when asked to."""

    def __init__(self, on_event: Listener, cancelled: Cancelled) -> None:
        self._on_event = on_event
        self._cancelled = cancelled
        self._start_s = self._told_s = 0.0

    def begin(self, stage: str, total_bytes: int) -> None:
        """Everything is read of `total_bytes` when `stage` begins."""
        self.check()
        self._on_event(Loading(stage, total_bytes, total_bytes))

    def check(self) -> None:
        """CancelledError once opening is to stop."""
        if self._cancelled():
            raise CancelledError("opening the model was interrupted.", "run the command again.")

    def load(self, checkpoint: Checkpoint, specs: list[TensorSpec], *, in_one_part: bool) -> Store:
        """The weights, with their rate and an estimate; split over the NUMA nodes, or in one part."""
        self._start_s = time.monotonic()
        nodes = () if in_one_part else None
        return load(checkpoint, specs, on_progress=self._tell, cancelled=self._cancelled, nodes=nodes)

    def _tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told_s < TELL_EVERY_S and done < total:
            return
        self._told_s = now
        rate = done / (now - self._start_s) if now > self._start_s else 0.0
        self._on_event(Loading("reading", done, total, rate, (total - done) / rate if rate else None))
