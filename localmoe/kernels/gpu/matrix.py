"""Weights and activations as the kernels take them: tensors whose dtypes, sizes and strides are checked once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.launch import ceil_div
from localmoe.kernels.gpu.tiles import Form

BLOCK = 128  # rows and columns that share one FP8 scale; columns that share one of an activation
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Weights:
    """One matrix of each of G experts at a constant stride, row-major as in the checkpoint; G is 1 for a dense one.

    y[rows] = x[cols] @ weight.T, FP8 weights times the scale of their block of 128 x 128.
    """

    weight: Tensor  # [G, rows, cols]: float8_e4m3fn or bfloat16; only the first stride may be longer than packed
    scale: Tensor | None = None  # [G, ceil(rows / 128), ceil(cols / 128)] float32, likewise; only with FP8

    def __post_init__(self) -> None:
        assert self.weight.dim() == 3, f"weights are [G, rows, cols], not {tuple(self.weight.shape)}"
        assert self.weight.dtype in (FP8, torch.bfloat16), f"weights are FP8 E4M3 or BF16, not {self.weight.dtype}"
        check_packed(self.weight, "weights")
        assert (self.scale is not None) == (self.weight.dtype == FP8), "scales go with FP8 weights, and only with them"
        if self.scale is not None:
            count, rows, cols = self.weight.shape
            check(self.scale, "weight scales", (count, ceil_div(rows, BLOCK), ceil_div(cols, BLOCK)), torch.float32)
            check_packed(self.scale, "weight scales")

    @property
    def count(self) -> int:
        """G."""
        return self.weight.shape[0]

    @property
    def rows(self) -> int:
        """Of each matrix: outputs."""
        return self.weight.shape[1]

    @property
    def cols(self) -> int:
        """Of each matrix: inputs."""
        return self.weight.shape[2]

    def form(self, chip: Chip, quantised: bool) -> Form:
        """How they are multiplied: natively with quantised activations, else as BF16."""
        if self.scale is None:
            assert not quantised, "BF16 weights take BF16 activations"
            return "bf16"
        assert not quantised or chip.has_fp8, f"{chip.name} has no FP8 matrix units: give it BF16 activations"
        return "fp8" if quantised else "decoded"

    def operand(self, form: Form) -> Tensor:
        """What the kernel reads: bytes where it decodes them itself."""
        return self.weight.view(torch.uint8) if form == "decoded" else self.weight


def weights_in(slot: Tensor, offset: int, scale_offset: int | None, rows: int, cols: int) -> Weights:
    """A matrix of all experts in a slot [G, stride] uint8, at the same byte offset in each; None: BF16."""
    assert slot.dtype == torch.uint8 and slot.dim() == 2 and slot.stride(1) == 1, "a slot is [G, stride] bytes"
    size = rows * cols * (1 if scale_offset is not None else 2)
    weight = slot[:, offset : offset + size]
    if scale_offset is None:
        assert offset % 16 == 0 and slot.stride(0) % 16 == 0, "matrices in a slot start at multiples of 16 bytes"
        return Weights(weight.view(torch.bfloat16).unflatten(1, (rows, cols)))
    blocks = ceil_div(rows, BLOCK), ceil_div(cols, BLOCK)
    assert (offset | slot.stride(0)) % 16 == 0, "matrices in a slot start at multiples of 16 bytes"
    assert scale_offset % 4 == 0, "scales in a slot start at multiples of their size"
    scale = slot[:, scale_offset : scale_offset + 4 * blocks[0] * blocks[1]].view(torch.float32)
    return Weights(weight.view(FP8).unflatten(1, (rows, cols)), scale.unflatten(1, blocks))


@dataclass(frozen=True)
class Activations:
    """Rows of BF16, or of FP8 with one scale for each 128 columns."""

    values: Tensor  # [T, D]: bfloat16 or float8_e4m3fn
    scale: Tensor | None = None  # [T, ceil(D / 128)] float32, multiplied; only with FP8

    def __post_init__(self) -> None:
        assert self.values.dim() == 2, f"activations are [T, D], not {tuple(self.values.shape)}"
        assert len(self.values) > 0, "no activations"
        assert self.values.dtype in (FP8, torch.bfloat16), f"activations are FP8 or BF16, not {self.values.dtype}"
        assert self.values.stride(1) == 1, "activations lie row by row"
        assert (self.scale is not None) == (self.values.dtype == FP8), "scales go with FP8 activations only"
        if self.scale is not None:
            rows, cols = self.values.shape
            check(self.scale, "activation scales", (rows, ceil_div(cols, BLOCK)), torch.float32)
            check_packed(self.scale, "activation scales")

    @property
    def is_quantised(self) -> bool:
        """Whether they are FP8."""
        return self.scale is not None


def check(x: Tensor, what: str, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
    """Asserts a tensor's shape and dtype."""
    assert tuple(x.shape) == shape, f"{what}: shape {tuple(x.shape)}, expected {shape}"
    assert x.dtype in dtypes, f"{what}: {x.dtype}, expected {' or '.join(map(str, dtypes))}"


def check_packed(x: Tensor, what: str) -> None:
    """Asserts that all but the first axis lie packed, row-major."""
    packed = 1
    for size, stride in zip(x.shape[:0:-1], x.stride()[:0:-1], strict=True):
        assert size == 1 or stride == packed, f"{what}: strides {x.stride()} of {tuple(x.shape)} are not row-major"
        packed *= size
    assert len(x) <= 1 or x.stride(0) >= packed, f"{what}: rows overlap"


def check_together(*tensors: Tensor | None) -> None:
    """Asserts that all are on one device."""
    devices = {x.device for x in tensors if x is not None}
    assert len(devices) == 1, f"tensors on several devices: {sorted(map(str, devices))}"
