"""How far a conversion has come: a file in the unfinished folder, replaced whole after each shard.

It stays in the finished folder, as a record of where the weights come from and how near to the original they are.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localmoe.conversion.accuracy import MatrixError, from_json, to_json
from localmoe.hub.checkpoint import TensorInfo

FILE = "conversion.json"
FORMAT = 1


@dataclass
class Journal:
    """Which shards are made, and what came of their matrices. `mark` is for what the source was."""

    path: Path
    source: str
    mark: str
    shards: dict[str, tuple[MatrixError, ...]] = field(default_factory=dict)

    def add(self, shard: str, matrices: Iterable[MatrixError]) -> None:
        """The shard is there under its name. OSError where the disk refuses."""
        self.shards[shard] = tuple(matrices)
        self.save()

    def save(self) -> None:
        """On the disk, whole or not at all."""
        shards = {name: [to_json(one) for one in self.shards[name]] for name in sorted(self.shards)}
        data = {"format": FORMAT, "source": self.source, "mark": self.mark, "shards": shards}
        put(self.path, (json.dumps(data, indent=1) + "\n").encode())

    @property
    def matrices(self) -> list[MatrixError]:
        """Of all shards that are made."""
        return [one for name in sorted(self.shards) for one in self.shards[name]]


def read_journal(folder: Path) -> Journal | None:
    """What an earlier run left in `folder`; None where it left none, or one that says nothing."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        shards = {name: tuple(map(from_json, own)) for name, own in data["shards"].items()}
        if data["format"] != FORMAT:
            return None
        return Journal(path, str(data["source"]), str(data["mark"]), shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def mark_of(config: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> str:
    """Changes with the source: its config, its files' sizes and times, and where their tensors lie."""
    parts: list[Any] = [FORMAT, config]
    files = set()
    for tensor in tensors:
        parts.append((tensor.name, tensor.dtype, tensor.shape, tensor.start))
        files.add(tensor.file)
    for file in sorted(files):
        status = file.stat()
        parts.append((file.name, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def put(path: Path, data: bytes) -> None:
    """A small file, on the disk before it has its name."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def settle(folder: Path) -> None:
    """The names in `folder` on the disk too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
