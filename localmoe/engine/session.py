"""Sessions: whose tokens' latents are in the cache, and whose pages go when others need them."""

from collections import OrderedDict
from collections.abc import Sequence

from localmoe.errors import OutOfMemoryError
from localmoe.kernels.ops import PAGE_TOKENS
from localmoe.model.cache import LatentCache, PageTable


class Session:
    """The token ids whose latents are complete in the cache, and the pages that hold them."""

    def __init__(self, name: str, table: PageTable) -> None:
        self.name = name
        self.table = table
        self.ids: list[int] = []
        self.busy = False  # a request holds it: its pages stay

    @property
    def num_tokens(self) -> int:
        """Rows in the cache."""
        return len(self.ids)

    def sync(self, prompt: Sequence[int]) -> int:
        """Keeps what `prompt` begins with and drops the rest; returns how many tokens need not be read again.

        At least one token is left to read: without it there are no logits.
        """
        kept = min(common_prefix(self.ids, prompt), len(prompt) - 1)
        self.rewind(kept)
        return kept

    def append(self, ids: Sequence[int]) -> None:
        """Notes that the rows of `ids` are complete."""
        self.ids.extend(ids)

    def rewind(self, num_tokens: int) -> None:
        """Forgets all but the first `num_tokens`; also what a cancelled run left beyond them."""
        self.table.rewind(num_tokens)
        del self.ids[num_tokens:]


class Sessions:
    """All sessions, the one used last at the end; idle ones are evicted from the front."""

    def __init__(self, cache: LatentCache) -> None:
        self._cache = cache
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, name: str, ids: Sequence[int]) -> Session:
        """The session of that name; when another holds more of `ids`, it shares that one's pages from now on."""
        self._forget_empty()
        session = self._sessions.setdefault(name, Session(name, self._cache.new_table()))
        self._sessions.move_to_end(name)
        donor = max(self._sessions.values(), key=lambda s: common_prefix(s.ids, ids))
        if common_prefix(donor.ids, ids) >= common_prefix(session.ids, ids) + PAGE_TOKENS:
            session.rewind(0)
            session.table, session.ids = donor.table.fork(), list(donor.ids)
        return session

    def num_known(self, name: str, ids: Sequence[int]) -> int:
        """How many of `ids` the session of that name has in the cache already."""
        session = self._sessions.get(name)
        return common_prefix(session.ids, ids) if session else 0

    def reserve(self, session: Session, num_tokens: int) -> bool:
        """Room for `num_tokens` in `session`, at the expense of idle sessions; False when that is not enough."""
        while True:
            try:
                session.table.reserve(num_tokens)
            except OutOfMemoryError:
                if not self._evict_oldest(session):
                    return False
            else:
                return True

    @property
    def used_bytes(self) -> int:
        """Of the cache's pages that sessions hold."""
        return self._cache.nbytes * (self._cache.num_pages - self._cache.free_pages) // self._cache.num_pages

    def num_available(self) -> int:
        """Pages that no busy session holds."""
        busy = {int(page) for s in self._sessions.values() if s.busy for page in s.table.pages}
        return self._cache.num_pages - len(busy)

    def close(self) -> None:
        """Gives all pages back."""
        for session in self._sessions.values():
            session.table.release()
        self._sessions.clear()

    def _forget_empty(self) -> None:
        for session in [s for s in self._sessions.values() if not s.busy and not s.ids]:
            session.table.release()
            del self._sessions[session.name]

    def _evict_oldest(self, but: Session) -> bool:
        for session in self._sessions.values():
            if not session.busy and session is not but:
                session.table.release()
                del self._sessions[session.name]
                return True
        return False


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids are equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
