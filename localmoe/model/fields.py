"""Typed reading of a model's config.json: every refusal names the key, its value and what to do."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from localmoe.errors import CheckpointError, UnsupportedModelError

DOWNLOAD_AGAIN = (
    "Download the model's config.json again, or choose another model: `localmoe models` lists those that run."
)
CHOOSE_ANOTHER = "Choose another model: `localmoe models` lists those that run."
MAX_NUMBER = 1e12  # far above real ones, and its square is still a float32
MAX_SIZE = 1 << 24  # no dimension of a real model comes near it; keeps damaged files from asking for terabytes


class Fields:
    """The keys of one JSON object; `path` is its place in config.json, such as "rope_scaling."."""

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self.path = path

    def has(self, key: str) -> bool:
        """Whether `key` is there and not null."""
        return self.data.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """The whole number at `key`, within low..high."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, "must be a whole number")
        if value < low:
            self.wrong(key, f"must be at least {low}")
        if value > high:
            self.wrong(key, f"must be at most {high}")
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0, high: float = MAX_NUMBER) -> float:
        """The number at `key`, larger than `above` and at most `high`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(key, "must be a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not above < number <= high:  # nor a NaN
            self.wrong(key, f"must be a number above {above:g} and at most {high:g}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """The boolean at `key`."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.wrong(key, "must be true or false")
        return value

    def choice(self, key: str, known: Sequence[str], default: str | None = None) -> str:
        """The string at `key`, one of `known`: what else is there, localmoe does not run."""
        value = self._value(key, default)
        if value not in known:
            self.unsupported(key, f"localmoe runs {' and '.join(known)}")
        return value

    def object(self, key: str) -> "Fields":
        """The JSON object at `key`; empty where there is none."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, Mapping):
            self.wrong(key, "must be an object")
        return Fields(value or {}, f"{self.path}{key}.")

    def wrong(self, key: str, rule: str) -> NoReturn:
        """Refuses a value that makes no sense."""
        raise CheckpointError(f"config.json: `{self.path}{key}` is {self._shown(key)}, but it {rule}.", DOWNLOAD_AGAIN)

    def unsupported(self, key: str, why: str, hint: str = CHOOSE_ANOTHER) -> NoReturn:
        """Refuses a value that makes sense, but that localmoe does not run."""
        raise UnsupportedModelError(f"config.json: `{self.path}{key}` is {self._shown(key)}; {why}.", hint)

    def _value(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"config.json: `{self.path}{key}` is missing.", DOWNLOAD_AGAIN)
        return value

    def _shown(self, key: str) -> str:
        shown = repr(self.data.get(key))
        return shown if len(shown) <= 80 else shown[:77] + "..."
