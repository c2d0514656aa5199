"""A model that is ready to run on this machine's CPU: its weights, its latent cache, its step programs."""

import numpy as np

from localmoe import _native as native
from localmoe.errors import UsageError, VerificationError
from localmoe.hardware.placement import nodes_of
from localmoe.kernels.cpu import CpuOps, CpuProgram, Value
from localmoe.kernels.ops import CancelFlag, Linear
from localmoe.model.cache import CacheDtype, LatentCache
from localmoe.model.config import ModelConfig
from localmoe.model.decoder import decode, load_model
from localmoe.weights.store import Store

SELF_TEST_TOLERANCE = 1e-4  # relative; FP32 sums in another order differ by about 1e-6


def new_flag() -> CancelFlag:
    """A cancel flag in native memory."""
    flag: CancelFlag = native.Flag()
    return flag


def new_pool(cpus: list[int]) -> native.Pool:
    """One worker for each of `cpus` (-1: not pinned)."""
    return native.Pool(cpus)


def choose_target(isa: str | None) -> str:
    """The instruction-set target that `isa` selects (None: the best). UsageError when this CPU cannot run it."""
    try:
        return str(native.check_target(isa or ""))
    except ValueError as error:
        targets = ", ".join(native.supported_targets())
        raise UsageError(f"{error}.", f"this machine runs: {targets}") from error


class Network:
    """The model on the CPU. Programs made by `program` share the weights, the cache and the worker pool.

    They may run at the same time: weights are only read, each program has buffers and scratch of its own, the pool
    takes jobs from several threads, and each session writes to pages of its own.
    """

    runs_together = True

    def __init__(self, config: ModelConfig, store: Store, cache: LatentCache, cpus: list[int], isa: str | None) -> None:
        self.config = config
        self.cache = cache
        self.isa = choose_target(isa)
        self._store = store
        self.model = load_model(config, store)
        self.pool = new_pool(cpus)
        self.worker_nodes = [store.nodes.index(n) if n in store.nodes else -1 for n in nodes_of(cpus)]

    @property
    def num_threads(self) -> int:
        """Workers of the pool."""
        return int(self.pool.num_workers)

    def program(self, max_tokens: int) -> CpuProgram:
        """The whole network, recorded for up to `max_tokens` tokens."""
        return self._program(max_tokens)

    def passing(self, max_tokens: int) -> CpuProgram:
        """As `program`: for prompts that are read while a longer one's run goes on, which waits for them."""
        return self._program(max_tokens, early=True)

    def _program(self, max_tokens: int, *, early: bool = False) -> CpuProgram:
        def network(ops: CpuOps) -> Value:
            return decode(ops, self.model, self.cache)

        return CpuProgram(network, max_tokens, self.pool, self.isa, self.worker_nodes, early=early)

    def self_test(self) -> None:
        """One expert (or dense layer) on the chosen target against the scalar one. VerificationError if they differ."""
        w = self._probe()
        x = np.random.default_rng(0).standard_normal((1, w.weight.shape[1])).astype(np.float32)
        mine, truth = (self._apply(w, x, target) for target in (self.isa, "scalar"))
        error = float(np.linalg.norm(mine - truth) / (np.linalg.norm(truth) + 1e-30))
        if not error <= SELF_TEST_TOLERANCE:
            raise VerificationError(
                f"the {self.isa} kernels differ from the scalar ones by {error:.1e} on this machine's CPU.",
                "run with LOCALMOE_ISA=scalar and report the CPU model that `localmoe doctor` shows",
            )

    def close(self) -> None:
        """Lets go of the weights."""
        self._store.close()

    def _probe(self) -> Linear:
        for n, layer in enumerate(self.model.layers):
            if layer.moe is not None and len(layer.moe.experts.parts[0].blob):
                return self._store.experts(f"model.layers.{n}.mlp.experts").expert(0)[0]
        first = self.model.layers[0]
        return first.ffn.gate if first.ffn else first.attention.out

    def _apply(self, w: Linear, x: np.ndarray, target: str) -> np.ndarray:
        def network(ops: CpuOps) -> Value:
            return ops.linear(ops.input(x), w)

        return CpuProgram(network, len(x), self.pool, target).apply(len(x))


def open_network(
    config: ModelConfig,
    store: Store,
    *,
    cpus: list[int],
    isa: str | None = None,
    cache_dtype: CacheDtype = "float32",
    num_pages: int,
) -> Network:
    """A network with an empty latent cache of `num_pages` pages and one worker for each of `cpus` (-1: not pinned)."""
    cache = LatentCache(config.num_layers, num_pages, config.latent_width, cache_dtype)
    return Network(config, store, cache, cpus, isa)
