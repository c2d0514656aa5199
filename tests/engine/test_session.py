import numpy as np
import pytest

from localmoe.engine.session import Sessions, common_prefix
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.cache import LatentCache


@pytest.fixture
def cache() -> LatentCache:
    return LatentCache(2, 8, 3)


def ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, count).tolist()


def read(sessions: Sessions, name: str, prompt: list[int]) -> int:
    session = sessions.open(name, prompt)
    kept = session.sync(prompt)
    assert sessions.reserve(session, len(prompt))
    session.append(prompt[kept:])
    assert session.ids == prompt
    return kept


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([], [1], 0), ([1], [1], 1), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1], 1), ([2], [1], 0)],
)
def test_common_prefix(a, b, length):
    assert common_prefix(a, b) == common_prefix(b, a) == length


def test_an_extended_prompt_keeps_everything(cache):
    sessions = Sessions(cache)
    assert read(sessions, "a", ids(100)) == 0
    assert read(sessions, "a", ids(100) + ids(30, seed=1)) == 100


def test_one_token_is_always_left_to_read(cache):
    sessions = Sessions(cache)
    read(sessions, "a", ids(100))
    assert read(sessions, "a", ids(100)) == 99
    assert read(sessions, "a", ids(100)[:64]) == 63


def test_what_differs_is_dropped_with_its_pages(cache):
    sessions = Sessions(cache)
    read(sessions, "a", ids(4 * PAGE_TOKENS))
    assert cache.free_pages == 4
    assert read(sessions, "a", [*ids(4 * PAGE_TOKENS)[:70], -1]) == 70
    assert cache.free_pages == 6


def test_the_session_used_longest_ago_makes_room(cache):
    sessions = Sessions(cache)
    for number, name in enumerate("abcd"):
        read(sessions, name, ids(2 * PAGE_TOKENS, seed=number))
    read(sessions, "a", ids(2 * PAGE_TOKENS))
    read(sessions, "e", ids(PAGE_TOKENS, seed=9))
    assert read(sessions, "a", ids(2 * PAGE_TOKENS)) == 127
    assert read(sessions, "b", ids(2 * PAGE_TOKENS, seed=1)) == 0


def test_busy_sessions_keep_their_pages(cache):
    sessions = Sessions(cache)
    read(sessions, "a", ids(6 * PAGE_TOKENS))
    sessions.open("a", ids(1)).busy = True
    assert sessions.num_available() == 2
    newcomer = sessions.open("b", [])
    assert not sessions.reserve(newcomer, 3 * PAGE_TOKENS)
    assert sessions.reserve(newcomer, 2 * PAGE_TOKENS)


def test_a_beginning_is_shared_by_pages_and_stays_whole(cache):
    sessions = Sessions(cache)
    read(sessions, "a", ids(100))
    cache.layer(0).data[sessions.open("a", []).table.pages, :, 0] = 7
    assert read(sessions, "b", [*ids(100), 5]) == 100
    assert cache.free_pages == 8 - 3  # the full page is shared, the other copied
    copied = sessions.open("b", []).table.pages[1]
    assert cache.layer(0).data[copied, 35, 0] == 7
    read(sessions, "a", [*ids(100)[:50], 6])
    assert read(sessions, "b", [*ids(100), 5, 6]) == 101


def test_short_beginnings_are_not_worth_sharing(cache):
    sessions = Sessions(cache)
    read(sessions, "a", ids(63))
    assert read(sessions, "b", [*ids(63), 5]) == 0


def test_all_pages_come_back(cache):
    sessions = Sessions(cache)
    random = np.random.default_rng(4)
    for _ in range(200):
        prompt = ids(int(random.integers(1, 500)), seed=int(random.integers(2)))
        read(sessions, f"s{random.integers(5)}", prompt)
    assert sessions.num_available() == 8
    assert sessions.reserve(sessions.open("all", []), 8 * PAGE_TOKENS)
    assert len(sessions) == 1


def test_sessions_without_tokens_are_forgotten(cache):
    sessions = Sessions(cache)
    for n in range(50):
        sessions.open(f"s{n}", []).rewind(0)
    assert len(sessions) == 1
