"""Opening a model whose experts do not all rest in memory: what is loaded, and where the others come from."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from localmoe.engine.plan import Plan
from localmoe.hardware.placement import worker_cpus
from localmoe.hub.checkpoint import Checkpoint, TensorSpec
from localmoe.model.config import ModelConfig
from localmoe.model.tensors import expert_prefixes
from localmoe.weights.expert_cache import CachedExperts, resident_counts
from localmoe.weights.expert_source import FileExperts
from localmoe.weights.layout import expert_of
from localmoe.weights.store import Store

if TYPE_CHECKING:
    from localmoe.engine.disk_network import DiskNetwork


def resting_specs(config: ModelConfig, specs: Iterable[TensorSpec], plan: Plan) -> list[TensorSpec]:
    """All tensors but those of the experts that come from disk."""
    prefixes = expert_prefixes(config)
    counts = resident_counts([config.num_experts] * len(prefixes), plan.placement.resident_share)
    num_resting = dict(zip(prefixes, counts, strict=True))
    return [s for s in specs if not (found := expert_of(s.name)) or found[1] < num_resting[found[0]]]


def open_from_disk(checkpoint: Checkpoint, config: ModelConfig, store: Store, plan: Plan) -> "DiskNetwork":
    """The network on the CPU; `store` holds what resting_specs() named."""
    from localmoe.engine.disk_network import DiskNetwork
    from localmoe.model.network import open_network

    assert plan.ring is not None, "the plan from disk has a ring"
    files = FileExperts(checkpoint, expert_prefixes(config))
    try:
        source = CachedExperts(files, store)
        network = open_network(
            config,
            store,
            cpus=worker_cpus(plan.num_threads),
            isa=plan.isa,
            cache_dtype="bf16" if plan.cache_dtype == "bf16" else "float32",
            num_pages=plan.num_pages,
        )
    except BaseException:
        files.close()
        raise
    return DiskNetwork(network, source, plan.ring)
