"""How fast a machine is: values that were measured on it or estimated, each with its source."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Origin = Literal["measured", "estimated"]
Matmul = tuple[tuple[int, "Rate"], ...]  # (tokens at once, fraction of the FMA peak), tokens ascending


@dataclass(frozen=True, slots=True)
class Rate:
    """One value: bytes/s, FLOP/s, seconds or a fraction, whichever its place says. ValueError unless above 0."""

    value: float
    origin: Origin
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise ValueError(f"a rate must be a finite number above 0, not {self.value} ({self.source})")

    @property
    def is_estimate(self) -> bool:
        """Whether nobody measured it on this machine."""
        return self.origin == "estimated"

    def times(self, factor: "Rate | float") -> "Rate":
        """Their product, measured only where both are."""
        if not isinstance(factor, Rate):
            return Rate(self.value * factor, self.origin, self.source)
        origin: Origin = "estimated" if self.is_estimate or factor.is_estimate else "measured"
        return Rate(self.value * factor.value, origin, f"{self.source}; {factor.source}")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What the CPU kernels reach, as fractions: of the streaming read, and of the cores' FMA peak."""

    read: Rate  # weights where memory is the limit
    matmul: Matmul  # with FP8 weights
    prompt_attention: Rate  # keys and values expanded
    token_attention: Rate  # over latents
    bf16_matmul: Matmul = ()  # with BF16 weights; empty: as with FP8
    latents: Rate | None = None  # of the streaming read, by one token's attention beside its arithmetic; None: at once
    lanes: int = 1  # heads that one token's attention scores at a time, idle ones among them


@dataclass(frozen=True, slots=True)
class Cpu:
    """The cores and their DRAM."""

    stream: Rate  # bytes/s, all nodes together
    fma: Rate  # FLOP/s, all cores together
    kernels: Kernels
    layer: Rate  # s for each layer and run beside arithmetic and memory: stages, barriers, hand-overs
    nodes: tuple[Rate, ...] = ()  # bytes/s of each NUMA node, where known
    activations: Rate | None = None  # bytes/s of what ops on a prompt's tokens pass on to each other
    step: Rate | None = None  # s for each step of decode beside the network: Python, text, events
    logit: Rate | None = None  # s for each entry of the vocabulary and stream, to choose a token

    @property
    def read(self) -> Rate:
        """Bytes/s at which weights come: each node holds an equal part, so the slowest decides."""
        if not self.nodes:
            return self.stream.times(self.kernels.read)
        slowest = min(self.nodes, key=lambda node: node.value)
        each = slowest.times(float(len(self.nodes)))
        return min(self.stream, each, key=lambda rate: rate.value).times(self.kernels.read)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU and its link. All FLOP/s are what kernels reach, not the data sheet's."""

    vram_bytes: int
    memory: Rate  # bytes/s
    gemm: Rate  # FLOP/s of FP8 (or BF16) weights times many tokens
    attention: Rate  # FLOP/s
    h2d: Rate  # bytes/s from pinned memory; the other direction is taken to be as fast
    launch: Rate  # s
    event: Rate  # s to record an event and wait for it
    layer: Rate  # s for each layer of a step shared with the CPU, beside arithmetic and memory: launches, hand-overs
    peer: Rate | None = None  # bytes/s to another GPU without passing through host memory; None: there is no such way


@dataclass(frozen=True, slots=True)
class Rates:
    """A whole machine."""

    machine: str
    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()
    h2d_together: Rate | None = None  # bytes/s when all GPUs copy at once; None: they do not slow each other
    disk: Rate | None = None  # bytes/s, direct reads


def kernels_from_rows(rows: Mapping[str, tuple[float, float]], source: str) -> Kernels:
    """Kernels from rows of `bench --suite kernels`: (value, reference) by case, both in GB/s or both in GFLOP/s.

    An FP8 GEMV is limited by memory or by decoding: it is kept as arithmetic, and `read` is taken from BF16, which
    has nothing to decode. Where memory limits FP8 too, its arithmetic fraction comes out too low, but never its time.
    KeyError for a row that is missing.
    """
    fma = rows["gemm-256"][1]

    def rate(value: float) -> Rate:
        return Rate(value, "measured", source)

    def ratio(case: str) -> Rate:
        return rate(rows[case][0] / rows[case][1])

    def arithmetic(case: str, num_tokens: int) -> tuple[int, Rate]:
        return num_tokens, rate(2 * num_tokens * rows[case][0] / fma)  # a byte is a weight

    return Kernels(
        read=ratio("gemv-bf16"),
        matmul=(
            arithmetic("gemv", 1),
            arithmetic("moe-8-same", 8),
            (48, ratio("gemm-48")),
            (256, ratio("gemm-256")),
        ),
        prompt_attention=ratio("attention-4k"),
        token_attention=ratio("attend-4k"),
    )
