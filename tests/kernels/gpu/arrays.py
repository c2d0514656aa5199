"""Random operands for the kernels' tests, and how near a result must be."""

import numpy as np
import torch
from tiny import quantise

from localmoe.kernels.gpu.matrix import Activations, Weights, weights_in
from localmoe.kernels.reference import dequantised

NEAR = 5e-3  # relative, given the same activations
NEAR_FP32 = 4e-2  # relative, where the reference's activations are not quantised


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def error(ours: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative, in the norm of all elements."""
    ours, truth = ours.cpu().float(), truth.cpu().float()
    assert ours.shape == truth.shape
    assert torch.isfinite(ours).all()
    return float((ours - truth).norm() / truth.norm().clamp(min=1e-30))


class Matrix:
    def __init__(self, weight, scale=None):
        self.weight, self.scale = weight, scale


def slot_of(matrices: list[list[Matrix]], device: torch.device) -> list[Weights]:
    """Experts' matrices in one slot at a constant stride, each at a multiple of 256 bytes; [expert][matrix]."""
    places, size = [], 0
    for m in matrices[0]:
        offset, size = size, align(size + m.weight.nbytes)
        scale, size = (None, size) if m.scale is None else (size, align(size + m.scale.nbytes))
        places.append((offset, scale, *m.weight.shape))
    slot = torch.full((len(matrices), size + 256), 0xFF, dtype=torch.uint8)  # NaN codes where nothing lies
    for row, expert in zip(slot, matrices, strict=True):
        for m, (offset, scale, *_) in zip(expert, places, strict=True):
            row[offset : offset + m.weight.nbytes] = flat(m.weight)
            if scale is not None:
                row[scale : scale + m.scale.nbytes] = flat(m.scale)
    slot = slot.to(device)
    return [weights_in(slot, *place) for place in places]


def align(n: int) -> int:
    return -(-n // 256) * 256


def flat(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).reshape(-1).copy())


def matrix(rows: int, cols: int, fp8: bool, seed: int = 0) -> Matrix:
    weight = randn(rows, cols, seed=seed) / cols**0.5
    if not fp8:
        return Matrix(weight.bfloat16().view(torch.uint16).numpy())
    weight = weight * torch.exp(randn(rows, 1, seed=seed + 1))  # blocks have different scales
    return Matrix(*quantise(weight.numpy()))


def floats(m: Matrix) -> torch.Tensor:
    return dequantised(m)


def plain(x: torch.Tensor, device: torch.device) -> tuple[Activations, torch.Tensor]:
    """BF16 activations, and their exact values."""
    x = x.bfloat16()
    return Activations(x.to(device)), x.float()


def quantised(x: torch.Tensor, device: torch.device) -> tuple[Activations, torch.Tensor]:
    """FP8 activations made by torch, and their exact values."""
    rows, cols = x.shape
    padded = torch.nn.functional.pad(x, (0, -cols % 128)).view(rows, -1, 128)
    scale = (padded.abs().amax(-1) / 448).clamp(min=1e-12)
    codes = (padded / scale[..., None]).to(torch.float8_e4m3fn)
    values = (codes.float() * scale[..., None]).view(rows, -1)[:, :cols]
    codes = codes.view(torch.uint8).view(rows, -1)[:, :cols].contiguous().view(torch.float8_e4m3fn)
    return Activations(codes.to(device), scale.to(device)), values
