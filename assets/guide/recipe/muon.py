"""Muon: momentum whose update is orthogonalised by Newton-Schulz iterations (K. Jordan, 2024), batched by shape."""

from collections import defaultdict

import torch
from torch import Tensor

# The quintic's coefficients from the reference implementation.
A, B, C = 3.4445, -4.7750, 2.0315


class Muon:
    """Updates matrices [out, in] and stacks of matrices [E, out, in]; every matrix is orthogonalised by itself."""

    def __init__(self, parameters: list[Tensor], momentum: float = 0.95, weight_decay: float = 0.02) -> None:
        self.parameters = parameters
        self.momentum, self.weight_decay = momentum, weight_decay
        self.velocity = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update with learning rate `rate`; afterwards the gradients are used up."""
        updates = self._nesterov()
        for indices in self._by_shape().values():
            stacked = torch.cat([as_stack(updates[index]) for index in indices])
            for index, update in zip(indices, orthogonal(stacked).split(self._counts(indices)), strict=True):
                self._apply(self.parameters[index], update, rate)

    def _nesterov(self) -> list[Tensor]:
        gradients = [parameter.grad for parameter in self.parameters]
        torch._foreach_lerp_(self.velocity, gradients, 1 - self.momentum)
        torch._foreach_lerp_(gradients, self.velocity, self.momentum)
        return gradients

    def _by_shape(self) -> dict[tuple[int, ...], list[int]]:
        groups = defaultdict(list)
        for index, parameter in enumerate(self.parameters):
            groups[tuple(parameter.shape[-2:])].append(index)
        return groups

    def _counts(self, indices: list[int]) -> list[int]:
        return [len(as_stack(self.parameters[index])) for index in indices]

    def _apply(self, parameter: Tensor, update: Tensor, rate: float) -> None:
        scale = 0.2 * max(parameter.shape[-2:]) ** 0.5  # about the size of an AdamW update
        parameter.mul_(1 - rate * self.weight_decay).add_(update.view_as(parameter), alpha=-rate * scale)

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"velocity": self.velocity}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        self.velocity = state["velocity"]


def as_stack(matrix: Tensor) -> Tensor:
    """A matrix as a stack of one; a stack as it is."""
    return matrix if matrix.dim() == 3 else matrix[None]


def orthogonal(stack: Tensor, iterations: int = 4) -> Tensor:
    """Roughly the nearest orthogonal matrix of each matrix in a stack; BF16 is precise enough."""
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack / (stack.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = (x.mT if tall else x).bfloat16().contiguous()
    for _ in range(iterations):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return (x.mT if tall else x).to(stack.dtype)
