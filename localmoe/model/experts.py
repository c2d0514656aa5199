"""Feed-forward layers: a dense one, and the mixture of routed and shared experts."""

from collections.abc import Callable
from dataclasses import dataclass

from localmoe.kernels.ops import Experts, Linear, Ops, V
from localmoe.model.config import ModelConfig
from localmoe.model.router import Gate, load_gate, route
from localmoe.weights.store import Store


@dataclass(frozen=True)
class Ffn:
    """down(silu(gate x) * up x): a dense layer, or all shared experts as one."""

    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Moe:
    """Routed experts, of which each token takes a few, and shared ones that every token takes."""

    gate: Gate
    experts: Experts
    shared: Ffn | None


def ffn(ops: Ops[V], x: V, w: Ffn) -> V:
    """[T, H] -> [T, H]."""
    return ops.linear(ops.silu_mul(ops.linear(x, w.gate), ops.linear(x, w.up)), w.down)


Routed = Callable[[Ops[V], V, Moe], Callable[[], V]]  # begins the routed experts' sum; called, what it gives is due


def routed(ops: Ops[V], x: V, w: Moe) -> Callable[[], V]:
    """[T, H] -> [T, H]: the chosen experts of each token, computed here and now."""
    out = ops.experts(x, route(ops, x, w.gate), w.experts)
    return lambda: out


def mixture(ops: Ops[V], x: V, w: Moe, routed: Routed[V] = routed) -> V:
    """[T, H] -> [T, H]. Where `routed` has the sum computed elsewhere, the shared experts come meanwhile."""
    due = routed(ops, x, w)
    shared = None if w.shared is None else ffn(ops, x, w.shared)
    return due() if shared is None else ops.add(due(), shared)


def load_ffn(store: Store, prefix: str) -> Ffn:
    """The weights under `prefix`, such as "model.layers.0.mlp."."""
    return Ffn(*(store.linear(f"{prefix}{name}_proj") for name in ("gate", "up", "down")))


def load_moe(config: ModelConfig, store: Store, prefix: str) -> Moe:
    """The weights under `prefix`, such as "model.layers.3.mlp."."""
    return Moe(
        gate=load_gate(config, store, prefix + "gate"),
        experts=store.experts(prefix + "experts"),
        shared=load_ffn(store, prefix + "shared_experts.") if config.num_shared_experts else None,
    )
