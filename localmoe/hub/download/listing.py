"""What a repository holds at a revision, as the hub says: every file's size and checksum."""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Protocol

from localmoe.errors import HubError, LocalmoeError, ModelNotFoundError
from localmoe.hub.checkpoint import is_inside
from localmoe.hub.client import endpoint, quieten, refused, retry_after_s
from localmoe.hub.download.patience import Patience, Retries, TroubleError, patiently
from localmoe.hub.json_file import shown

_PASSING = (408, 425, 429, 500, 502, 503, 504)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Hash(Protocol):
    """hashlib's."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...
    def copy(self) -> "Hash": ...


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file. `digest` is also its blob's name in the cache, and the hub's etag for it."""

    path: str  # in the repository
    size: int
    digest: str  # SHA-256 of a large file, git's SHA-1 of a small one

    def new_hash(self) -> Hash:
        """What gives `digest` when all bytes went in."""
        return new_hash(self.digest, self.size)


def new_hash(digest: str, size: int) -> Hash:
    """The hash that a blob of that name and size is checked with: git hashes a head before the bytes."""
    if len(digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


@dataclass(frozen=True)
class Listing:
    """A repository at one commit."""

    repository: str  # as it was asked for
    revision: str
    commit: str
    files: tuple[HubFile, ...]
    renamed_to: str = ""  # the name that the hub has it under now


def list_files(repository: str, revision: str, patience: Patience, retries: Retries) -> Listing:
    """Asks the hub. HubError for what it refuses, ModelNotFoundError for a name that no repository can have."""
    quieten()
    info = patiently(lambda: _ask(repository, revision, patience), retries)
    files = tuple(sorted((_file(one, repository) for one in info.siblings or ()), key=lambda file: file.path))
    if not info.sha or not _COMMIT.fullmatch(info.sha):
        raise _no_hub(repository, f"it names the commit '{shown(info.sha)}'")
    renamed = info.id if info.id and info.id.lower() != repository.lower() else ""
    return Listing(repository, revision, info.sha, files, renamed)


def trouble(repository: str, revision: str, error: Exception) -> LocalmoeError | TroubleError:
    """An error of the client's as what is final, or as what may pass."""
    from huggingface_hub import errors

    final = refused(repository, revision, error)
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        return TroubleError(final, retry_after_s(error.response.headers)) if status in _PASSING else final
    return TroubleError(final) if isinstance(error, errors.HTTPError) else final


def _ask(repository: str, revision: str, patience: Patience) -> Any:
    from huggingface_hub import HfApi, errors

    try:
        api = HfApi(endpoint=endpoint(), library_name="localmoe")
        return api.model_info(repository, revision=revision, files_metadata=True, timeout=patience.connect_s)
    except errors.HFValidationError as error:
        raise ModelNotFoundError(
            f"{shown(repository)} is not the name of a repository.", "give org/name, or a name of `localmoe models`."
        ) from error
    except (errors.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
        raise trouble(repository, revision, error) from error


def _file(sibling: Any, repository: str) -> HubFile:
    digest, size = (sibling.lfs.sha256, sibling.lfs.size) if sibling.lfs else (sibling.blob_id, sibling.size)
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _no_hub(repository, f"it gives no size and checksum for {shown(sibling.rfilename)}")
    if not is_inside(sibling.rfilename):
        raise _no_hub(repository, f"it names a file '{shown(sibling.rfilename)}'")
    return HubFile(sibling.rfilename, size, digest)


def _no_hub(repository: str, why: str) -> HubError:
    return HubError(
        f"{endpoint()} does not answer as a hub does about {shown(repository)}: {why}.",
        "check the network, the proxy and HF_ENDPOINT",
    )
