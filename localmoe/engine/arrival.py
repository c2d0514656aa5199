"""What the engine asks of a model whose files are on their way here, or are checked."""

from collections.abc import Mapping
from typing import Any

from localmoe.errors import ModelError
from localmoe.hub.checkpoint import TensorSpec
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors


def wanted_tensors(config: Mapping[str, Any]) -> list[TensorSpec]:
    """Those that a model of this config.json must have. UnsupportedModelError where localmoe runs no such model."""
    return expected_tensors(read_config(config))


def known_tensors(config: Mapping[str, Any]) -> list[TensorSpec]:
    """The same; none of a model that localmoe does not run, whose files can be right all the same."""
    try:
        return wanted_tensors(config)
    except ModelError:
        return []
