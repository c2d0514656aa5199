"""The native module as type checkers see it: nanobind checks names and arguments at run time."""

from typing import Any

def __getattr__(name: str) -> Any: ...
