"""A prompt's product in turns with steps: while a step has the processors no program runs, and the product is whole."""

import threading
import time

import pytest
import torch
from arrays import NEAR, error
from networks import NUM_PAGES, SHAPE, Reference, Runner, network, parity
from test_persistent import DECODE, Products
from test_persistent import SHAPE as PRODUCT

from localmoe.devices.host import HostDevice
from localmoe.devices.turns import Askers
from localmoe.errors import CancelledError
from localmoe.kernels.gpu.board import job_of
from localmoe.kernels.gpu.chips import CHIPS
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.persistent import urgent_tickets
from localmoe.kernels.gpu.resident import Gpu
from localmoe.kernels.gpu.residents import Residents
from localmoe.kernels.ops import Segment


@pytest.fixture
def host():
    device = HostDevice(1 << 20)
    yield device
    device.close()


class Steps:
    """A stream that asks for the processors every now and then, and notes when it had them."""

    def __init__(self, host, turns):
        self.turns, self.stream, self.over = turns, host.new_stream("steps"), threading.Event()
        self.asks = threading.Thread(target=self._ask)

    def _ask(self):
        while not self.over.is_set():
            self.turns.take(self.stream)
            self.stream.launch(lambda: time.sleep(2e-3))
            self.turns.give(self.stream)
            time.sleep(0.05)

    def __enter__(self):
        self.asks.start()
        return self

    def __exit__(self, *args):
        self.over.set()
        self.asks.join()


def on(host, chip, device, urgent_experts=0):
    if device.type == "cuda":
        pytest.skip("the flags of a GPU are a CUDA device's: see tests/devices/test_cuda_for_real.py")
    askers = Askers.on(host)
    return askers, Residents(Gpu(device, chip), askers, reserved=2, urgent_experts=urgent_experts)


def test_a_product_is_whole_however_often_steps_come_between(chip, host, device):
    askers, residents = on(host, chip, device)
    products = Products(chip, "bf16", PRODUCT, device)
    truth, launches = products.plain("gate_up"), []
    with Steps(host, askers.steps):
        while len(launches) < 30 and max(launches, default=0) < 2:  # until one was left
            out = products.out("gate_up")
            residents.run(products.launch("gate_up", out, stays=True), lambda: None)
            launches.append(residents.launches)
            assert error(out, truth) <= 1e-3
    assert launches[-1] > 1


@pytest.mark.parametrize("who", ["steps", "passing"])
def test_nothing_is_launched_while_somebody_has_the_processors(chip, host, device, who):
    askers, residents = on(host, chip, device)
    turns = getattr(askers, who)
    products, stream, goes_on = Products(chip, "bf16", PRODUCT, device), host.new_stream("steps"), threading.Event()
    out = products.out("down")
    turns.take(stream)
    stream.launch(goes_on.wait)
    turns.give(stream)
    while turns.asked.value < 1:
        time.sleep(1e-3)
    run = threading.Thread(target=residents.run, args=(products.launch("down", out, stays=True), lambda: None))
    run.start()
    time.sleep(0.1)
    assert torch.isnan(out).all() and residents.launches == 0
    goes_on.set()
    run.join()
    assert error(out, products.plain("down")) <= 1e-3


def test_a_prompt_that_is_cancelled_does_not_wait_for_its_turn(chip, host, device):
    askers, residents = on(host, chip, device)
    turns = askers.steps
    products, stream = Products(chip, "bf16", PRODUCT, device), host.new_stream("steps")
    turns.take(stream)
    while turns.asked.value < 1:
        time.sleep(1e-3)

    def look():
        raise CancelledError("The run was cancelled.")

    with pytest.raises(CancelledError):
        residents.run(products.launch("down", products.out("down"), stays=True), look)
    turns.settle()  # as a step that was given up does
    residents.run(products.launch("down", products.out("down"), stays=True), lambda: None)
    assert residents.launches == 1


def test_a_whole_prompt_in_turns_says_what_one_alone_says(tmp_path_factory, monkeypatch, host, device):
    chip, num_tokens = CHIPS[120], 40
    askers, _ = on(host, chip, device)
    case = network(tmp_path_factory, "turns", **SHAPE)

    def forward(**more):
        cache = case.cache("bf16", NUM_PAGES)
        runner = Runner(case, cache, device, chip, num_tokens, **more)
        table = parity.reserved(cache.new_table(), num_tokens)
        return runner.forward(case.ids[:num_tokens], [Segment(table, 0, num_tokens)], all_logits=True, **chosen)

    chosen = {"forced_experts": Reference(case, is_exact=True)(case.ids[:num_tokens])[1]}
    alone = forward()
    kernels, run = [], Launch.run
    monkeypatch.setattr(Launch, "run", lambda self: (kernels.append(self.kernel.__name__), run(self)))
    with Steps(host, askers.steps), Steps(host, askers.passing):
        found = forward(askers=askers)
    assert "_persistent_kernel" in kernels and "_experts_kernel" not in kernels
    parity.assert_near(found, alone, NEAR)


@pytest.mark.parametrize("kind", ["gate_up", "down"])
def test_urgent_products_are_computed_with_and_without_a_prompt(chip, host, device, kind):
    """Alone, then one after the other while a prompt's product runs: all are whole, and in order."""
    askers, residents = on(host, chip, device, urgent_experts=4)
    products, steps = Products(chip, "bf16", PRODUCT, device), Products(chip, "bf16", DECODE, device)
    truth, out = steps.plain(kind), products.out("gate_up")

    def urge():
        found = steps.out(kind)
        residents.urge(steps.launch(kind, found, stays=True))
        assert error(found, truth) <= 1e-3

    urge()
    run = threading.Thread(target=residents.run, args=(products.launch("gate_up", out, stays=True), lambda: None))
    run.start()
    for _ in range(3):
        urge()
    run.join()
    assert askers.steps.has_queue and askers.steps.finished.value == 4
    assert error(out, products.plain("gate_up")) <= 1e-3


def test_a_prompts_programs_compute_a_steps_tiles(chip, host, device):
    """Published before the prompt's product begins, a step's product is done by its end."""
    askers, residents = on(host, chip, device, urgent_experts=4)
    products, steps = Products(chip, "bf16", PRODUCT, device), Products(chip, "bf16", DECODE, device)
    first, out = steps.out("down"), products.out("down")
    job = job_of(steps.launch("down", first, stays=True), range(steps_tickets(steps, first, chip)), 1)
    residents._board.publish(job)
    residents.run(products.launch("down", out, stays=True), lambda: None)
    assert askers.steps.finished.value == 1 and error(first, steps.plain("down")) <= 1e-3


def steps_tickets(steps, out, chip):
    return urgent_tickets(steps.launch("down", out, stays=True), chip)
