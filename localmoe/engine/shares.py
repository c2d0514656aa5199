"""How much of the workers' time decode gets while a prompt is read too: what its target asks for, and no more.

A prompt that would come too late for that gets some of it, as far as answers can make up for it.

As in ExpertPlex's share controller: q' = min(q_max, ceil(q x / x*)), where x are the tiles of the next step, each
expert's tokens in tiles of so many, and x* those that a share of q can do within the target. A share is counted in
units finer than a worker, so that two cores can be shared as well as sixty.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from localmoe.engine.cost.routing import tiles
from localmoe.model.config import ModelConfig

UNITS = 32  # of the whole pool
TILE_TOKENS = 8  # of an expert, that share one reading of its weights
AIM = 0.75  # of a target: what comes between two steps takes time too, and steps differ
HORIZON = 8  # steps in which an answer that is ahead of its target, or behind, comes back to LEAD
LEAD = 2  # tokens' time that answers are kept ahead: the next prompt may be pressed for time
GRACE = 4  # tokens' time that an answer may come to be behind for a prompt that is
PRESSED = 4  # times the target that a step then takes at most
MEMORY = 0.75  # how much of what was known of a tile's cost stays after another step


@dataclass(frozen=True, slots=True)
class Share:
    """Decode's, in UNITS, and what a tile costs: seconds of one unit. None: not yet measured."""

    units: int
    most: int
    tile_s: float | None = None

    @property
    def part(self) -> float:
        """Of the workers' time, above 0 and at most 1."""
        return self.units / UNITS


def step_target_s(target_s: float, ahead_s: float) -> float:
    """What the next step of an answer may take that is `ahead_s` seconds ahead of its target for each token so far.

    One that went on fast while nothing was read leaves more to a prompt that comes then, up to twice its target a step.
    """
    return AIM * min(2 * target_s, max(target_s / 2, target_s + (ahead_s - LEAD * target_s) / HORIZON))


def pressed_target_s(target_s: float, ahead_s: float) -> float:
    """The same while a prompt would else come too late, which cannot be made up for, as a slow step can.

    An answer gives all that it is ahead and GRACE tokens' time more, in steps of PRESSED times its target at most.
    """
    given_s = target_s + ahead_s + GRACE * target_s
    return max(step_target_s(target_s, ahead_s), AIM * min(PRESSED * target_s, given_s))


def tiles_within(share: Share, target_s: float) -> float:
    """x*: the tiles that `share` can do within `target_s`."""
    assert share.tile_s is not None
    return share.units * target_s / share.tile_s


def share_for(share: Share, num_tiles: float, target_s: float) -> Share:
    """The share for a step of `num_tiles`; the most while nothing is known: decode first."""
    if share.tile_s is None:
        return replace(share, units=share.most)
    wanted = math.ceil(share.units * num_tiles / tiles_within(share, target_s) - 1e-9)
    return replace(share, units=min(share.most, max(1, wanted)))


def after_step(share: Share, num_tiles: float, seconds: float, bulk_s: float) -> Share:
    """What is known once a step of `num_tiles` took `seconds`, in which prefill had all workers for `bulk_s`."""
    spent_s = UNITS * max(0.0, seconds - bulk_s) / num_tiles
    known_s = spent_s if share.tile_s is None else MEMORY * share.tile_s + (1 - MEMORY) * spent_s
    return replace(share, tile_s=known_s)


class ShareControl:
    """Sets a pool's share before each step. Used by the decoding thread alone."""

    def __init__(self, pool: Any, config: ModelConfig, most: float) -> None:
        self._pool = pool
        self._config = config
        units = max(1, min(UNITS - 1, round(most * UNITS)))
        self._share = Share(units, units)
        self._bulk_s = 0.0

    def begin(self, answers: Sequence[tuple[float, float]], needed: float) -> None:
        """A step of these answers comes: each one's target, and how far it is ahead, in seconds.

        Prompts need so much of the workers' time, `needed`, to be read by their targets.
        """
        num_tiles = self._num_tiles(len(answers))
        self._share = share_for(self._share, num_tiles, min(step_target_s(*answer) for answer in answers))
        if needed + self._share.part > 1:
            least = share_for(self._share, num_tiles, min(pressed_target_s(*answer) for answer in answers))
            left = round(UNITS * (1 - needed))
            self._share = replace(self._share, units=min(self._share.units, max(least.units, left)))
        self._pool.share = self._share.part
        self._bulk_s = self._bulk_seconds()

    def end(self, num_sessions: int, seconds: float) -> None:
        """It took `seconds`."""
        bulk_s = (self._bulk_seconds() - self._bulk_s) / self._pool.num_workers
        self._share = after_step(self._share, self._num_tiles(num_sessions), seconds, bulk_s)

    def _num_tiles(self, num_sessions: int) -> float:
        """x: sum over experts of ceil(tokens / TILE_TOKENS); of a model without experts, tiles of all sessions."""
        if not self._config.num_moe_layers:
            return -(-num_sessions // TILE_TOKENS)
        return self._config.num_moe_layers * tiles(self._config, num_sessions, TILE_TOKENS)

    def _bulk_seconds(self) -> float:
        return sum(bulk_s for _, bulk_s in self._pool.counters().busy_s)
