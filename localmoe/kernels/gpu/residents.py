"""Products of a prompt by programs that stay, launched until no tile is left: others take turns with them.

Not proven on hardware: it was written without a GPU.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from localmoe.devices.turns import Askers
from localmoe.kernels.gpu.board import Board, job_of
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.persistent import drain, persistent, urgent_tickets
from localmoe.kernels.gpu.resident import Gpu

LOOK_S = 0.02  # how often whoever waits for a turn looks whether it is wanted still
SLEEP_S = 20e-6  # between looks at programs that run


@dataclass
class Residents:
    """On `gpu`, but for `reserved` of its multiprocessors. `askers` want them all now and then.

    Between two tiles they take those of urgent products too, of up to `urgent_experts` experts; 0: none comes.
    `launches` counts those of the last product: more than one where it was left.
    """

    gpu: Gpu
    askers: Askers
    reserved: int = 0
    urgent_experts: int = 0
    launches: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert self.reserved or not self.urgent_experts, "no multiprocessor is kept for urgent products"
        steps, passing = self.askers.steps, self.askers.passing
        words = (torch.from_numpy(flag.memory) for flag in (steps.asked, passing.asked, steps.finished))
        self._board = Board(self.gpu, *words)
        steps.has_queue = self.urgent_experts > 0
        self._is_running = False
        self._num_jobs = self._num_tickets = 0
        self._event = torch.cuda.Event() if self.gpu.is_cuda else None

    def run(self, product: Launch, look: Callable[[], None]) -> None:
        """Launches it on the current stream until it is whole, and waits for that; `look` raises what is to end it."""
        launch = persistent(
            product,
            self._board,
            self.gpu.chip,
            self.gpu.num_sms,
            reserved=self.reserved,
            urgent_experts=self.urgent_experts,
        )
        self._board.begin()
        self.launches, self._is_running = 0, True
        try:
            while not self._launched(launch, look):  # whatever the board told before
                pass
        finally:
            self._is_running = False

    def _launched(self, launch: Launch, look: Callable[[], None]) -> bool:
        """Once more; whether the product is whole."""
        self._wait_for_turn(look)
        launch.run()
        self.launches += 1
        self._board.tell()
        self._settle(look)
        return self._board.is_over

    def urge(self, product: Launch) -> None:
        """Issues a step's product to the current stream, and that this waits for it.

        Programs that stay compute it between tiles of theirs, beside a few on what is reserved; where no prompt is
        being computed, there are as many as the GPU has multiprocessors. One stream has urgent products.
        """
        self._num_jobs += 1
        tickets = range(self._num_tickets, self._num_tickets + urgent_tickets(product, self.gpu.chip))
        self._num_tickets = tickets.stop
        self._board.publish(job_of(product, tickets, self._num_jobs))
        programs = max(1, self.reserved) if self._is_running else self.gpu.num_sms
        drain(product, self._board, self.gpu.chip, min(programs, len(tickets)), self.urgent_experts).run()
        self.askers.steps.wait_finished(self._num_jobs)

    def _wait_for_turn(self, look: Callable[[], None]) -> None:
        """What was asked for so far is given back; what is asked from here on lets programs leave at once."""
        requests = self.askers.requests
        look()
        while not self.askers.wait(requests, LOOK_S):
            look()
        self._board.answer(sum(requests))

    def _settle(self, look: Callable[[], None]) -> None:
        if self._event is None:
            return
        self._event.record()
        while not self._event.query():
            look()
            time.sleep(SLEEP_S)
