"""The engine on the reference dialect: slow, plain, true."""

import threading

from localmoe.engine.plan import Plan
from localmoe.kernels.reference import ReferenceProgram
from localmoe.model.cache import LatentCache
from localmoe.model.config import ModelConfig
from localmoe.model.decoder import decode, load_model
from localmoe.weights.store import Store


class Flag:
    """A CancelFlag in Python."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set, self.is_set, self.clear = self._event.set, self._event.is_set, self._event.clear


class ReferenceNetwork:
    isa = "reference"
    num_threads = 1
    runs_together = True  # programs are eager and share nothing but weights and cache

    def __init__(self, config: ModelConfig, store: Store, plan: Plan) -> None:
        self.config = config
        dtype = "bf16" if plan.cache_dtype == "bf16" else "float32"
        self.cache = LatentCache(config.num_layers, plan.num_pages, config.latent_width, dtype)
        self.tested = self.closed = False
        self._model = load_model(config, store)

    def program(self, max_tokens: int) -> ReferenceProgram:
        return ReferenceProgram(lambda ops: decode(ops, self._model, self.cache), max_tokens)

    passing = program

    def self_test(self) -> None:
        self.tested = True

    def close(self) -> None:
        self.closed = True


class ReferenceBackend:
    def choose_isa(self, isa: str | None) -> str:
        return isa or "reference"

    def open(self, config: ModelConfig, store: Store, plan: Plan) -> ReferenceNetwork:
        return ReferenceNetwork(config, store, plan)

    def new_flag(self) -> Flag:
        return Flag()
