"""Opening a model whose experts do not all rest in memory: what is loaded, and where the others come from."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from localmoe.engine.plan import Plan
from localmoe.hardware.placement import worker_cpus
from localmoe.hub.checkpoint import Checkpoint, TensorSpec
from localmoe.model.config import ModelConfig
from localmoe.model.tensors import expert_prefixes
from localmoe.weights.expert_cache import CachedExperts, resident_counts
from localmoe.weights.expert_files import FileExperts
from localmoe.weights.layout import expert_of
from localmoe.weights.store import Store

if TYPE_CHECKING:
    from localmoe.engine.disk_network import DiskNetwork


def resting_specs(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """All tensors but those of experts: which of them are worth their memory shows once prompts are read."""
    return [spec for spec in specs if not expert_of(spec.name)]


def open_from_disk(checkpoint: Checkpoint, config: ModelConfig, store: Store, plan: Plan) -> "DiskNetwork":
    """The network on the CPU; `store` holds what resting_specs() named."""
    from localmoe.engine.disk_network import DiskNetwork
    from localmoe.model.network import open_network

    assert plan.ring is not None, "the plan from disk has a ring"
    files = FileExperts(checkpoint, expert_prefixes(config))
    try:
        counts = resident_counts([config.num_experts] * config.num_moe_layers, plan.placement.resident_share)
        source = CachedExperts(files, counts)
        store.stream(files.described())
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
