"""When a batch goes through a step as two that alternate: one is attended to while the other's experts are computed."""

from dataclasses import dataclass, field

LEAST_GAIN = 0.05  # of a layer's time: less is within what steps differ by


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer of a step, in which a device and the CPU take turns."""

    device_s: float  # while the CPU waits
    cpu_s: float  # while the device waits, or computes shared and hot experts


def alternation_pays(whole: LayerTimes, half: LayerTimes) -> bool:
    """Whether two batches of half the sessions, in alternation, take less time for a layer than one of all.

    One batch leaves the CPU idle while the device computes, and the other way round. Of two, each side computes one
    half while the other side has the other, so the slower side decides; but halves read nearly as many weights.
    """
    alternating_s = 2 * max(half.device_s, half.cpu_s)
    return alternating_s < (1 - LEAST_GAIN) * (whole.device_s + whole.cpu_s)


@dataclass
class Measured:
    """Decides by what steps have taken: a batch alternates once it, and one of half its tokens, were run as one."""

    times: dict[int, LayerTimes] = field(default_factory=dict)  # by the number of tokens

    def add(self, num_tokens: int, times: LayerTimes) -> None:
        """Of a step as one batch; the latest counts."""
        self.times[num_tokens] = times

    def pays(self, num_tokens: int) -> bool:
        """False where nothing tells."""
        whole, half = self.times.get(num_tokens), self.times.get(-(-num_tokens // 2))
        return whole is not None and half is not None and alternation_pays(whole, half)
