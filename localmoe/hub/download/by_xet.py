"""A file by Xet, the hub's store of chunks. Only for who asks for it: after a break a file begins from nothing.

What comes is hashed as a whole before it counts, as everything else is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

from localmoe.errors import CancelledError, HubError, LocalmoeError, VerificationError
from localmoe.hub.client import endpoint, headers
from localmoe.hub.download.listing import HubFile, Listing, trouble
from localmoe.hub.download.part import cannot_write
from localmoe.hub.download.patience import TroubleError
from localmoe.hub.json_file import shown

SUFFIX = ".incomplete.xet"
_LOOK_EVERY_S = 0.1
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """Where the chunks of one file are, and what opens the door for a while."""

    file_hash: str
    refresh_url: str
    server: str
    token: str
    expires_s: int  # Unix time


def fetch_by_xet(
    file: HubFile, listing: Listing, blob: Path, cancelled: Flag, on_bytes: Callable[[int, int], None]
) -> bool:
    """Makes `blob`; False when the hub has the file in no Xet store. `on_bytes` hears of new bytes and of all so far.

    HubError, VerificationError, CancelledError.
    """
    access = _access(file, listing)
    if access is None:
        return False
    target = _target(blob)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(file, access, target, cancelled, on_bytes)
        _check(file, target, cancelled)
        target.replace(blob)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        remove_remains(blob)
    return True


def remove_remains(blob: Path) -> None:
    """What a killed run was fetching is of no use to another."""
    _target(blob).unlink(missing_ok=True)


def _target(blob: Path) -> Path:
    return blob.with_name(blob.name + SUFFIX)


def _access(file: HubFile, listing: Listing) -> Access | None:
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import get_session, hf_raise_for_status

    url = hf_hub_url(listing.repository, file.path, revision=listing.commit, endpoint=endpoint())
    try:
        data = get_hf_file_metadata(url, headers=headers(), endpoint=endpoint()).xet_file_data
        if data is None:
            return None
        answer = get_session().get(data.refresh_route, headers=headers())
        hf_raise_for_status(answer)
        return Access(
            data.file_hash,
            data.refresh_route,
            answer.headers[constants.HUGGINGFACE_HEADER_X_XET_ENDPOINT],
            answer.headers[constants.HUGGINGFACE_HEADER_X_XET_ACCESS_TOKEN],
            int(answer.headers[constants.HUGGINGFACE_HEADER_X_XET_EXPIRATION]),
        )
    except (KeyError, ValueError) as error:
        raise _refused(file, f"it gives no access to its store ({error})") from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
        met = trouble(listing.repository, listing.revision, error)
        raise (met.final if isinstance(met, TroubleError) else met) from error


def _fetch(file: HubFile, access: Access, target: Path, cancelled: Flag, on_bytes: Callable[[int, int], None]) -> None:
    import hf_xet

    so_far = 0

    def on_progress(report: Any, items: Any) -> None:
        nonlocal so_far
        done = min(file.size, report.total_bytes_completed)
        if done > so_far:
            on_bytes(done - so_far, done)
            so_far = done

    group = hf_xet.XetSession().new_file_download_group(
        endpoint=access.server,
        token=access.token,
        token_expiry_unix_secs=access.expires_s,
        token_refresh_url=access.refresh_url,
        token_refresh_headers=headers(),
        progress_callback=on_progress,
    )
    try:
        with _ended_by(cancelled, group.abort):
            group.start_download_file(hf_xet.XetFileInfo(access.file_hash, file.size), str(target))
            group.wait_to_finish()
    except (RuntimeError, ValueError, ConnectionError, TimeoutError) as error:
        if cancelled.is_set():
            raise CancelledError("stopped") from error
        raise _refused(file, " ".join(str(error).split())) from error


@contextmanager
def _ended_by(cancelled: Flag, abort: Callable[[], object]) -> Iterator[None]:
    """Within, `abort` is called soon after `cancelled` is set: the library's own wait hears of nothing."""
    done = Flag()

    def watch() -> None:
        while not done.wait(_LOOK_EVERY_S):
            if cancelled.is_set():
                abort()
                return

    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _check(file: HubFile, path: Path, cancelled: Flag) -> None:
    found = file.new_hash()
    with path.open("rb") as stream:
        while data := stream.read(_READ_BYTES):
            if cancelled.is_set():
                raise CancelledError("stopped")
            found.update(data)
    if found.hexdigest() != file.digest:
        raise VerificationError(
            f"{shown(file.path)} came by Xet with the checksum {found.hexdigest()}; the hub's own list says "
            f"{file.digest}.",
            "pull again without --xet.",
        )


def _refused(file: HubFile, why: str) -> LocalmoeError:
    return HubError(
        f"{endpoint()} did not give {shown(file.path)} by Xet: {shown(why).removesuffix('.')}.",
        "pull again, or without --xet: what is here stays",
    )
