"""What a step's kernels wait for where a prompt's product runs: programs that leave, beside priorities of streams.

Not proven on hardware: it was written without a GPU.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median

import torch

from localmoe.devices.cuda import CudaDevice
from localmoe.devices.device import Stream
from localmoe.devices.turns import Askers, Turns
from localmoe.errors import CancelledError
from localmoe.kernels.gpu import v3
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.gpu.residents import Residents
from localmoe.kernels.gpu.tiles import Form
from localmoe.kernels.gpu.timed import on_device

LAYER_KERNELS = 20  # of a step's layer, without its routed experts
NUM_STEPS, WARM_STEPS = 40, 5
NUM_PRODUCTS = 7
PAUSE_S = 2e-3  # between two steps: the prompt has the GPU again
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Waits:
    """Seconds that a layer's kernels took longer than alone: half of them less, and the longest."""

    median_s: float
    most_s: float


@dataclass(frozen=True)
class Preempted:
    """`tile_s`: the least that a tile takes at the data sheet's rates, which bounds what is to be waited for.

    `plain_s` and `resident_s`: of the prompt's product alone, one program a tile and by programs that stay.
    """

    leaving: Waits
    priorities: Waits
    tile_s: float
    plain_s: float
    resident_s: float


@dataclass(frozen=True)
class Work:
    """A step's kernel, and a prompt's product in both forms."""

    step: Launch
    plain: Launch
    resident: Launch


def preempted(device: CudaDevice) -> Preempted:
    """Measures both beside the gate and up product of many tokens at DeepSeek-V3's shapes."""
    name, gpu = torch.device(device.torch_name), Gpu.of(device.torch_name)
    form: Form = "fp8" if gpu.chip.has_fp8 else "decoded"
    cases = {case.name: case for case in v3.cases()}
    products = (v3.gate_up_case(form, stays=stays)(gpu.chip) for stays in (False, True))
    work = Work(*(on_device(launch, name) for launch in (cases[f"linear-q_b-{form}-1"].launch(gpu.chip), *products)))
    tile_s = cases[f"persistent_gate_up-{form}-{v3.MANY}"].tile_s(gpu.chip)
    assert tile_s is not None
    return measured(device, gpu, work, tile_s)


def measured(device: CudaDevice, gpu: Gpu, work: Work, tile_s: float) -> Preempted:
    """Steps alone, then beside the product without end, once in each form."""
    askers, steps, prompt = Askers.on(device), device.new_stream("steps", urgency="urgent"), device.new_stream("prompt")
    residents = Residents(gpu, askers)

    def stay(look: Callable[[], None]) -> None:
        residents.run(work.resident, look)

    alone_s = median(_steps(device, steps, work.step, None))
    with _endless(device, prompt, lambda look: work.plain.run()):
        first = _waits(_steps(device, steps, work.step, None), alone_s)
    with _endless(device, prompt, stay):
        leaving = _waits(_steps(device, steps, work.step, askers.steps), alone_s)
    plain_s = _product_s(device, prompt, work.plain.run)
    return Preempted(leaving, first, tile_s, plain_s, _product_s(device, prompt, lambda: stay(lambda: None)))


def _product_s(device: CudaDevice, stream: Stream, run: Callable[[], None]) -> float:
    """Of a product alone."""
    return median(_timed_s(device, stream, run) for _ in range(NUM_PRODUCTS))


def _timed_s(device: CudaDevice, stream: Stream, issue: Callable[[], None]) -> float:
    begun, ended = device.new_event(), device.new_event()
    stream.record(begun)
    stream.launch(issue)
    stream.record(ended)
    assert ended.wait(PATIENCE_S), "what was issued did not end"
    assert begun.reached_s is not None and ended.reached_s is not None
    return ended.reached_s - begun.reached_s


@contextmanager
def _endless(device: CudaDevice, stream: Stream, product: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """The product again and again on a stream of its own, meanwhile, two ahead; it is told how to look for the end."""
    over = threading.Event()

    def look() -> None:
        if over.is_set():
            raise CancelledError("Enough was measured.")

    def issue() -> None:
        with suppress(CancelledError):
            product(look)

    def work() -> None:
        ahead = [device.new_event(), device.new_event()]
        while not over.is_set():
            ahead[0].wait(PATIENCE_S)
            stream.launch(issue)
            stream.record(ahead[0])
            ahead.reverse()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        stream.reset()


def _steps(device: CudaDevice, stream: Stream, kernel: Launch, turns: Turns | None) -> list[float]:
    """Seconds from when a layer's kernels may begin to when they are through, one layer after the other."""
    return [_step_s(device, stream, kernel, turns) for _ in range(WARM_STEPS + NUM_STEPS)][WARM_STEPS:]


def _step_s(device: CudaDevice, stream: Stream, kernel: Launch, turns: Turns | None) -> float:
    begun, ended = device.new_event(), device.new_event()
    stream.record(begun)
    if turns:
        turns.take(stream)
    for _ in range(LAYER_KERNELS):
        stream.launch(kernel.run)
    stream.record(ended)
    if turns:
        turns.give(stream)
    assert ended.wait(PATIENCE_S), "a step did not end"
    assert begun.reached_s is not None and ended.reached_s is not None
    time.sleep(PAUSE_S)
    return ended.reached_s - begun.reached_s


def _waits(times: list[float], alone_s: float) -> Waits:
    return Waits(max(0.0, median(times) - alone_s), max(0.0, max(times) - alone_s))
