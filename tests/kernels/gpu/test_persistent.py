"""Products by programs that stay: equal to those of one program a tile, however often the programs leave."""

import threading
from dataclasses import fields

import pytest
import torch
from arrays import NEAR, error, floats, plain, quantised, randn
from test_experts import operands
from torch.nn import functional

from localmoe.kernels.gpu import experts
from localmoe.kernels.gpu import persistent as kernel
from localmoe.kernels.gpu.board import NEXT, OVER, URGENT_DONE, URGENT_END, URGENT_NEXT, Board, Job, job_of
from localmoe.kernels.gpu.persistent import drain, persistent, urgent_tickets
from localmoe.kernels.gpu.resident import Gpu

FORMS = ["fp8", "decoded", "bf16"]
SHAPE = (3, 90, 256, 128)  # experts, sorted rows, hidden, inter
ODD = (3, 40, 200, 72)
DECODE = (3, 9, 256, 128)
NUM_SMS = 5


class Products:
    """Gate and up, and down, of a mixture's experts over sorted rows."""

    def __init__(self, chip, form, shape, device):
        self.chip, self.form, self.shape, self.device = chip, form, shape, device
        self.matrices, weights, self.expert, self.offsets, tokens = operands(chip, form, shape, device)
        self.gate, self.up, self.down = weights
        self.tokens = tokens.to(device)
        make = quantised if form == "fp8" else plain
        self.x, self.x_values = make(randn(9, shape[2]), device)
        self.h, self.h_values = make(randn(shape[1], shape[3], seed=3), device)

    def out(self, kind):
        width = self.shape[3] if kind == "gate_up" else self.shape[2]
        return torch.full((self.shape[1], width), torch.nan, dtype=torch.bfloat16, device=self.device)

    def launch(self, kind, out, stays):
        if kind == "gate_up":
            return experts.gate_up(
                self.chip, self.x, self.tokens, self.offsets, self.gate, self.up, out, 16, stays=stays
            )
        return experts.down(self.chip, self.h, self.offsets, self.down, out, 16, stays=stays)

    def plain(self, kind):
        out = self.out(kind)
        self.launch(kind, out, stays=False).run()
        return out

    def job(self, kind, out, tickets, number):
        return job_of(self.launch(kind, out, stays=False), tickets, number)

    def truth(self, kind):
        if kind == "down":
            pairs = zip(self.expert, self.h_values, strict=True)
            return torch.stack([floats(self.matrices[e][2]) @ x for e, x in pairs])
        return torch.stack(
            [
                functional.silu(floats(self.matrices[e][0]) @ x) * (floats(self.matrices[e][1]) @ x)
                for e, x in zip(self.expert, self.x_values[self.tokens.long().cpu()], strict=True)
            ]
        )


def new_board(chip, device):
    words = [torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda") for _ in range(3)]
    return Board(Gpu(device, chip), *words)


def skip_without(chip, form):
    if form == "fp8" and not chip.has_fp8:
        pytest.skip(f"{chip.name} has no FP8 matrix units")


def settled(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["gate_up", "down"])
@pytest.mark.parametrize("shape", [SHAPE, ODD])
def test_tiles_are_those_of_the_plain_product(chip, form, kind, shape, device):
    skip_without(chip, form)
    products, board = Products(chip, form, shape, device), new_board(chip, device)
    out = products.out(kind)
    board.begin()
    persistent(products.launch(kind, out, stays=True), board, chip, NUM_SMS).run()
    board.tell()
    settled(device)
    assert board.is_over
    assert error(out, products.plain(kind)) <= 1e-3
    assert error(out, products.truth(kind)) <= NEAR


def leave_after(board, num_tiles, answered):
    """Somebody asks for the processors once so many tiles were taken: what is asked is the counter itself."""
    board.counters[2] = answered + num_tiles
    board.asked, board.passing = board.counters[NEXT : NEXT + 1], torch.zeros_like(board.counters[:1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1, 3])
def test_programs_leave_between_tiles_and_later_launches_go_on(chip, form, step, device):
    skip_without(chip, form)
    products, board = Products(chip, form, SHAPE, device), new_board(chip, device)
    out, launches = products.out("gate_up"), 0
    board.begin()
    leave_after(board, step - 1, 0)
    while not board.is_over:
        product = persistent(products.launch("gate_up", out, stays=True), board, chip, NUM_SMS)
        before = int(board.counters[NEXT])
        product.run()
        board.tell()
        settled(device)
        taken, launches = int(board.counters[NEXT]) - before, launches + 1
        assert taken >= 1 or board.is_over
        if device.type == "cpu":  # one program after the other: as many as were allowed
            assert taken == step or board.is_over
        board.answer(int(board.counters[NEXT]) + step - 1)
    assert launches > 1
    assert error(out, products.plain("gate_up")) <= 1e-3


@pytest.mark.parametrize("who", ["asked", "passing"])
def test_what_was_asked_before_the_launch_leaves_at_once_and_loses_nothing(chip, device, who):
    products, board = Products(chip, "bf16", SHAPE, device), new_board(chip, device)
    out = products.out("down")
    product = persistent(products.launch("down", out, stays=True), board, chip, NUM_SMS)
    board.begin()
    getattr(board, who).fill_(1)
    product.run()
    board.tell()
    settled(device)
    assert not board.is_over and int(board.counters[NEXT]) == 0 and torch.isnan(out).all()
    board.answer(1)
    product.run()
    product.run()  # a launch too many finds nothing to do
    board.tell()
    settled(device)
    assert board.is_over
    assert error(out, products.plain("down")) <= 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["gate_up", "down"])
