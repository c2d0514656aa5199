"""A predicted time that says where it comes from: a tree of sums and maxima over bytes, FLOPs and counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from localmoe.engine.cost.rates import Rate

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Term:
    """`seconds` for `name`; `what` says of what, such as "20.4 GB at 947 GB/s". Parts add up, or the longest counts."""

    name: str
    what: str
    seconds: float
    parts: tuple["Term", ...] = ()
    how: Literal["sum", "max"] = "sum"

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The tree as indented text."""
        what = f"{self.what} = " if self.what else ""
        how = ", the longest of" if self.how == "max" and len(self.parts) > 1 else ""
        yield f"{'  ' * depth}{self.name}: {what}{duration(self.seconds)}{how}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def find(self, name: str) -> "Term":
        """The first term of that name, depth first; KeyError without one."""
        for term in self._walk():
            if term.name == name:
                return term
        raise KeyError(name)

    def _walk(self) -> Iterator["Term"]:
        yield self
        for part in self.parts:
            yield from part._walk()


def moved(name: str, num_bytes: float, rate: Rate) -> Term:
    """Bytes over bandwidth (bytes/s)."""
    return Term(name, f"{amount(num_bytes, 'B')} at {_rate(rate, 'B/s')}", num_bytes / rate.value)


def computed(name: str, flops: float, rate: Rate) -> Term:
    """FLOPs over rate (FLOP/s)."""
    return Term(name, f"{amount(flops, 'FLOP')} at {_rate(rate, 'FLOP/s')}", flops / rate.value)


def counted(name: str, count: float, each: Rate) -> Term:
    """`count` times the seconds of `each`."""
    return Term(name, f"{count:,.0f} of {'about ' * each.is_estimate}{duration(each.value)}", count * each.value)


def total(name: str, *parts: Term) -> Term:
    """One after the other. Parts that take no time are left out."""
    kept = tuple(part for part in parts if part.seconds > 0)
    return Term(name, "", sum(part.seconds for part in kept), kept)


def longest(name: str, *parts: Term) -> Term:
    """At the same time: the longest counts. Parts that take no time are left out."""
    kept = tuple(part for part in parts if part.seconds > 0)
    return Term(name, "", max((part.seconds for part in kept), default=0.0), kept, "max")


def amount(value: float, unit: str) -> str:
    """Three digits and a prefix: 20.4 GB."""
    for factor, prefix in PREFIXES:
        if value >= 0.9995 * factor:
            return f"{_digits(value / factor)} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def duration(seconds: float) -> str:
    """Three digits of s, ms, us or ns."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"


def _rate(rate: Rate, unit: str) -> str:
    return "about " * rate.is_estimate + amount(rate.value, unit)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
