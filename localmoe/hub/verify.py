"""Whether a model's files are what they should be: every checksum that is known, every header, the index."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event as Flag
from threading import Lock

from localmoe.errors import CancelledError, CheckpointError
from localmoe.events import Event
from localmoe.hub.checkpoint import INDEX, SINGLE, Checkpoint, TensorSpec, gather, weight_map_of
from localmoe.hub.download.crew import work
from localmoe.hub.download.listing import new_hash
from localmoe.hub.download.needed import CONFIG, SMALL
from localmoe.hub.download.progress import Board, Gauge, Verifying
from localmoe.hub.header import TensorInfo, read_header
from localmoe.hub.json_file import read_json, require_file, unreadable

AT_ONCE = 2  # files: one disk is read, and one core hashes about a gigabyte a second
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One file and what is wrong with it."""

    file: str  # in the model's folder
    problem: str  # a sentence

    def __str__(self) -> str:
        return self.problem if self.file in self.problem else f"{self.file}: {self.problem}"


@dataclass(frozen=True)
class Report:
    """What came of it."""

    folder: Path
    num_files: int
    num_bytes: int
    findings: tuple[Finding, ...] = ()  # damaged or missing files
    unknown: tuple[str, ...] = ()  # files whose checksum nothing on this machine tells

    @property
    def is_right(self) -> bool:
        """Nothing wrong was found."""
        return not self.findings


Expected = Callable[[dict[str, object]], list[TensorSpec]]


class Verification:
    """One run over the model in `folder`; `cancel` may come from any thread."""

    def __init__(self, folder: Path, on_event: Callable[[Event], None], expected: Expected | None = None) -> None:
        self._folder, self._on_event, self._expected = folder, on_event, expected
        self._stop, self._lock = Flag(), Lock()
        self._findings: dict[str, str] = {}
        self._unknown: list[str] = []

    def run(self) -> Report:
        """Structure first, in seconds; then the checksums. CheckpointError when `folder` is no model at all."""
        names = self._names()
        self._check_structure(names)
        here = {name: (self._folder / name).stat().st_size for name in names if (self._folder / name).is_file()}
        report = Report(self._folder, len(here), sum(here.values()))
        sound = [name for name in here if name not in self._findings]
        self._board = Board(Gauge(name, 0, here[name]) for name in sound)
        for name in sound:
            self._board[name].state = "checking"
        work(
            (lambda n=name: self._check(n) for name in sound),  # type: ignore[misc]
            AT_ONCE,
            self._stop,
            lambda: self._on_event(Verifying(*self._board.shown())),
        )
        findings = tuple(Finding(name, self._findings[name]) for name in sorted(self._findings))
        return replace(report, findings=findings, unknown=tuple(sorted(self._unknown)))

    def cancel(self) -> None:
        """Ends `run` soon, with CancelledError."""
        self._stop.set()

    def _names(self) -> list[str]:
        """Of the files that the model consists of, there or not."""
        small = [name for name in SMALL if os.path.lexists(self._folder / name)]
        return [*dict.fromkeys((CONFIG, *small)), *self._weights()]

    def _weights(self) -> list[str]:
        index = self._folder / INDEX
        if not os.path.lexists(index):
            return [SINGLE]
        try:
            return sorted(set(weight_map_of(index).values()))
        except CheckpointError as error:
            self._findings[INDEX] = error.message
            return sorted(path.name for path in self._folder.glob("*.safetensors"))

    def _check_structure(self, names: list[str]) -> None:
        headers: dict[str, dict[str, TensorInfo]] = {}
        for name in names:
            if self._stop.is_set():
                raise CancelledError("stopped")
            try:
                if name.endswith(".safetensors"):
                    headers[name] = read_header(self._folder / name)
                elif name.endswith(".json"):
                    read_json(self._folder / name)
                else:
                    require_file(self._folder / name)
            except CheckpointError as error:
                self._findings.setdefault(name, error.message)
        if not self._findings:
            self._check_together(headers)

    def _check_together(self, headers: dict[str, dict[str, TensorInfo]]) -> None:
        """Files that are sound by themselves: whether they belong together."""
        index = self._folder / INDEX
        try:
            tensors = gather(weight_map_of(index), headers, self._folder) if index.exists() else headers[SINGLE]
            if self._expected is not None:
                config = read_json(self._folder / CONFIG)
                Checkpoint(self._folder, config, {}, tensors).validate(self._expected(config))
        except CheckpointError as error:
            self._findings[INDEX if index.exists() else SINGLE] = error.message

    def _check(self, name: str) -> None:
        path, gauge = self._folder / name, self._board[name]
        with self._board.busy(gauge):
            digest = known_digest(self._folder, name)
            if digest is None:
                with self._lock:
                    self._unknown.append(name)
            elif (found := self._digest_of(path, digest, gauge)) != digest:
                with self._lock:
                    self._findings[name] = f"{name} is damaged: its checksum is {found[:12]}…, not {digest[:12]}…"
        self._board.done(gauge)

    def _digest_of(self, path: Path, digest: str, gauge: Gauge) -> str:
        found = new_hash(digest, gauge.total_bytes)
        try:
            with path.open("rb", buffering=0) as file:
                for data in _pieces(file):
                    if self._stop.is_set():
                        raise CancelledError("stopped")
                    found.update(data)
                    self._board.came(gauge, len(data), gauge.done_bytes + len(data))
        except OSError as error:
            return f"unknown ({unreadable(path, error).message})"
        return found.hexdigest()


def known_digest(folder: Path, name: str) -> str | None:
    """The checksum that a file should have: its blob's name, or what `hf download --local-dir` noted; else None."""
    path = folder / name
    if path.is_symlink():
        target = path.readlink().name
        return target if _DIGEST.fullmatch(target) else None
    try:  # commit, etag, time: a line each
        lines = (folder / ".cache/huggingface/download" / f"{name}.metadata").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return lines[1] if len(lines) > 1 and _DIGEST.fullmatch(lines[1]) else None


def _pieces(file: object) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_READ_BYTES))
    while num_bytes := file.readinto(buffer):  # type: ignore[attr-defined]
        yield buffer[:num_bytes]
