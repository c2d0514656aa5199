"""The room that a program of a model from disk takes for experts: counted by the plan, allocated by disk_network."""

from dataclasses import dataclass

from localmoe.model.config import ModelConfig

NUM_GROUPS = 6  # about so many have slots: with two of three experts each, a disk stood still while a layer attended


@dataclass(frozen=True, slots=True)
class DiskSlots:
    """Of one program. `few`: tokens that read just the experts they chose, into slots of one expert each."""

    few: int
    num_slots: int
    group: int  # experts that longer runs compute together; 0: there are no longer runs
    num_groups: int  # that there is room for

    @property
    def num_experts(self) -> int:
        """Room in all."""
        return self.num_slots + self.num_groups * self.group


def disk_slots(config: ModelConfig, ring_slots: int, max_tokens: int) -> DiskSlots:
    """For runs of up to `max_tokens`: of the ring's experts those of one token for few of them, the rest for groups."""
    few = min(max_tokens, max(1, config.num_experts // (2 * config.top_k)))
    num_slots = max(1, min(config.top_k, ring_slots // 2))
    if max_tokens <= few:
        return DiskSlots(few, num_slots, 0, 0)
    in_groups = max(1, ring_slots - num_slots)
    group = max(1, in_groups // NUM_GROUPS)
    return DiskSlots(few, num_slots, group, max(2, in_groups // group))
