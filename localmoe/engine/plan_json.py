"""What an engine decided, as `--json` shows it."""

from typing import Any

from localmoe.engine.request import EngineInfo


def plan_json(info: EngineInfo) -> dict[str, Any]:
    """Plain values: the choices, and a sentence for each decision."""
    return {
        "isa": info.isa,
        "num_threads": info.num_threads,
        "context_limit": info.context_limit,
        "weight_bytes": info.weight_bytes,
        "cache_bytes": info.cache_bytes,
        "decisions": list(info.plan),
    }
