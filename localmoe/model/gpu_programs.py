"""The programs of one GPU. To be imported where a plan has GPUs only: torch comes with it."""

from collections.abc import Callable

from localmoe.devices.turns import Askers
from localmoe.kernels.gpu.board import UNIT
from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.graphs import cuda_graphs
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.ops import GpuOps
from localmoe.kernels.gpu.pages import Pages
from localmoe.kernels.gpu.program import MOST_REPEATED, GpuProgram
from localmoe.kernels.gpu.resident import Gpu, Resident
from localmoe.kernels.gpu.residents import Residents
from localmoe.kernels.recording import Value
from localmoe.model.cache import LatentCache
from localmoe.model.decoder import Model, decode
from localmoe.model.mirror import Mirror
from localmoe.model.programs import record_mixtures, record_own

ROWS_TOGETHER = 8  # in which outputs of urgent products begin: 16 bytes
RESERVED_SMS = 2  # for small kernels of steps and copies between: they need not ask


class GpuPrograms:
    """model.programs.Programs on `device`, by torch's name: "cuda:0". They share its weights and its latents.

    Sessions' page tables are those of `cache`. `chip` is what the device is taken for; None: what it is.
    `askers`: those whom what computes a whole prompt leaves the GPU to; None: only the streams' priorities part them.
    Raises OutOfMemoryError, and NotReadyError for a GPU that the kernels do not know.
    """

    def __init__(
        self, model: Model, cache: LatentCache, device: str, chip: Chip | None = None, askers: Askers | None = None
    ) -> None:
        self._model = model
        self._num_pages = cache.num_pages
        self._gpu = Gpu.of(device, chip)
        self._weights = Resident(self._gpu)
        self._residents = None if askers is None else Residents(self._gpu, askers, RESERVED_SMS, _urgent_experts(model))
        self._pages = Pages(self._gpu, cache.num_layers, cache.num_pages, cache.width)
        self.latents = Mirror(cache, self._pages)

    @property
    def nbytes(self) -> int:
        """Weights and latents on the device, beside the programs' own memory."""
        return self._weights.nbytes + self._pages.nbytes

    def whole(self, max_tokens: int) -> GpuProgram:
        """As Programs says."""
        ops = self._ops(max_tokens)
        stay = self._residents.run if self._residents and max_tokens > MOST_REPEATED else None
        return self._program(ops, decode(ops, self._model, self.latents), self.latents, stay)

    def own(self, max_tokens: int) -> GpuProgram:
        """As Programs says."""
        ops = self._ops(max_tokens)
        return self._program(ops, record_own(ops, self._model, self.latents), self.latents)

    def mixtures(self, max_tokens: int) -> GpuProgram:
        """As Programs says."""
        ops = self._ops(max_tokens)
        record_mixtures(ops, self._model)
        is_urgent = self._residents and self._residents.urgent_experts and max_tokens <= MOST_REPEATED
        return self._program(ops, None, None, self._urge if is_urgent else None)

    def _urge(self, product: Launch, look: Callable[[], None]) -> None:
        """A step's product: what ends the step is looked at before it is issued."""
        assert self._residents is not None
        look()
        self._residents.urge(product)

    def _ops(self, max_tokens: int) -> GpuOps:
        return GpuOps(self._gpu.chip, max_tokens)

    def _program(
        self,
        ops: GpuOps,
        output: Value | None,
        writes: Mirror | None,
        stay: Callable[[Launch, Callable[[], None]], None] | None = None,
    ) -> GpuProgram:
        on_begin = None if writes is None else lambda tokens: writes.hold(tokens.segments)
        graphs = cuda_graphs() if self._gpu.is_cuda else None
        return GpuProgram(ops, output, self._weights, self._num_pages, on_begin, graphs, stay)


def _urgent_experts(model: Model) -> int:
    """The most that an urgent product has; 0 where the sizes are none that those take: steps then ask for the GPU."""
    parts = [part for layer in model.layers if layer.moe for part in layer.moe.experts.parts]
    fits = all(part.gate.cols % UNIT == part.down.cols % UNIT == 0 for part in parts)
    begins = all(place.first_row % ROWS_TOGETHER == 0 for part in parts for place in (part.gate, part.down))
    return model.config.num_experts if parts and fits and begins else 0
