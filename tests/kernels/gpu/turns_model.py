"""The programs of persistent.py and who talks to them, as a machine whose every memory access is a step of its own.

What is modelled: `bulk` programs that are launched until no tile is left; a stream that publishes urgent jobs, launches
a program that drains them and waits for their end, and that asks for the processors, uses them and gives them back; and
a second stream that only does the latter, for prompts that pass. Words of the board, and of both streams, are read one
after the other, in any order, since nothing promises more.
"""

from collections.abc import Iterator
from typing import NamedTuple

LOOK, CLAIM, URGENT, DONE, TELL, TAKE, BULK, OVER, END = (
    "look",
    "claim",
    "urgent",
    "done",
    "tell",
    "take",
    "bulk",
    "over",
    "end",
)


class Program(NamedTuple):
    """Where one program is, and what it knows."""

    is_bulk: bool
    at: str = LOOK
    asked: int | None = None
    passing: int | None = None
    next: int | None = None
    end: int | None = None
    tile: int = -1
    number: int = -1
    late_for: tuple[int, int] = (0, 0)  # the requests that stood when its last bulk tile ended
    late_ticket: int = -1  # the urgent ticket that waited then


class World(NamedTuple):
    """Everything that a step may depend on."""

    programs: tuple[Program, ...]
    next: int = 0
    over: bool = False
    answered: int = 0
    asked: int = 0
    resumed: int = 0
    passing: int = 0  # as asked and resumed, of the second stream
    passing_resumed: int = 0
    urgent_next: int = 0
    urgent_end: int = 0
    urgent_done: int = 0
    job: tuple[int, int, int] = (0, 0, 0)  # first ticket, end, number
    finished: int = 0
    bulk_done: tuple[int, ...] = ()
    urgent_ends: tuple[int, ...] = ()
    script_at: int = 0  # of the stream
    script_part: int = 0
    waits_for: tuple[int, ...] | None = None  # the bulk's host: for these requests, read one by one


class Case(NamedTuple):
    """So many bulk programs and tiles; the stream's `script` of "leave", and of jobs' numbers of tickets.

    `num_passing`: how often the second stream asks.
    """

    num_programs: int
    num_tiles: int
    script: tuple["str | int", ...]
    num_passing: int = 0


class BrokenError(AssertionError):
    """A promise that a step has broken."""


def start(case: Case) -> World:
    tickets = sum(n for n in case.script if isinstance(n, int))
    bulk = tuple(Program(True) for _ in range(case.num_programs))
    return World(bulk, bulk_done=(0,) * case.num_tiles, urgent_ends=(0,) * tickets)


