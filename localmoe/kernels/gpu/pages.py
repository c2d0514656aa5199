"""Pages of the latent cache on a GPU: BF16, under the numbers that the cache in the system's memory gives out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.ops import PAGE_TOKENS


@dataclass(frozen=True)
class DevicePages:
    """One layer's, as ops.LayerCache; a tensor where the host's dialects have an array."""

    data: Tensor  # [pages, PAGE_TOKENS, width] bfloat16


class Pages:
    """All layers'. What is copied within runs beside the streams, and is over when the call returns."""

    def __init__(self, gpu: Gpu, num_layers: int, num_pages: int, width: int) -> None:
        self._gpu = gpu
        self._data = gpu.empty((num_layers, num_pages, PAGE_TOKENS, width), torch.bfloat16)
        self._data.zero_()
        self._copies = torch.cuda.Stream(gpu.device) if gpu.is_cuda else None
        if gpu.is_cuda:
            torch.cuda.synchronize(gpu.device)

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self._data.nbytes

    def layer(self, n: int) -> DevicePages:
        """Layer n's part of every page."""
        return DevicePages(self._data[n])

    def rows(self, n: int) -> Tensor:
        """[pages * PAGE_TOKENS, row bytes] uint8 of layer n."""
        return self._data[n].flatten(0, 1).view(torch.uint8)

    def copy(self, source: int, target: int) -> None:
        """All layers' rows of page `source`."""
        if self._copies is None:
            self._data[:, target] = self._data[:, source]
            return
        with torch.cuda.stream(self._copies):
            self._data[:, target] = self._data[:, source]
        self._copies.synchronize()
