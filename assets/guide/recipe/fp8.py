"""The checkpoint's number formats: FP8 E4M3 in 128x128 blocks with one FP32 scale each, BF16 for the rest."""

import torch
import torch.nn.functional as F
from network import Guide, Mixture
from torch import Tensor, nn

BLOCK = 128
LARGEST = 448.0  # of E4M3


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as FP8 codes and the scales to multiply them with, one per block; edge blocks may be partial."""
    rows, columns = weight.shape
    blocks = _blocks(weight)
    scales = (blocks.abs().amax((1, 3)) / LARGEST).clamp_min(1e-12)
    codes = (blocks / scales[:, None, :, None]).clamp(-LARGEST, LARGEST).flatten(0, 1).flatten(1)
    return codes[:rows, :columns].contiguous().to(torch.float8_e4m3fn), scales


def _blocks(weight: Tensor) -> Tensor:
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    padding = (0, columns * BLOCK - weight.shape[1], 0, rows * BLOCK - weight.shape[0])
    return F.pad(weight.float(), padding).view(rows, BLOCK, columns, BLOCK)


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """The FP32 matrix that FP8 codes and block scales stand for."""
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return codes.float() * wide[: codes.shape[0], : codes.shape[1]]


def as_stored(weight: Tensor) -> Tensor:
    """The values that a matrix has once it is stored as FP8."""
    return dequantise(*quantise(weight))


def quantised_matrices(model: Guide) -> dict[str, Tensor]:
    """The weights that are stored as FP8, by their Hugging Face name; experts are views into the stacks."""
    matrices = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            matrices[f"model.{name}.weight"] = module.weight
        if isinstance(module, Mixture):
            matrices |= _expert_matrices(f"model.{name}.experts", module)
    return matrices


def _expert_matrices(prefix: str, mixture: Mixture) -> dict[str, Tensor]:
    matrices = {}
    for index, (gate_up, down) in enumerate(zip(mixture.gate_up, mixture.down, strict=True)):
        gate, up = gate_up.chunk(2)
        for name, matrix in (("gate", gate), ("up", up), ("down", down)):
            matrices[f"{prefix}.{index}.{name}_proj.weight"] = matrix
    return matrices


def plain_tensors(model: Guide) -> dict[str, Tensor]:
    """The weights that are stored as BF16: embeddings, head, norms and router gates."""
    stacked = ("gate_up", "down")
    names = dict(model.named_parameters())
    quantised = {id(parameter) for parameter in _linear_weights(model)}
    kept = {n: p for n, p in names.items() if id(p) not in quantised and not n.endswith(stacked)}
    return {n if n.startswith("lm_head") else f"model.{n}": p for n, p in kept.items()}


def _linear_weights(model: Guide) -> list[Tensor]:
    return [m.weight for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]


@torch.no_grad()
def round_to_stored(model: Guide) -> None:
    """Give every weight, in place, the value that the exported checkpoint holds."""
    for matrix in quantised_matrices(model).values():
        matrix.data.copy_(as_stored(matrix.data))
    for tensor in plain_tensors(model).values():
        tensor.data.copy_(tensor.data.bfloat16().float())
