"""A prompt whose experts the CPU computes beside a device, for those who measure what crosses between them."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from localmoe import _native as native
from localmoe.devices.device import Device
from localmoe.devices.host import HostDevice
from localmoe.hardware.placement import worker_cpus
from localmoe.hub.checkpoint import Checkpoint
from localmoe.kernels.ops import PAGE_TOKENS, Segment
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig, read_config
from localmoe.model.decoder import load_model
from localmoe.model.network import choose_target
from localmoe.model.programs import HostPrograms, Programs
from localmoe.model.tensors import expected_tensors
from localmoe.prefill.early import NUM_TILES, hidden_share
from localmoe.prefill.mixed import Mixed
from localmoe.weights.load import load

SPARE_BYTES = 1 << 20  # of a host device, whose programs have their memory elsewhere


class EarlyTrial:
    """A model on `device`, by `programs`, with all routed experts on the CPU. The device is closed with it."""

    def __init__(
        self,
        config: ModelConfig,
        cache: LatentCache,
        device: Device,
        programs: Programs,
        host: HostPrograms,
        max_tokens: int,
        num_tiles: int = NUM_TILES,
    ) -> None:
        self._config, self._cache = config, cache
        self._open = ExitStack()
        self._open.callback(device.close)
        self._program = Mixed(config, device, programs, host, max_tokens, None, num_tiles=num_tiles)
        self._open.callback(self._program.close)

    def hidden(self, num_tokens: int) -> float:
        """Of the bytes that cross for a prompt of that many random tokens, the share that does so under attention."""
        ids = np.random.default_rng(num_tokens).integers(0, self._config.vocab, num_tokens).astype(np.int32)
        table = self._cache.new_table()
        table.reserve(num_tokens)
        seen = self._program.recorded.added_from(0)[1]
        try:
            self._program.forward(ids, [Segment(table, 0, num_tokens)])
        finally:
            table.rewind(0)
        return hidden_share(self._program.recorded.added_from(seen)[0])

    def close(self) -> None:
        """Gives everything back but the model."""
        self._open.close()


class ResidentModel:
    """A checkpoint that lies in memory whole. Raises OutOfMemoryError where that has no room."""

    def __init__(self, folder: Path, num_threads: int, isa: str | None, max_tokens: int) -> None:
        checkpoint = Checkpoint.open(folder)
        self.config = read_config(checkpoint.config)
        self.isa = choose_target(isa)
        specs = expected_tensors(self.config)
        checkpoint.validate(specs)
        self._max_tokens = max_tokens
        self._store = load(checkpoint, specs)
        self._model = load_model(self.config, self._store)
        c = self.config
        self._cache = LatentCache(c.num_layers, -(-max_tokens // PAGE_TOKENS), c.latent_width)
        pool = native.Pool(worker_cpus(num_threads))
        self._programs = HostPrograms(self._model, self._cache, pool, self.isa)

    def trial(self, num_tiles: int = NUM_TILES) -> EarlyTrial:
        """On a host device, whose rows are copied as a GPU's are."""
        device = HostDevice(SPARE_BYTES)
        own = self._programs
        return EarlyTrial(self.config, self._cache, device, own, own, self._max_tokens, num_tiles)

    def close(self) -> None:
        """Lets go of the weights."""
        self._store.close()