@pytest.mark.parametrize("bulk", ["gate_up", pytest.param("down", marks=pytest.mark.slow)])
def test_an_urgent_job_is_computed_between_bulk_tiles(chip, form, kind, bulk, device):
    skip_without(chip, form)
    products, urgent = Products(chip, form, SHAPE, device), Products(chip, form, DECODE, device)
    board, out, first = new_board(chip, device), products.out(bulk), urgent.out(kind)
    tickets = range(5, 5 + urgent_tickets(urgent.launch(kind, first, stays=False), chip))
    board.counters[[URGENT_NEXT, URGENT_END, URGENT_DONE]] = tickets.start  # as if jobs had come before
    board.publish(urgent.job(kind, first, tickets, 7))
    board.begin()
    persistent(products.launch(bulk, out, stays=True), board, chip, NUM_SMS, reserved=1, urgent_experts=4).run()
    settled(device)
    assert board.counters[[URGENT_NEXT, URGENT_END, URGENT_DONE]].tolist() == [tickets.stop] * 3
    assert int(board.finished[0]) == 7
    assert error(first, urgent.plain(kind)) <= 1e-3
    assert error(first, urgent.truth(kind)) <= NEAR
    assert error(out, products.plain(bulk)) <= 1e-3


def test_urgent_tiles_go_first_even_where_programs_are_to_leave(chip, device):
    products, urgent = Products(chip, "bf16", SHAPE, device), Products(chip, "bf16", DECODE, device)
    board, out, first = new_board(chip, device), products.out("down"), urgent.out("down")
    board.publish(urgent.job("down", first, range(urgent_tickets(urgent.launch("down", first, stays=False), chip)), 1))
    board.begin()
    board.asked.fill_(1)
    persistent(products.launch("down", out, stays=True), board, chip, NUM_SMS, reserved=1, urgent_experts=4).run()
    settled(device)
    assert int(board.finished[0]) == 1 and int(board.counters[NEXT]) == 0
    assert error(first, urgent.plain("down")) <= 1e-3


def test_programs_without_bulk_compute_what_is_urgent_and_end(chip, device):
    urgent, board = Products(chip, "bf16", DECODE, device), new_board(chip, device)
    out = urgent.out("gate_up")
    tickets = range(urgent_tickets(urgent.launch("gate_up", out, stays=False), chip))
    board.publish(urgent.job("gate_up", out, tickets, 3))
    drain(urgent.launch("gate_up", out, stays=True), board, chip, 2, 4).run()
    settled(device)
    assert int(board.finished[0]) == 3 and int(board.counters[OVER]) == 0
    assert error(out, urgent.plain("gate_up")) <= 1e-3


def test_requests_may_come_at_any_moment(chip, device):
    """Another thread asks while programs run: whatever they had done by then, the product is whole in the end."""
    products, board = Products(chip, "bf16", SHAPE, device), new_board(chip, device)
    out, over = products.out("gate_up"), threading.Event()

    def ask():
        while not over.wait(2e-3):
            board.asked += 1

    asker = threading.Thread(target=ask)
    asker.start()
    board.begin()
    try:
        for _ in range(10_000):
            board.answer(int(board.asked[0]))
            persistent(products.launch("gate_up", out, stays=True), board, chip, NUM_SMS).run()
            board.tell()
            settled(device)
            if board.is_over:
                break
    finally:
        over.set()
        asker.join()
    assert board.is_over
    assert error(out, products.plain("gate_up")) <= 1e-3


def test_jobs_that_the_kernel_cannot_take_are_refused(chip, device):
    odd, board = Products(chip, "bf16", ODD, device), new_board(chip, device)
    out = odd.out("down")
    with pytest.raises(AssertionError, match="columns of urgent jobs are a multiple of 128, not 72"):
        odd.job("down", out, range(1), 1)
    with pytest.raises(AssertionError, match="urgent jobs have columns that 128 divides"):
        persistent(odd.launch("down", out, stays=True), board, chip, NUM_SMS, urgent_experts=3)
    with pytest.raises(AssertionError, match="5 of 5 processors are reserved"):
        persistent(odd.launch("down", out, stays=True), board, chip, NUM_SMS, reserved=5)


def test_the_kernel_reads_a_jobs_fields_where_they_lie(device):
    places = [getattr(kernel, f"_{field.name.upper()}").value for field in fields(Job)]
    assert places == list(range(len(places)))
