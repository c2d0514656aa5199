"""Suite slp: stream-loading prefill with experts read directly from disk, beside its transfer and its compute alone.

Each case measures all three in turn, a few times; a ratio is the wall time over the longer of the two. What bounds a
case is its number of tokens: few for the transfer, many for the compute, and about as many as makes both equal.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from localmoe.bench import early
from localmoe.bench.checkpoint import bench_checkpoint, streamed_checkpoint
from localmoe.bench.kernels import num_workers
from localmoe.bench.rows import Listener, Row, compared
from localmoe.engine.streaming import Shape, StreamedModel, StreamTrial, Trialled, event_us
from localmoe.hub.catalog import resolve
from localmoe.settings import Settings

SHAPE = Shape(group_experts=8, num_slots=4)
ONE_SLOT = Shape(group_experts=8, num_slots=1)
NUM_ROUNDS = 7
ROUNDS_S = 90.0  # no further round of a case is begun after this
MAX_TOKENS = 4096
FEW_TOKENS = 32
FIRST_GUESS = 128  # tokens with which the compute is gauged
GAUGE_STEPS = 4
LATER_STEPS = 2  # where the case before gives a guess
COMPUTE_BOUND = 4.0  # times the transfer
LINK_SHARE = 0.2  # of the disk's rate, for each of two links
AGAINST = "the longer of transfer alone and compute alone"


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one round of a case."""

    transfer_s: float
    compute_s: float
    wall_s: float

    @property
    def bound_s(self) -> float:
        """What the wall cannot be below."""
        return max(self.transfer_s, self.compute_s)


def measure(settings: Settings, model: str | None, listener: Listener) -> Iterator[Row]:
    """Rows `slp-transfer`, `slp-balanced`, `slp-compute`, `slp-serial`, `slp-two`, `event-overhead`, `early-move`."""
    folder = resolve(model).folder if model else streamed_checkpoint(listener)
    listener.progress("slp: opening all but the experts")
    with closing(StreamedModel(folder, num_workers(settings), settings.isa, MAX_TOKENS)) as streamed:
        yield from measure_model(streamed, listener, max_tokens=MAX_TOKENS, link_share=LINK_SHARE)
        if streamed.config.num_moe_layers and not streamed.files.is_direct:
            listener.warn("slp: this filesystem refuses direct reads, so experts came through the page cache")
        has_experts = streamed.config.num_moe_layers > 0
    if has_experts:
        yield from early.measure(folder if model else bench_checkpoint(listener), settings, listener)


def measure_model(
    streamed: Trialled, listener: Listener, *, max_tokens: int, num_links: int = 2, link_share: float | None = None
) -> Iterator[Row]:
    """All rows; two devices only where there are two links: of their own, or of `link_share` of the transfer's rate."""
    if not streamed.config.num_moe_layers:
        listener.warn("slp is left out: this model has no routed experts")
        return
    with closing(StreamTrial(streamed, SHAPE)) as trial:
        tokens = _choose_tokens(trial, listener, max_tokens)
        balanced: list[Round] = []
        for case, num_tokens in tokens.items():
            rounds = _rounds(trial, case, num_tokens, listener)
            balanced = rounds if case == "slp-balanced" else balanced
            yield _row(case, rounds, streamed.isa)
        group_s = _group_s(trial)
        rate = streamed.expert_bytes / median(r.transfer_s for r in balanced)
    yield _serial(streamed, tokens["slp-balanced"], balanced, listener)
    if num_links > 1:
        yield _two(streamed, link_share * rate if link_share else None, listener)
    listener.progress("event-overhead: what a group costs beside its work")
    yield compared(Row("slp", "event-overhead", "us", event_us(streamed), "us"), 1e6 * group_s, "a group's compute")


