"""Programs that stay, urgent jobs and requests to leave, in every order: each tile once, no wait beyond one tile."""

import pytest
from turns_model import BULK, END, LOOK, OVER, TAKE, URGENT, BrokenError, Case, Machine, Program, check, start

CASES = [
    Case(1, 0, ()),
    Case(1, 3, ("leave",)),
    Case(2, 3, ("leave",)),
    Case(2, 2, ("leave", "leave")),
    Case(3, 3, ("leave",)),
    Case(1, 2, (2,)),
    Case(2, 2, (2,)),
    Case(1, 1, (1, 1)),
    Case(1, 2, (1, "leave", 1)),
    Case(2, 1, ("leave", 1)),
    Case(2, 1, (1, "leave")),
    Case(1, 2, ("leave",), 1),
    Case(1, 2, (1,), 1),
    Case(1, 2, (), 2),
    Case(2, 1, ("leave",), 1),
]
LARGE = [
    Case(2, 2, (1, 1)),
    Case(2, 3, (2, "leave")),
    Case(2, 2, ("leave", 2, "leave")),
    Case(3, 4, ("leave", "leave")),
    Case(3, 2, (2,)),
    Case(2, 2, ("leave", 1), 1),
    Case(2, 2, ("leave",), 2),
]


def name(case):
    passing = f"-passing{case.num_passing}" if case.num_passing else ""
    return f"{case.num_programs}x{case.num_tiles}-{'-'.join(map(str, case.script)) or 'alone'}{passing}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_order_of_steps_computes_each_tile_once_and_ends(case):
    assert check(Machine(case)) > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", LARGE, ids=name)
def test_every_order_of_more_steps(case):
    assert check(Machine(case)) > 1


class TakesTickets(Machine):
    """Urgent tickets by an atomic addition, as bulk tiles: one behind the last is lost to a later job."""

    def claim(self, w, p):
        ticket = w.urgent_next
        taken = w._replace(urgent_next=ticket + 1)
        return taken, p._replace(at=URGENT, tile=ticket) if ticket < w.urgent_end else self.again(p)


class LooksLate(Machine):
    """A program that leaves with a tile that it has taken."""

    def compute_bulk(self, w, p):
        return (w, p._replace(at=END)) if w.asked > w.answered else super().compute_bulk(w, p)


class LooksRarely(Machine):
    """Two bulk tiles for each look."""

    def compute_bulk(self, w, p):
        world, program = super().compute_bulk(w, p)
        return world, program._replace(at=TAKE) if p.tile % 2 == 0 else program


class ForgetsWhoAsked(Machine):
    """A launch that takes every request as answered, those that come before it begins too."""

    def host(self, w):
        for world in super().host(w):
            yield world._replace(answered=world.asked) if world.waits_for is None else world


class ReadsOneWord(Machine):
    """One stream's requests count as the other's: the larger number of both."""

    def requests(self, p):
        return max(p.asked or 0, p.passing or 0)


class OpensEarly(Machine):
    """The tickets before the job."""

    def publish(self, w, count):
        swapped = {0: 1, 1: 0}
        if w.script_part not in swapped:
            yield from super().publish(w, count)
        elif w.script_part == 0:
            yield w._replace(urgent_end=w.urgent_end + count, script_part=1)
        else:
            yield w._replace(job=(w.urgent_end - count, w.urgent_end, 1), script_part=2)


class NeverDrains(Machine):
    """Nobody is launched for a job that comes when the bulk is done."""

    def publish(self, w, count):
        for world in super().publish(w, count):
            yield world._replace(programs=tuple(p for p in world.programs if p.is_bulk))


class SaysItIsOver(Machine):
    """Over as soon as a program leaves."""

    def seen(self, w, p):
        found = super().seen(w, p)
        return found._replace(at=OVER) if found.at == END and found.is_bulk else found


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (TakesTickets, Case(1, 1, (1, 1))),
        (LooksLate, Case(1, 2, ("leave",))),
        (LooksRarely, Case(1, 4, ("leave",))),
        (LooksRarely, Case(1, 4, (1,))),
        (ForgetsWhoAsked, Case(1, 3, ("leave", "leave"))),
        (ReadsOneWord, Case(1, 3, ("leave",), 1)),
        (OpensEarly, Case(1, 1, (1,))),
        (NeverDrains, Case(1, 1, (1,))),
        (SaysItIsOver, Case(1, 2, ("leave",))),
    ],
)
def test_a_protocol_that_breaks_a_promise_is_found(broken, case):
    check(Machine(case))
    with pytest.raises(BrokenError):
        check(broken(case))


def test_a_program_that_has_a_tile_computes_it():
    machine = Machine(Case(1, 1, ("leave",)))
    asked = start(machine.case)._replace(asked=1, next=1)
    ((world, program),) = machine.program(asked, Program(True, at=BULK, tile=0))
    assert program.at == LOOK and world.bulk_done == (1,)
