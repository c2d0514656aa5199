"""A GPU as programs know it, and the weights that rest on it: uploaded once, as they are, for all programs."""

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from localmoe.errors import OutOfMemoryError
from localmoe.kernels.gpu.chips import Chip, chip_of
from localmoe.kernels.gpu.matrix import FP8, Weights
from localmoe.kernels.ops import Linear


@dataclass(frozen=True)
class Gpu:
    """A torch device, and the chip that it is: on the CPU, in Triton's interpreter, the one to stand for."""

    device: torch.device
    chip: Chip

    @classmethod
    def of(cls, device: str, chip: Chip | None = None) -> "Gpu":
        """By torch's name, such as "cuda:0"."""
        found = torch.device(device)
        return cls(found, chip or chip_of(found))

    @property
    def is_cuda(self) -> bool:
        """Whether it is one at all."""
        return self.device.type == "cuda"

    @property
    def num_sms(self) -> int:
        """Its multiprocessors."""
        if not self.is_cuda:
            return self.chip.num_sms
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the device. OutOfMemoryError when it has less."""
        try:
            return torch.empty(shape, dtype=dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"GPU {self.device} has no memory left: {error}.", "close what else uses it, or read shorter chunks."
            ) from error

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the system that copies to and from the device run from by themselves."""
        return torch.empty(shape, dtype=dtype, pin_memory=self.is_cuda)


class Resident:
    """Dense weights on one GPU. Whatever was uploaded stays, for all who ask for it again."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.nbytes = 0
        self._matrices: dict[int, tuple[NDArray[Any], Weights]] = {}  # by address; the source is kept with it
        self._vectors: dict[int, tuple[NDArray[Any], Tensor]] = {}

    def matrix(self, w: Linear) -> Weights:
        """FP8 with its scales, or BF16; float32, which some checkpoints have for what is never quantised, as BF16."""
        key = w.weight.ctypes.data
        if key not in self._matrices:
            weight = self._upload(w.weight)[None]
            if w.scale is not None:
                found = Weights(weight.view(FP8), self._upload(w.scale)[None])
            else:
                found = Weights(weight.bfloat16() if weight.dtype == torch.float32 else weight.view(torch.bfloat16))
            self._matrices[key] = w.weight, found
            self.nbytes += sum(t.nbytes for t in (found.weight, found.scale) if t is not None)
        return self._matrices[key][1]

    def vector(self, v: NDArray[Any]) -> Tensor:
        """[n] float32 or int32."""
        key = v.ctypes.data
        if key not in self._vectors:
            self._vectors[key] = v, self._upload(v)
            self.nbytes += v.nbytes
        return self._vectors[key][1]

    def _upload(self, array: NDArray[Any]) -> Tensor:
        source = torch.from_numpy(array if array.flags.writeable else array.copy())
        target = self.gpu.empty(tuple(source.shape), source.dtype)
        target.copy_(source)
        return target
