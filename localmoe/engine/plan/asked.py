"""What a plan is asked for, and what the machine has left for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localmoe.engine.cost.sizes import common_bytes, routed_bytes, sizes_of
from localmoe.hardware.huge_pages import HUGE_PAGE_BYTES
from localmoe.hardware.machine import Machine
from localmoe.model.config import ModelConfig
from localmoe.settings import Settings

if TYPE_CHECKING:
    from localmoe.engine.cost.rates import Rates


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's weights. `other`: attention, dense layers, shared experts, routers, norms and the head."""

    routed: int
    other: int
    embedding: int  # where it is the head too, it is counted here

    @property
    def total(self) -> int:
        """All of them."""
        return self.routed + self.other + self.embedding


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a plan is made from."""

    machine: Machine
    config: ModelConfig
    settings: Settings
    give_rates: "Callable[[], Rates]"  # they take time to find out, and a plan that fits needs none
    name: str
    weights: Weights
    isa: str
    dram_bytes: int | None  # for weights, cache and all else; None: unknown
    nodes: tuple[int, ...]  # NUMA nodes that the weights are split over; none where there is no choice
    on_disk: bool  # the model's files are here already

    @property
    def rates(self) -> "Rates":
        """How fast the machine is."""
        return self.give_rates()

    @property
    def expert_bytes(self) -> int:
        """One routed expert, as it lies in memory."""
        return -(-self.weights.routed // (self.config.num_moe_layers * self.config.num_experts))


def weights_of(config: ModelConfig, weight_bytes: int | None, expert_bytes: int | None) -> Weights:
    """The parts of `weight_bytes`; from the config where they are not counted yet (norms are then left out)."""
    routed = routed_bytes(config) if expert_bytes is None else expert_bytes
    total = routed_bytes(config) + common_bytes(config) if weight_bytes is None else weight_bytes
    routed = min(routed, total)
    embedding = min(sizes_of(config).embedding.num_bytes, total - routed)
    return Weights(routed, total - routed - embedding, embedding)


def dram_for(machine: Machine, weight_bytes: int) -> int | None:
    """Bytes of DRAM that this process can have: what is available, within its cgroups and on its nodes.

    2 MB pages that are set aside are no part of the available memory: weights that fit into them add to it.
    """
    bounds = [n for n in (machine.memory.usable_bytes, _on_nodes(machine)) if n is not None]
    if not bounds:
        return None
    return min(bounds) + (weight_bytes if fits_reserved(machine, weight_bytes) else 0)


def memory_nodes(machine: Machine) -> tuple[int, ...]:
    """Nodes with memory that this process may use, as `weights.numa.memory_nodes` finds them; none without a choice."""
    if len(machine.nodes) < 2:
        return ()
    allowed = machine.limits.nodes
    found = (node.number for node in machine.nodes if node.total_bytes)
    numbers = tuple(number for number in found if not allowed or number in allowed)
    return numbers if len(numbers) > 1 else ()


def node_bytes(machine: Machine) -> dict[int, int]:
    """Available bytes of each node whose memory is known."""
    return {node.number: node.available_bytes for node in machine.nodes if node.available_bytes is not None}


def _on_nodes(machine: Machine) -> int | None:
    """What the allowed nodes have, where some are not allowed."""
    allowed = machine.limits.nodes
    mine = [node for node in machine.nodes if node.number in allowed]
    if not mine or len(mine) == len(machine.nodes) or any(node.available_bytes is None for node in mine):
        return None
    return sum(node.available_bytes or 0 for node in mine)


def fits_reserved(machine: Machine, weight_bytes: int) -> bool:
    """Whether `weight_bytes` lie in 2 MB pages that are set aside: all of them, or none."""
    needed = -(-weight_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    pools = (pool for pool in machine.memory.huge_pools if pool.page_bytes == HUGE_PAGE_BYTES)
    free, allowed = sum(pool.free_bytes for pool in pools), machine.limits.huge_page_bytes
    return 0 < needed <= (free if allowed is None else min(free, allowed))
