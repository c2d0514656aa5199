"""What a pull would do, exactly, before it does it: files, bytes, and what is here already."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import Any

from localmoe.errors import CheckpointError, OutOfMemoryError, VerificationError
from localmoe.hub.amount import amount
from localmoe.hub.checkpoint import INDEX, check_weight_map
from localmoe.hub.download.fetch import Fetcher, Memory
from localmoe.hub.download.listing import HubFile, Listing, list_files
from localmoe.hub.download.needed import CONFIG, needed_files, require_config
from localmoe.hub.download.part import bytes_vouched
from localmoe.hub.download.patience import Notify, Patience, Retries
from localmoe.hub.download.place import Place
from localmoe.hub.hf_cache import cache_folder
from localmoe.hub.json_file import MAX_JSON_BYTES, parse_object, shown


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file that the model needs."""

    file: HubFile
    here_bytes: int
    is_here: bool  # as a whole

    @property
    def missing_bytes(self) -> int:
        """What is still to be fetched."""
        return self.file.size - self.here_bytes


@dataclass(frozen=True)
class DownloadPlan:
    """All that is known before the first weight is fetched."""

    name: str  # what the user calls the model
    listing: Listing
    place: Place
    files: tuple[PlannedFile, ...]
    documents: Mapping[str, bytes]  # config.json and the index, which the plan is made from
    free_bytes: int  # on the cache's file system

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        return self._object(CONFIG)

    @property
    def index(self) -> dict[str, str] | None:
        """Which tensor is in which file; None for a model of a single file."""
        if INDEX not in self.documents:
            return None
        return check_weight_map(self._object(INDEX), Path(INDEX))

    @property
    def total_bytes(self) -> int:
        """Of all files."""
        return sum(one.file.size for one in self.files)

    @property
    def here_bytes(self) -> int:
        """Of the files and parts of files that need not be fetched."""
        return sum(one.here_bytes for one in self.files)

    @property
    def missing_bytes(self) -> int:
        """Exactly what is fetched, if nothing goes wrong."""
        return self.total_bytes - self.here_bytes

    @property
    def is_complete(self) -> bool:
        """Whether all files are here, under their names."""
        return all(one.is_here and self.place.link(one.file).is_file() for one in self.files)

    def require_room(self) -> None:
        """OutOfMemoryError when the file system has less room than is missing."""
        if self.missing_bytes > self.free_bytes:
            short = self.missing_bytes - self.free_bytes
            raise OutOfMemoryError(
                f"{self.name} needs {amount(self.missing_bytes)} more on the disk of {shown(cache_folder())}, "
                f"which has {amount(self.free_bytes)} free.",
                f"free {amount(short)} there, or set HF_HOME to a larger disk.",
                missing_bytes=short,
            )

    def _object(self, path: str) -> dict[str, Any]:
        where = f"{path} of {shown(self.listing.repository)} on the hub"
        return parse_object(self.documents[path], where, "choose another revision, or tell its makers.")


def make_plan(
    name: str, repository: str, revision: str, patience: Patience, cancelled: Flag, notify: Notify
) -> DownloadPlan:
    """Asks the hub for the list, config.json and the index. HubError, ModelNotFoundError or CheckpointError."""
    retries = Retries(patience, cancelled, notify)
    listing = list_files(repository, revision, patience, retries)
    require_config(listing)
    place, fetcher = Place(listing), Fetcher(listing, patience, cancelled)
    by_path = {file.path: file for file in listing.files}
    documents = {path: _document(by_path[path], place, fetcher, retries) for path in (CONFIG, INDEX) if path in by_path}
    plan = DownloadPlan(name, listing, place, (), documents, _free_bytes(place.repository / "blobs"))
    shards = set((plan.index or {}).values())
    files = tuple(_planned(file, place) for file in needed_files(listing, shards))
    return DownloadPlan(name, listing, place, files, documents, plan.free_bytes)


def plan_json(plan: DownloadPlan) -> dict[str, Any]:
    """The plan as `--json` has it."""
    return {
        "model": plan.name,
        "repo": plan.listing.repository,
        "revision": plan.listing.revision,
        "commit": plan.listing.commit,
        "path": str(plan.place.folder),
        "total_bytes": plan.total_bytes,
        "here_bytes": plan.here_bytes,
        "missing_bytes": plan.missing_bytes,
        "free_bytes": plan.free_bytes,
        "files": [
            {"name": one.file.path, "bytes": one.file.size, "missing_bytes": one.missing_bytes} for one in plan.files
        ],
    }


def _document(file: HubFile, place: Place, fetcher: Fetcher, retries: Retries) -> bytes:
    """A small file's bytes, from the cache where they are right, or else from the hub."""
    if file.size > MAX_JSON_BYTES:
        raise CheckpointError(f"{file.path} is larger than {MAX_JSON_BYTES:,} bytes.", "choose another repository.")
    try:
        data = place.blob(file).read_bytes()
    except OSError:
        data = b""
    if _is_right(file, data):
        return data
    sink = Memory()
    fetcher.fetch(file, sink, file.size, retries, lambda nbytes: None)
    if not _is_right(file, sink.data):
        raise VerificationError(
            f"{file.path} came with another checksum than the hub's own list has.",
            "pull again; if it stays, the network changes what passes, or the hub's copy is damaged.",
        )
    return bytes(sink.data)


def _is_right(file: HubFile, data: bytes | bytearray) -> bool:
    if len(data) != file.size:
        return False
    digest = file.new_hash()
    digest.update(data)
    return digest.hexdigest() == file.digest


def _planned(file: HubFile, place: Place) -> PlannedFile:
    if place.has(file):
        return PlannedFile(file, file.size, is_here=True)
    return PlannedFile(file, bytes_vouched(place.blob(file), file), is_here=False)


def _free_bytes(folder: Path) -> int:
    """Of the file system that `folder` is or would be on, as a user without privileges sees it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
