"""A pull: a few files at a time, every byte journalled, hashed and named only when all is right."""

from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock

from localmoe.errors import CancelledError, CheckpointError, VerificationError
from localmoe.events import Event
from localmoe.hub.amount import amount
from localmoe.hub.download.by_xet import fetch_by_xet, remove_remains
from localmoe.hub.download.crew import Job, work
from localmoe.hub.download.fetch import Fetcher
from localmoe.hub.download.heads import HEAD_BYTES, Expected, Header, check_heads, read_head, weight_files
from localmoe.hub.download.listing import HubFile
from localmoe.hub.download.part import MARK_BYTES, Part, bytes_vouched, remove_outdated, remove_part
from localmoe.hub.download.patience import Patience, Retries
from localmoe.hub.download.plan import DownloadPlan
from localmoe.hub.download.progress import Board, Gauge, Notice, Pulled, Pulling
from localmoe.hub.header import header_bytes

AT_ONCE = 4  # files


class Pull:
    """One run. `on_event` is called in the thread that `run` is called in; `cancel` may come from any."""

    def __init__(
        self,
        plan: DownloadPlan,
        on_event: Callable[[Event], None],
        *,
        expected: Expected | None = None,
        at_once: int = AT_ONCE,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        by_xet: bool = False,
    ) -> None:
        self._plan, self._place = plan, plan.place
        self._on_event, self._expected, self._at_once, self._patience = on_event, expected, at_once, patience
        self._by_xet = by_xet
        self._stop = Flag()
        self._is_cancelled = False
        self._fetcher = Fetcher(plan.listing, patience, self._stop)
        self._board = Board(Gauge(one.file.path, one.here_bytes, one.file.size) for one in plan.files)
        self._parts: dict[str, Part] = {}
        self._lock = Lock()
        self._notices: SimpleQueue[str] = SimpleQueue()

    def run(self) -> Path:
        """The model's folder when every file is there. What came before an error or a cancel stays for the next run."""
        self._plan.require_room()
        try:
            with self._place.locked("localmoe", self._stop, self._say_locked):
                self._place.make()
                self._put_documents()
                files = [one.file for one in self._plan.files]
                heads: dict[str, Header] = {}
                with_heads = weight_files(self._plan)
                self._work(lambda f=f: heads.update({f.path: self._head(f)}) for f in files if f.path in with_heads)  # type: ignore[misc]
                check_heads(self._plan, heads, self._expected)
                self._work(lambda f=f: self._fetch(f) for f in files)  # type: ignore[misc]
                self._place.name_revision()
                digests = {file.digest for file in files}
                remove_outdated(self._place.repository / "blobs", self._plan.listing.revision, digests)
        except CancelledError as error:
            raise self._paused() from error
        self._on_event(Pulled(str(self._place.folder), self._board.rate.total))
        return self._place.folder

    def cancel(self) -> None:
        """Ends `run` soon, with CancelledError."""
        self._is_cancelled = True
        self._stop.set()

    def _work(self, jobs: Iterable[Job]) -> None:
        try:
            work(jobs, self._at_once, self._stop, self._tell)
        finally:  # also of threads that still wait for bytes: what came is noted
            for part in list(self._parts.values()):
                part.mark()

    def _put_documents(self) -> None:
        """What the plan was made from need not be fetched again."""
        for one in self._plan.files:
            data = self._plan.documents.get(one.file.path)
            if data is None or self._place.has(one.file):
                continue
            part = self._new_part(one.file)
            part.discard()
            part.open()
            part.write(data)
            part.complete()

    def _head(self, file: HubFile) -> Header:
        """The header of a file of which no more than that need be here."""
        gauge = self._board[file.path]
        with self._board.busy(gauge), self._place.locked(file.digest, self._stop, lambda: self._say_waits(gauge)):
            if self._place.has(file):
                return self._head_of_blob(file)
            part = self._opened(file, gauge)
            try:
                self._fetch_to(file, part, gauge, min(file.size, HEAD_BYTES))
                length = header_bytes(part.head(8), file.size, f"shard {file.path}", "")
                self._fetch_to(file, part, gauge, length)
                return read_head(file.path, file.size, part.head)
            finally:
                part.close()

    def _head_of_blob(self, file: HubFile) -> Header:
        path = self._place.blob(file) if self._place.blob(file).exists() else self._place.link(file)
        try:
            return read_head(file.path, file.size, lambda count: _first_bytes(path, count))
        except CheckpointError as error:
            hint = f"localmoe verify {self._plan.name} --repair fetches only that file."
            raise CheckpointError(error.message, hint) from error

    def _fetch(self, file: HubFile) -> None:
        """The whole file, from what is here of it to its name."""
        gauge = self._board[file.path]
        with self._board.busy(gauge), self._place.locked(file.digest, self._stop, lambda: self._say_waits(gauge)):
            if not self._place.has(file) and not self._fetch_by_xet(file, gauge):
                self._fetch_blob(file, gauge)
            elif self._place.blob(file).exists():
                remove_part(self._place.blob(file))
            self._place.put_link(file)
        self._board.done(gauge)

    def _fetch_by_xet(self, file: HubFile, gauge: Gauge) -> bool:
        """Whether it came so. What was begun by ranges is ended by ranges, but for a header's worth."""
        blob = self._place.blob(file)
        remove_remains(blob)
        if not self._by_xet or bytes_vouched(blob, file) > MARK_BYTES:
            return False

        def on_bytes(num_bytes: int, done_bytes: int) -> None:
            self._board.came(gauge, num_bytes, done_bytes)

        if fetch_by_xet(file, self._plan.listing, blob, self._stop, on_bytes):
            remove_part(blob)
            return True
        return False

    def _fetch_blob(self, file: HubFile, gauge: Gauge) -> None:
        """Once more from the beginning when the checksum is wrong: a line may have garbled it."""
        for is_last in (False, True):
            part = self._opened(file, gauge)
            try:
                self._fetch_to(file, part, gauge, file.size)
                return part.complete()
            except VerificationError as error:
                if is_last:
                    raise
                self._notices.put(f"{error.message} It is fetched again.")
            finally:
                part.close()

    def _new_part(self, file: HubFile) -> Part:
        return Part(self._place.blob(file), file, self._plan.listing.revision)

    def _opened(self, file: HubFile, gauge: Gauge) -> Part:
        with self._lock:
            part = self._parts.setdefault(file.digest, self._new_part(file))
        gauge.state = "checking"
        part.open(self._before_read)
        gauge.state, gauge.done_bytes = "fetching", part.offset
        return part

    def _fetch_to(self, file: HubFile, part: Part, gauge: Gauge, stop: int) -> None:
        def on_bytes(num_bytes: int) -> None:
            self._board.came(gauge, num_bytes, part.offset)

        self._fetcher.fetch(file, part, stop, Retries(self._patience, self._stop, self._notices.put), on_bytes)

    def _before_read(self, num_bytes: int) -> None:
        if self._stop.is_set():
            raise CancelledError("stopped")

    def _say_locked(self) -> None:
        self._on_event(Notice(f"another localmoe is pulling {self._plan.name}: waiting for it to end."))

    def _say_waits(self, gauge: Gauge) -> None:
        gauge.state = "waiting"
        self._notices.put(f"another program is fetching {gauge.name}: waiting for it to end.")

    def _paused(self) -> CancelledError:
        done, total = amount(self._board.done_bytes), amount(self._plan.total_bytes)
        return CancelledError(
            f"paused: {done} of {total} of {self._plan.name} are here and stay.",
            f"`localmoe pull {self._plan.name}` goes on from there.",
        )

    def _tell(self) -> None:
        while True:
            try:
                self._on_event(Notice(self._notices.get_nowait()))
            except Empty:
                break
        self._on_event(Pulling(*self._board.shown()))


def _first_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)
