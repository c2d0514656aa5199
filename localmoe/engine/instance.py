"""A network with a loop of its own, asked with token ids: the engine without its text, for those who measure it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from localmoe.chat.message import Conversation, Message
from localmoe.engine.gpu_devices import CudaGpus
from localmoe.engine.job import DEFAULT_TARGETS, Job, Targets
from localmoe.engine.loop import Loop
from localmoe.engine.opening import CpuBackend, open_model
from localmoe.engine.request import Request, Sampling
from localmoe.engine.scheduler import MAX_BATCH
from localmoe.events import Channel
from localmoe.kernels.cpu import CpuProgram
from localmoe.kernels.ops import Program
from localmoe.model.decoder import decode
from localmoe.model.network import Network as CpuNetwork
from localmoe.model.network import new_flag, new_pool
from localmoe.settings import Origin, Settings

CONTEXT = 4096


class Silent:
    """A splitter without text."""

    num_thought_tokens = 0

    def feed(self, token_id: int) -> list[tuple[Channel, str]]:
        """Nothing is told."""
        return []

    def flush(self) -> list[tuple[Channel, str]]:
        """Nothing was kept."""
        return []


@dataclass(frozen=True)
class Ground:
    """An open network, and what it runs as."""

    network: CpuNetwork
    chunk: int
    context: int

    @property
    def pool(self) -> Any:
        """The workers."""
        return self.network.pool

    def program(self, max_tokens: int, cpus: list[int] | None = None) -> Program:
        """The whole network, on workers of its own where `cpus` are given."""
        network = self.network
        if cpus is None:
            return network.program(max_tokens)
        return CpuProgram(
            lambda ops: decode(ops, network.model, network.cache), max_tokens, new_pool(cpus), network.isa
        )


@contextmanager
def opened(settings: Settings, model: str) -> Iterator[Ground]:
    """`model`, all of it on the CPU."""
    origins: dict[str, Origin] = {**settings.origins, "context": "flag", "plan": "flag"}
    asked = replace(settings, model=model, context=CONTEXT, plan="cpu", origins=origins)
    found = open_model(model, asked, lambda event: None, lambda: False, CpuBackend(), CudaGpus())
    network = found.network
    assert isinstance(network, CpuNetwork)
    try:
        yield Ground(network, found.plan.chunk, found.plan.context_limit)
    finally:
        network.close()


class Instance:
    """A loop, and the jobs that it is given. `options` are Loop's."""

    def __init__(
        self,
        ground: Ground,
        programs: tuple[Program, Program] | None = None,
        passing_tokens: int = 0,
        **options: Any,
    ) -> None:
        network = ground.network
        self.prefill, self.decode = programs or (network.program(ground.chunk), network.program(MAX_BATCH))
        passing = network.passing(passing_tokens) if passing_tokens else None
        self._vocab = network.config.vocab
        self.loop = Loop.over(network.cache, self.prefill, self.decode, new_flag, ground.context, passing, **options)
        self._names = count()

    def ask(self, num_tokens: int, max_tokens: int, seed: int, targets: Targets = DEFAULT_TARGETS) -> Job:
        """A prompt of random tokens in a session of its own; the answer stops after `max_tokens` only."""
        prompt = np.random.default_rng(seed).integers(2, self._vocab, num_tokens).tolist()
        request = Request(
            Conversation((Message("user", "-"),)),
            Sampling(temperature=1.0, top_p=1.0, seed=seed),
            max_tokens,
            session=f"{next(self._names)}",
        )
        cancel = self.loop.cancel
        job = Job(
            request,
            prompt,
            Silent(),
            max_tokens=max_tokens,
            stop_ids=frozenset(),
            on_cancel=cancel,
            targets=targets,
        )
        self.loop.submit(job)
        return job

    def close(self) -> None:
        """Ends all jobs."""
        self.loop.close()
