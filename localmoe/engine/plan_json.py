"""What an engine decided, as `--json` shows it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localmoe.engine.request import EngineInfo

if TYPE_CHECKING:
    from localmoe.engine.plan import Plan


def plan_json(info: EngineInfo) -> dict[str, Any]:
    """Plain values: the choices, what lies where, and a sentence for each decision.

    `engine_process` is that of the localmoe whose engine answers, None where this one has its own.
    """
    return {
        "engine_process": None,
        **info.details,
        "isa": info.isa,
        "num_threads": info.num_threads,
        "context_limit": info.context_limit,
        "weight_bytes": info.weight_bytes,
        "cache_bytes": info.cache_bytes,
        "decisions": list(info.plan),
    }


def plan_object(plan: "Plan") -> dict[str, Any]:
    """`plan` as plain values: bytes, tokens and shares."""
    return {
        "kind": plan.kind,
        "isa": plan.isa,
        "num_threads": plan.num_threads,
        "cache_dtype": plan.cache_dtype,
        "chunk": plan.chunk,
        "context_limit": plan.context_limit,
        "longest_context": plan.longest_context,
        "num_pages": plan.num_pages,
        "crossover_tokens": plan.crossover_tokens,
        "ring": {"slots": plan.ring.slots, "group_experts": plan.ring.group_experts} if plan.ring else None,
        "urgent_share": plan.urgent_share,
        "batch": plan.batch,
        "beside_chunk": plan.beside_chunk,
        "passing_tokens": plan.passing_tokens,
        "resident_share": plan.placement.resident_share,
        "gpus": list(plan.gpus),
        "locks_experts": plan.locks_experts,
        "pass_tokens": plan.pass_tokens,
        "alone_tokens": plan.alone_tokens,
        "sharing": asdict(plan.sharing) if plan.sharing else None,
        "memory": _memory(plan),
        "items": [
            {"place": item.place, "name": item.name, "num_bytes": item.num_bytes, "nodes": _nodes(item.nodes)}
            for item in plan.items
        ],
        "shared": {
            "routed_bytes": plan.shared.routed_bytes,
            "total_bytes": plan.shared.total_bytes,
            "saved_bytes": plan.shared.saved_bytes,
        },
        "decisions": list(plan.reasons),
    }


def _memory(plan: "Plan") -> dict[str, Mapping[str, int | None]]:
    """Of each place: what is needed and what is available (None: unknown)."""
    return {
        place: {"needed_bytes": plan.needed(place), "available_bytes": plan.available.get(place)}
        for place in plan.places
    }


def _nodes(nodes: tuple[tuple[int, int], ...]) -> dict[str, int]:
    return {str(node): num_bytes for node, num_bytes in nodes}
