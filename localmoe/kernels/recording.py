"""What a dialect has written down for the native core, and how its buffers share one arena."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localmoe import _native as native
from localmoe.kernels.ops import Experts, Placement

ALIGN_FLOATS = 16  # buffers begin at cache lines


@dataclass(frozen=True)
class Value:
    """Columns start .. start + width of a recorded buffer; one row per token, or per selected token."""

    buffer: int
    start: int
    width: int
    selected: bool = False


@dataclass(frozen=True)
class Call:
    """One recorded op: a method of native.Program and its arguments, Values among them."""

    method: str
    args: tuple[Any, ...]

    @property
    def values(self) -> list[Value]:
        """What the op reads and writes."""
        return [a for a in self.args if isinstance(a, Value)]


class Recording:
    """Calls in order, and the buffers that they read and write."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.widths: list[int] = []  # of each buffer

    def _new(self, width: int, selected: bool = False) -> Value:
        self.widths.append(width)
        return Value(len(self.widths) - 1, 0, width, selected)

    def _call(self, method: str, *args: Any) -> None:
        self.calls.append(Call(method, args))


def record(ops: Recording, output: Value | None, max_tokens: int, target: str) -> tuple[native.Program, list[int]]:
    """A native program of the calls, not planned yet, and the offsets of all buffers but `output`, the logits."""
    program = native.Program(max_tokens, target)
    offsets, _ = plan_buffers(ops, max_tokens)
    for call in ops.calls:
        args = (native_rows(a, ops, offsets, output) if isinstance(a, Value) else a for a in call.args)
        getattr(program, call.method)(*args)
    return program, offsets


def arena_floats(ops: Recording, max_tokens: int) -> int:
    """Room of all buffers together."""
    return plan_buffers(ops, max_tokens)[1]


def plan_buffers(ops: Recording, max_tokens: int) -> tuple[list[int], int]:
    """Offsets in floats of all buffers, and the arena's size: buffers that live at the same time do not overlap."""
    sizes = [-(-width * max_tokens // ALIGN_FLOATS) * ALIGN_FLOATS for width in ops.widths]
    return place_buffers(ops.calls, sizes)


def place_buffers(calls: Sequence[Call], sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of all buffers, and the arena's size, in whatever unit `sizes` has.

    Each into the first gap, in the order of several that needs the least: what lives when the most does, or what always
    lives, before others, and the largest first. A recording's own order would leave gaps that are a little too small.
    """
    lives, alive = _lives(calls, len(sizes)), [0] * len(calls)
    for (first, last), size in zip(lives, sizes, strict=True):
        for n in range(first, last + 1):
            alive[n] += size
    most = [max(alive[first : last + 1]) for first, last in lives]
    stays = [2 * (last - first) > len(calls) for first, last in lives]
    buffers = range(len(sizes))
    orders = (
        sorted(buffers, key=lambda n: (-most[n], -sizes[n])),
        sorted(buffers, key=lambda n: (not stays[n], -most[n], -sizes[n])),
        sorted(buffers, key=lambda n: -sizes[n]),
        sorted(buffers, key=lambda n: (not stays[n], -sizes[n])),
        sorted(buffers, key=lambda n: (not stays[n], lives[n][0] - lives[n][1], -sizes[n])),
    )
    return min((_placed(order, lives, sizes, len(calls)) for order in orders), key=lambda found: found[1])


def _placed(
    order: Sequence[int], lives: Sequence[tuple[int, int]], sizes: Sequence[int], num_calls: int
) -> tuple[list[int], int]:
    offsets = [0] * len(sizes)
    placed: list[list[int]] = [[] for _ in range(num_calls)]  # buffers that live at each call
    for buffer in order:
        first, last = lives[buffer]
        together = {other for at_call in placed[first : last + 1] for other in at_call}
        offsets[buffer] = _gap(sizes[buffer], sorted((offsets[o], offsets[o] + sizes[o]) for o in together))
        for at_call in placed[first : last + 1]:
            at_call.append(buffer)
    return offsets, max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)


def _gap(size: int, taken: Sequence[tuple[int, int]]) -> int:
    """Where the first one begins that has room for `size` between what is taken, by offset."""
    offset = 0
    for start, stop in taken:
        if offset + size <= start:
            break
        offset = max(offset, stop)
    return offset


def _lives(calls: Sequence[Call], num_buffers: int) -> list[tuple[int, int]]:
    """First and last call that touches each buffer; buffers are numbered in the order of their first call."""
    lives: dict[int, tuple[int, int]] = {}
    for n, call in enumerate(calls):
        for value in call.values:
            lives[value.buffer] = (lives.get(value.buffer, (n, n))[0], n)
    return [lives[buffer] for buffer in range(num_buffers)]


def native_rows(value: Value, ops: Recording, offsets: list[int], output: Value | None) -> native.Rows:
    """Where the value's rows lie."""
    stride = ops.widths[value.buffer]
    if output is not None and value.buffer == output.buffer:
        return native.Rows(-1, stride, value.width, value.selected)
    return native.Rows(offsets[value.buffer] + value.start, stride, value.width, value.selected)


def native_parts(experts: Experts) -> list[native.ExpertPart]:
    """Where experts lie, and where matrices lie in them."""
    return [native.ExpertPart(p.blob, *(_matrix(m) for m in (p.gate, p.up, p.down))) for p in experts.parts]


def _matrix(p: Placement) -> native.ExpertMatrix:
    return native.ExpertMatrix(p.offset, p.scale_offset, p.rows, p.cols, p.dtype == "bf16", p.first_row)
