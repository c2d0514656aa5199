"""A model's own sampling and stop tokens: settings > generation_config.json > catalogue > default."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from localmoe.engine.checks import check_sampling
from localmoe.engine.request import Sampling
from localmoe.errors import CheckpointError, UsageError
from localmoe.hub.catalog import CatalogModel
from localmoe.settings import Settings

Origin = Literal["model", "catalogue"]

_VALUES = ("temperature", "top_p", "min_p", "repetition_penalty")


def sampling_defaults(settings: Settings, generation: Mapping[str, Any], entry: CatalogModel | None) -> Sampling:
    """How answers are sampled unless a request says otherwise. CheckpointError for a nonsensical generation_config."""
    values: dict[str, Any] = {name: value for name, (value, _) in own_sampling(generation, entry).items()}
    chosen = {name: getattr(settings, name) for name in (*_VALUES, "seed")}
    sampling = Sampling(**values | {name: value for name, value in chosen.items() if value is not None})
    check_sampling(sampling)
    return sampling


def own_sampling(generation: Mapping[str, Any], entry: CatalogModel | None) -> dict[str, tuple[float, Origin]]:
    """What the model says of sampling, each value with who says it. CheckpointError as `sampling_defaults`."""
    known = {"temperature": entry.temperature, "top_p": entry.top_p} if entry else {}
    values: dict[str, tuple[float, Origin]] = {n: (v, "catalogue") for n, v in known.items() if v is not None}
    return values | {name: (value, "model") for name, value in _generation_values(generation).items()}


def stop_tokens(generation: Mapping[str, Any]) -> frozenset[int]:
    """`eos_token_id`, which may be a list."""
    ids = generation.get("eos_token_id")
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise _damaged(f"eos_token_id is {generation['eos_token_id']!r}")
    return frozenset(ids)


def _generation_values(generation: Mapping[str, Any]) -> dict[str, float]:
    values = {name: generation[name] for name in _VALUES if generation.get(name) is not None}
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _damaged(f"{name} is {value!r}")
    try:
        check_sampling(replace(Sampling(), **values))
    except UsageError as error:
        raise _damaged(error.message) from error
    return values if generation.get("do_sample") is not False else values | {"temperature": 0.0}


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(f"generation_config.json: {what}", "correct that file, or get it again")
