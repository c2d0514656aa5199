"""The latent cache's pages: shared by count, never lost, never changed under another session."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.cache import LatentCache, PageTable

NUM_PAGES, WIDTH, LAYERS = 9, 3, 2


def write(cache: LatentCache, table: PageTable, start: int, values: list[int]) -> None:
    """Each token's rows, in all layers, become its value."""
    for position, value in enumerate(values, start):
        for n in range(LAYERS):
            cache.layer(n).data[table.pages[position // PAGE_TOKENS], position % PAGE_TOKENS] = value + n


def read(cache: LatentCache, table: PageTable, count: int) -> list[int]:
    values = []
    for position in range(count):
        rows = [
            cache.layer(n).data[table.pages[position // PAGE_TOKENS], position % PAGE_TOKENS] for n in range(LAYERS)
        ]
        assert all((row == rows[0][0] + n).all() for n, row in enumerate(rows))
        values.append(int(rows[0][0]))
    return values


@pytest.fixture
def cache() -> LatentCache:
    return LatentCache(LAYERS, NUM_PAGES, WIDTH)


def test_pages_lie_on_cache_lines_in_either_dtype():
    for dtype, expected in (("float32", np.float32), ("bf16", np.uint16)):
        data = LatentCache(LAYERS, NUM_PAGES, 7, dtype).layer(1).data
        assert data.shape == (NUM_PAGES, PAGE_TOKENS, 7)
        assert data.dtype == expected
        assert all(data[page].ctypes.data % 64 == 0 for page in range(NUM_PAGES))


def test_room_grows_by_pages_and_only_when_needed(cache):
    table = cache.new_table()
    table.reserve(64)
    assert (table.capacity, cache.free_pages) == (64, NUM_PAGES - 1)
    table.reserve(65)
    assert (table.capacity, cache.free_pages) == (128, NUM_PAGES - 2)
    table.reserve(3)
    assert table.length == 65
    assert table.pages.dtype == np.int32


def test_a_full_cache_says_so_and_takes_nothing(cache):
    table, other = cache.new_table(), cache.new_table()
    table.reserve(64 * (NUM_PAGES - 1))
    other.reserve(1)
    with pytest.raises(OutOfMemoryError, match="cache is full"):
        other.reserve(65)
    assert (other.length, len(other.pages), cache.free_pages) == (1, 1, 0)
    table.release()
    other.reserve(65)


def test_rewinding_drops_the_pages_behind(cache):
    table = cache.new_table()
    table.reserve(200)
    table.rewind(64)
    assert (table.length, table.capacity, cache.free_pages) == (64, 64, NUM_PAGES - 1)
    table.rewind(100)  # no tokens appear from nowhere
    assert table.length == 64


def test_a_fork_shares_pages_until_someone_writes(cache):
    table = cache.new_table()
    table.reserve(100)
    write(cache, table, 0, list(range(100)))
    fork = table.fork()
    assert cache.free_pages == NUM_PAGES - 2
    fork.reserve(101)
    write(cache, fork, 100, [500])
    assert fork.pages[0] == table.pages[0]
    assert fork.pages[1] != table.pages[1]
    table.reserve(101)  # alone with its page again: no copy
    write(cache, table, 100, [600])
    assert read(cache, table, 101) == [*range(100), 600]
    assert read(cache, fork, 101) == [*range(100), 500]
    assert cache.free_pages == NUM_PAGES - 3


def test_a_fork_at_a_page_end_copies_nothing(cache):
    table = cache.new_table()
    table.reserve(64)
    fork = table.fork()
    fork.reserve(65)
    assert cache.free_pages == NUM_PAGES - 2


def test_a_copy_that_finds_no_page_changes_nothing(cache):
    table = cache.new_table()
    table.reserve(64 * NUM_PAGES - 1)
    fork = table.fork()
    with pytest.raises(OutOfMemoryError):
        fork.reserve(64 * NUM_PAGES)
    assert (fork.pages == table.pages).all()
    fork.release()
    table.reserve(64 * NUM_PAGES)


def test_a_shared_prefix_outlives_its_first_session(cache):
    table = cache.new_table()
    table.reserve(70)
    write(cache, table, 0, list(range(70)))
    fork = table.fork()
    table.release()
    other = cache.new_table()
    other.reserve(64 * (NUM_PAGES - 2))
    write(cache, other, 0, [9000] * 64 * (NUM_PAGES - 2))
    assert read(cache, fork, 70) == list(range(70))
    fork.release()
    fork.release()  # twice is once
    assert cache.free_pages == 2


class Sessions(RuleBasedStateMachine):
    """Any order of operations keeps every session's own tokens and loses no page."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.cache = LatentCache(LAYERS, NUM_PAGES, WIDTH)
        self.expected: dict[int, tuple[PageTable, list[int]]] = {}
        self.next_value = 0

    def add(self, table: PageTable, values: list[int]) -> PageTable:
        self.expected[id(table)] = (table, values)
        return table

    @rule(target=tables)
    def create(self) -> PageTable:
        return self.add(self.cache.new_table(), [])

    @rule(target=tables, table=tables)
    def fork(self, table: PageTable) -> PageTable:
        return self.add(table.fork(), list(self.expected[id(table)][1]))

    @rule(table=tables, count=st.integers(1, 100))
    def append(self, table: PageTable, count: int) -> None:
        values = self.expected[id(table)][1]
        try:
            table.reserve(len(values) + count)
        except OutOfMemoryError:
            return
        new = list(range(self.next_value, self.next_value + count))
        self.next_value += count
        write(self.cache, table, len(values), new)
        values.extend(new)

    @rule(table=tables, count=st.integers(0, 300))
    def rewind(self, table: PageTable, count: int) -> None:
        table.rewind(count)
        del self.expected[id(table)][1][count:]

    @rule(table=consumes(tables))
    def release(self, table: PageTable) -> None:
        table.release()
        del self.expected[id(table)]

    @invariant()
    def sessions_keep_their_tokens(self) -> None:
        for table, values in self.expected.values():
            assert table.length == len(values)
            assert len(table.pages) == -(-len(values) // PAGE_TOKENS)
            assert read(self.cache, table, len(values)) == values

    @invariant()
    def pages_are_held_or_free(self) -> None:
        held = {int(page) for table, _ in self.expected.values() for page in table.pages}
        assert len(held) + self.cache.free_pages == NUM_PAGES


Sessions.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSessions = Sessions.TestCase
