"""What a plan is: frozen values, each decision with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from localmoe.engine.cost.placement import Placement
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.prefill.split import SplitRates

DRAM = "DRAM"

Kind = Literal["cpu", "slp", "dslp", "disk"]


@dataclass(frozen=True, slots=True)
class Item:
    """Bytes that the plan keeps at one place, "DRAM" or "GPU 0"; in DRAM with their split over NUMA nodes.

    `nodes`: (node, bytes) pairs; empty where the kernel chooses the node, and on machines with one.
    """

    place: str
    name: str
    num_bytes: int
    nodes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice, and a sentence that says why."""

    what: str
    choice: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.choice}; {self.why}"


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots of one expert each through which a device's experts flow, and how many come in one transfer."""

    slots: int  # beside the longest prompt that the plan takes
    group_experts: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the first GPU and the CPU do together, beside streamed prompts."""

    mixed_from: int | None  # the shortest prompt whose experts both compute; None: the CPU computes them
    mixed_tokens: int  # of such a prompt at once
    slots: int  # of one expert each, for those prompts
    rates: SplitRates  # which say who gets which experts
    alternates: bool  # steps of several conversations may go as two batches
    num_hot: int  # experts that stay on the GPU once it shows which are chosen most
    takes_turns: bool = False  # a streamed prompt leaves the GPU to steps between tiles; else priorities part them


@dataclass(frozen=True, slots=True)
class SharedCopy:
    """The routed experts, which prefill and decode share, and what that saves."""

    routed_bytes: int
    total_bytes: int
    saved_bytes: int  # against a copy of the experts for each phase

    @property
    def routed_share(self) -> float:
        """Of the model's bytes, 0 to 1."""
        return self.routed_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions. What is printed of it is what runs: the engine takes every value from here."""

    kind: Kind
    isa: str
    num_threads: int
    cache_dtype: str
    chunk: int  # tokens that the CPU reads at once
    context_limit: int
    num_pages: int  # of the latent cache
    items: tuple[Item, ...]
    decisions: tuple[Decision, ...]
    placement: Placement
    crossover_tokens: int | None  # the shortest prompt whose experts are streamed; None: none is
    ring: Ring | None  # None: nothing is streamed
    urgent_share: float  # of the time, for decode, while a prompt is read too: at most
    shared: SharedCopy
    available: Mapping[str, int]  # bytes by place; a place whose room is unknown is left out
    longest_context: int  # that would fit at those places
    gpus: tuple[int, ...] = ()  # those that are used: positions in Machine.gpus and Rates.gpus
    locks_experts: bool = False  # their pages, so that GPUs copy from them at the bus's full speed
    pass_tokens: int | None = None  # of a prompt that is streamed at once; None: none is
    alone_tokens: int | None = None  # of a prompt that the last GPU reads alone, beside answers; None: all GPUs do
    sharing: Sharing | None = None  # None: no GPU
    batch: int = MAX_BATCH  # answers at the same time, the one whose prompt is read among them
    beside_chunk: int | None = None  # tokens that are read at once while there are other requests; None: as alone
    passing_tokens: int = 0  # of a prompt, at most, that is read while a longer one's run goes on
    beside_bytes: int = 0  # of the first GPU's room: for prompts that are not streamed, and for steps

    @property
    def read_tokens(self) -> int:
        """Of a prompt at once, streamed or not."""
        return max(self.chunk, self.pass_tokens or 0)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of what lies in DRAM, by name."""
        return {item.name: item.num_bytes for item in self.items if item.place == DRAM}

    @property
    def places(self) -> tuple[str, ...]:
        """Where something lies, DRAM first."""
        return tuple(dict.fromkeys(item.place for item in self.items))

    @property
    def reasons(self) -> tuple[str, ...]:
        """A sentence for each decision."""
        return tuple(map(str, self.decisions))

    def needed(self, place: str) -> int:
        """All bytes at `place`."""
        return sum(item.num_bytes for item in self.items if item.place == place)