def _choose_tokens(trial: StreamTrial, listener: Listener, most: int) -> dict[str, int]:
    """Tokens of each case, `most` at most."""
    listener.progress("slp: gauging transfer and compute")
    trial.wall_s(FEW_TOKENS)  # touches memory, and leaves experts in the slots
    transfer_s = median(trial.transfer_s() for _ in range(3))
    few = _tokens_for(trial, transfer_s / COMPUTE_BOUND, most, FIRST_GUESS, GAUGE_STEPS)
    balanced = _tokens_for(trial, transfer_s, most, round(COMPUTE_BOUND * few), LATER_STEPS)
    many = _tokens_for(trial, COMPUTE_BOUND * transfer_s, most, round(COMPUTE_BOUND * balanced), LATER_STEPS)
    return {"slp-transfer": few, "slp-balanced": balanced, "slp-compute": many}


def _tokens_for(trial: StreamTrial, seconds: float, most: int, guess: int, num_steps: int) -> int:
    """As many as compute in `seconds`: the time grows nearly like their number, so a few steps from a guess find it."""
    num_tokens = max(FEW_TOKENS, min(most, guess))
    for _ in range(num_steps):
        found_s = min(trial.compute_s(num_tokens) for _ in range(2))
        num_tokens = max(FEW_TOKENS, min(most, round(num_tokens * seconds / found_s)))
    return num_tokens


def _rounds(trial: StreamTrial, case: str, num_tokens: int, listener: Listener) -> list[Round]:
    listener.progress(f"{case}: {num_tokens:,} tokens")
    rounds: list[Round] = []
    end_s = time.monotonic() + ROUNDS_S
    while len(rounds) < NUM_ROUNDS and (not rounds or time.monotonic() < end_s):
        wall_s = trial.wall_s(num_tokens)  # first: it leaves the experts that compute alone uses
        rounds.append(Round(trial.transfer_s(), trial.compute_s(num_tokens), wall_s))
    return rounds


def _row(case: str, rounds: list[Round], isa: str) -> Row:
    wall_s, bound_s = median(r.wall_s for r in rounds), median(r.bound_s for r in rounds)
    ratio = median(r.wall_s / r.bound_s for r in rounds)
    return Row("slp", case, "wall_s", wall_s, "s", bound_s, ratio, isa, AGAINST)


def _serial(model: Trialled, num_tokens: int, balanced: list[Round], listener: Listener) -> Row:
    """What the ring is for: one slot, so that a group is loaded only when the one before is computed."""
    listener.progress(f"slp-serial: {num_tokens:,} tokens through one slot")
    with closing(StreamTrial(model, ONE_SLOT)) as trial:
        trial.wall_s(FEW_TOKENS)
        wall_s = median(trial.wall_s(num_tokens) for _ in range(3))
    row = Row("slp", "slp-serial", "wall_s", wall_s, "s", isa=model.isa)
    return compared(row, median(r.wall_s for r in balanced), f"the same through {SHAPE.num_slots} slots")


def _two(model: Trialled, cap: float | None, listener: Listener) -> Row:
    """Two devices, each with a link of its own, beside one with one: few tokens, so that links decide."""
    links = f"links of {cap / 1e9:.2f} GB/s" if cap else "their own links"
    listener.progress(f"slp-two: one and two devices with {links}")
    walls: list[tuple[float, float]] = []
    with (
        closing(StreamTrial(model, SHAPE, cap=cap)) as one,
        closing(StreamTrial(model, SHAPE, num_devices=2, cap=cap)) as two,
    ):
        for _ in range(3):
            walls.append((one.wall_s(FEW_TOKENS), two.wall_s(FEW_TOKENS)))
        found = two.pipeline.exchanged
    if found:
        sent = f"{found.total / 1e6:.2f} MB of rows between them"
        others = f"{found.per_expert / 1e6:.2f} for each expert, {found.deduplicated / 1e6:.2f} without repeats"
        listener.progress(f"slp-two: {sent}; dispatch and combine would send {others}")
    return compared(Row("slp", "slp-two", "speedup", median(a / b for a, b in walls), "x"), 2.0, "two links")


def _group_s(trial: StreamTrial) -> float:
    """Of the run before: the median of its groups' compute."""
    return median(s.end_s - s.start_s for s in trial.pipeline.spans if s.stage == "experts")
