"""Which experts a token goes to (DeepSeek-V3, arXiv 2412.19437, section 2.1.2; DeepSeek-V2, section 2.2)."""

from dataclasses import dataclass

from localmoe.kernels.ops import Linear, Ops, Router, Routing, V
from localmoe.model.config import ModelConfig
from localmoe.weights.store import Store


@dataclass(frozen=True)
class Gate:
    """One layer's router: its logits' weights [E, H], and how experts follow from them."""

    weight: Linear
    rule: Router


def route(ops: Ops[V], x: V, gate: Gate) -> Routing[V]:
    """[T, H] -> the chosen experts of each token and their weights."""
    return ops.route(ops.linear(x, gate.weight), gate.rule)


def load_gate(config: ModelConfig, store: Store, prefix: str) -> Gate:
    """The weights under `prefix`, such as "model.layers.3.mlp.gate"."""
    rule = Router(
        num_experts=config.num_experts,
        top_k=config.top_k,
        num_groups=config.num_groups,
        top_groups=config.top_groups,
        scoring=config.scoring,
        group_score=config.group_score,
        normalize=config.norm_top_k,
        scale=config.routed_scale,
        bias=store.vector(prefix + ".e_score_correction_bias") if config.has_router_bias else None,
    )
    return Gate(store.linear(prefix), rule)
