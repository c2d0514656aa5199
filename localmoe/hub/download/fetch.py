"""One file's bytes by ranged HTTP: asked for from where the last answer broke off, until all are here."""

import re
import time
from collections.abc import Callable, Iterator
from threading import Event as Flag
from typing import Any, Protocol

from localmoe.errors import CancelledError, HubError
from localmoe.hub.client import endpoint, headers
from localmoe.hub.download.listing import HubFile, Listing, trouble
from localmoe.hub.download.patience import Patience, Retries, TroubleError
from localmoe.hub.json_file import shown

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

OnBytes = Callable[[int], None]


class Sink(Protocol):
    """Where bytes go, in order: a part on the disk, or memory."""

    offset: int

    def write(self, data: bytes | memoryview) -> None: ...


class Memory:
    """A small file's bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.offset = 0

    def write(self, data: bytes | memoryview) -> None:
        self.data += data
        self.offset = len(self.data)


class Fetcher:
    """Fetches files of one listing; used by several threads at a time."""

    def __init__(self, listing: Listing, patience: Patience, cancelled: Flag) -> None:
        self._listing = listing
        self._patience = patience
        self._cancelled = cancelled

    def fetch(self, file: HubFile, sink: Sink, stop: int, retries: Retries, on_bytes: OnBytes) -> None:
        """Fills `sink` up to byte `stop`. HubError when patience ends; CancelledError soon after that is asked for."""
        while sink.offset < stop:
            before = sink.offset
            try:
                self._ask(file, sink, stop, on_bytes)
                if sink.offset < stop and sink.offset == before:
                    raise TroubleError(self._wrong(file, "an answer without bytes"))
            except TroubleError as met:
                if sink.offset - before >= self._patience.stall_bytes:  # fewer are a drip, not a success
                    retries.succeeded()
                retries.bear(met)
            else:
                retries.succeeded()

    def _ask(self, file: HubFile, sink: Sink, stop: int, on_bytes: OnBytes) -> None:
        """One request; TroubleError for what may pass."""
        from huggingface_hub import errors
        from huggingface_hub.utils import get_session, hf_raise_for_status

        listing, patience = self._listing, self._patience
        wanted = {**headers(), "Accept-Encoding": "identity", "Range": f"bytes={sink.offset}-{stop - 1}"}
        try:
            session = get_session()
            with session.stream(
                "GET", self._url(file), headers=wanted, timeout=patience.stall_s, follow_redirects=True
            ) as answer:
                hf_raise_for_status(answer)
                self._check_etag(file, answer)
                skipped = self._bytes_to_skip(file, answer, sink.offset)
                self._copy(file, answer.iter_raw(), sink, stop, skipped, on_bytes)
        except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
            raise trouble(listing.repository, listing.revision, error) from error

    def _copy(
        self,
        file: HubFile,
        chunks: Iterator[bytes],
        sink: Sink,
        stop: int,
        skipped: int,
        on_bytes: Callable[[int], None],
    ) -> None:
        """Notices a line that only drips: the client's timeout sees none."""
        began_s, came = time.monotonic(), 0
        for chunk in chunks:
            if self._cancelled.is_set():
                raise CancelledError("stopped")
            on_bytes(len(chunk))
            data = memoryview(chunk)[skipped:]
            skipped = max(0, skipped - len(chunk))
            if data:
                sink.write(data[: stop - sink.offset])
            if sink.offset == stop:
                return
            came += len(chunk)
            if (waited_s := time.monotonic() - began_s) > self._patience.stall_s:
                if came < self._patience.stall_bytes:
                    what = f"{came:,} bytes of {shown(file.path)} in {waited_s:.0f} s"
                    raise TroubleError(HubError(f"{endpoint()} sent only {what}.", _LATER))
                began_s, came = time.monotonic(), 0

    def _bytes_to_skip(self, file: HubFile, answer: Any, offset: int) -> int:
        """Of the answer's body, before the one that is wanted; TroubleError for an answer to another question."""
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise TroubleError(self._wrong(file, "compressed bytes"))
        if answer.status_code == 200:  # a server that knows no ranges, or does not care for them
            length = answer.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) != file.size:
                raise TroubleError(self._wrong(file, f"a file of {int(length):,} bytes instead of {file.size:,}"))
            return offset
        given = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if answer.status_code != 206 or given is None or int(given[1]) != offset:
            raise TroubleError(self._wrong(file, "another range than was asked for"))
        if given[3] not in ("*", str(file.size)):
            raise TroubleError(self._wrong(file, f"a file of {int(given[3]):,} bytes instead of {file.size:,}"))
        return 0

    def _check_etag(self, file: HubFile, answer: Any) -> None:
        """The hub's etag is the checksum; a server that the hub sends to has etags of its own."""
        for one in (*answer.history, answer):
            is_hub = "X-Repo-Commit" in one.headers
            etag = one.headers.get("X-Linked-ETag") or (one.headers.get("ETag") if is_hub else None)
            if etag and etag.removeprefix("W/").strip('"') != file.digest:
                name, listing = shown(file.path), self._listing
                raise HubError(
                    f"{name} of {shown(listing.repository)} was changed on the hub while it was fetched.",
                    "pull again: it takes the new version, and keeps all files that did not change.",
                )

    def _wrong(self, file: HubFile, what: str) -> HubError:
        return HubError(f"{endpoint()} answers with {what} for {shown(file.path)}.", _LATER)

    def _url(self, file: HubFile) -> str:
        from huggingface_hub import hf_hub_url

        listing = self._listing
        return hf_hub_url(listing.repository, file.path, revision=listing.commit, endpoint=endpoint())


_LATER = "pull again later: what is here stays. HF_ENDPOINT names another hub."