class Machine:
    """The protocol as it is; tests derive broken ones."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def steps(self, w: World) -> Iterator[World]:
        """All that may happen next."""
        for n, p in enumerate(w.programs):
            for world, program in self.program(w, p):
                programs = (*world.programs[:n], program, *world.programs[n + 1 :])
                yield world._replace(programs=tuple(sorted(programs, key=str)))  # which is which does not matter
        yield from self.host(w)
        yield from self.stream(w)
        yield from self.pass_by(w)

    def program(self, w: World, p: Program) -> Iterator[tuple[World, Program]]:
        if p.at == LOOK:
            yield from self.look(w, p)
        elif p.at == CLAIM:
            yield self.claim(w, p)
        elif p.at == URGENT:
            yield self.compute_urgent(w, p)
        elif p.at == DONE:
            done = w.urgent_done + 1
            next_one = p._replace(at=TELL) if done == p.end else self.again(p)
            yield w._replace(urgent_done=done), next_one
        elif p.at == TELL:
            yield w._replace(finished=p.number), self.again(p)
        elif p.at == TAKE:
            tile = w.next
            yield w._replace(next=tile + 1), p._replace(at=BULK if tile < self.case.num_tiles else OVER, tile=tile)
        elif p.at == BULK:
            yield self.compute_bulk(w, p)
        elif p.at == OVER:
            yield w._replace(over=True), p._replace(at=END)

    def look(self, w: World, p: Program) -> Iterator[tuple[World, Program]]:
        if p.asked is None and p.is_bulk:
            yield w, self.seen(w, p._replace(asked=w.asked))
        if self.reads_passing(p):
            yield w, self.seen(w, p._replace(passing=w.passing))
        if p.next is None:
            yield w, self.seen(w, p._replace(next=w.urgent_next))
        if p.end is None:
            yield w, self.seen(w, p._replace(end=w.urgent_end))

    def reads_passing(self, p: Program) -> bool:
        return p.passing is None and p.is_bulk and self.case.num_passing > 0

    def seen(self, w: World, p: Program) -> Program:
        """What it does once it has read all words; then it forgets them."""
        if (p.asked is None and p.is_bulk) or self.reads_passing(p) or p.next is None or p.end is None:
            return p
        if p.next < p.end:
            return p._replace(at=CLAIM, asked=None, passing=None, end=None)
        at = END if not p.is_bulk or self.requests(p) > w.answered else TAKE
        return self.again(p)._replace(at=at)

    def requests(self, p: Program) -> int:
        """Of both streams together, as it has read them."""
        return (p.asked or 0) + (p.passing or 0)

    def claim(self, w: World, p: Program) -> tuple[World, Program]:
        """Compare and swap: another one may have the ticket."""
        if w.urgent_next != p.next:
            return w, self.again(p)
        return w._replace(urgent_next=p.next + 1), p._replace(at=URGENT, tile=p.next)

    def compute_urgent(self, w: World, p: Program) -> tuple[World, Program]:
        first, end, number = w.job
        if not first <= p.tile < end:
            raise BrokenError(f"ticket {p.tile} is computed as one of job {w.job}")
        ends = tuple(n + (ticket == p.tile) for ticket, n in enumerate(w.urgent_ends))
        if ends[p.tile] > 1:
            raise BrokenError(f"ticket {p.tile} is computed twice")
        return w._replace(urgent_ends=ends), p._replace(at=DONE, end=end, number=number)

    def compute_bulk(self, w: World, p: Program) -> tuple[World, Program]:
        done = tuple(n + (tile == p.tile) for tile, n in enumerate(w.bulk_done))
        if done[p.tile] > 1:
            raise BrokenError(f"tile {p.tile} is computed twice")
        requests = (
            w.asked if w.asked > w.resumed else 0,
            w.passing if w.passing > w.passing_resumed else 0,
        )
        ticket = w.urgent_next if w.urgent_next < w.urgent_end else -1
        if any(now and now == late for now, late in zip(requests, p.late_for, strict=True)):
            raise BrokenError("a program computes a second tile while somebody waits for the processors")
        if ticket >= 0 and ticket == p.late_ticket:
            raise BrokenError("a program computes a second tile while an urgent one waits")
        return w._replace(bulk_done=done), self.again(p)._replace(late_for=requests, late_ticket=ticket)

    def again(self, p: Program) -> Program:
        return p._replace(at=LOOK, asked=None, passing=None, next=None, end=None, tile=-1, number=-1)

    def host(self, w: World) -> Iterator[World]:
        """Of the bulk: launches again, once what was asked for is given back."""
        if w.over or not all(p.at == END for p in w.programs if p.is_bulk):
            return
        if w.waits_for is None:
            yield w._replace(waits_for=(w.asked,))
        elif len(w.waits_for) == 1:
            yield w._replace(waits_for=(*w.waits_for, w.passing))
        elif w.resumed >= w.waits_for[0] and w.passing_resumed >= w.waits_for[1]:
            programs = tuple(Program(True) if p.is_bulk else p for p in w.programs)
            yield w._replace(programs=programs, answered=sum(w.waits_for), waits_for=None)

    def stream(self, w: World) -> Iterator[World]:
        """Publishes, drains, waits; or asks, uses what it was given, and gives it back."""
        if w.script_at == len(self.case.script):
            return
        word = self.case.script[w.script_at]
        yield from self.leave(w) if word == "leave" else self.publish(w, int(word))

    def leave(self, w: World) -> Iterator[World]:
        if w.script_part == 0:
            yield w._replace(asked=w.asked + 1, script_part=1)
        elif all(p.at == END for p in w.programs if p.is_bulk):  # the processors are free
            yield w._replace(resumed=w.asked, script_part=0, script_at=w.script_at + 1)

    def pass_by(self, w: World) -> Iterator[World]:
        """The second stream asks, uses what it was given, and gives it back."""
        if w.passing > w.passing_resumed:
            if all(p.at == END for p in w.programs if p.is_bulk):
                yield w._replace(passing_resumed=w.passing)
        elif w.passing < self.case.num_passing:
            yield w._replace(passing=w.passing + 1)

    def publish(self, w: World, count: int) -> Iterator[World]:
        number = 1 + sum(isinstance(word, int) for word in self.case.script[: w.script_at])
        if w.script_part == 0:
            yield w._replace(job=(w.urgent_end, w.urgent_end + count, number), script_part=1)
        elif w.script_part == 1:
            yield w._replace(urgent_end=w.job[1], script_part=2)
        elif w.script_part == 2:
            yield w._replace(programs=(*w.programs, Program(False)), script_part=3)
        elif w.finished >= number:
            drained = tuple(p for p in w.programs if p.is_bulk or p.at != END)
            yield w._replace(programs=drained, script_part=0, script_at=w.script_at + 1)

    def is_over(self, w: World) -> bool:
        ended = all(p.at == END for p in w.programs)
        has_passed = w.passing_resumed == self.case.num_passing
        return ended and w.over and has_passed and w.script_at == len(self.case.script)


def check(machine: Machine) -> int:
    """Follows every interleaving to its end; how many worlds there are. BrokenError where a promise is."""
    begin = start(machine.case)
    path, on_path, known = [(begin, machine.steps(begin))], {begin}, {begin}
    while path:
        world, steps = path[-1]
        following = next(steps, None)
        if following is None:
            path.pop()
            on_path.discard(world)
            continue
        if following in on_path:
            raise BrokenError("it may go round in circles")
        if following in known:
            continue
        known.add(following)
        if not any(True for _ in machine.steps(following)):
            settle(machine, following)
        on_path.add(following)
        path.append((following, machine.steps(following)))
    return len(known)


def settle(machine: Machine, world: World) -> None:
    """Nothing happens any more: is all done?"""
    if not machine.is_over(world):
        raise BrokenError(f"stuck: {world}")
    if set(world.bulk_done) - {1} or set(world.urgent_ends) - {1}:
        raise BrokenError(f"not every tile was computed: {world.bulk_done}, {world.urgent_ends}")
