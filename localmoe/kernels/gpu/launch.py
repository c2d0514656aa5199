"""A kernel with everything it is launched with, so that what runs is what is compiled ahead of time and looked at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Argument = Tensor | int | float | None


@dataclass(frozen=True)
class Launch:
    """One launch. Tensors on the meta device stand for themselves where it is only compiled."""

    kernel: Any  # what triton.jit made
    grid: tuple[int, ...]
    args: Mapping[str, Argument]
    constants: Mapping[str, Any]  # what the kernel is compiled for
    num_warps: int
    num_stages: int

    def run(self) -> None:
        """Launches on the current stream of the current device."""
        self.kernel[self.grid](
            **self.args,
            **self.constants,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            enable_fp_fusion=True,
        )


def ceil_div(a: int, b: int) -> int:
    """ceil(a / b)."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
