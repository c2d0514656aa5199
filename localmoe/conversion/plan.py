"""What a conversion would do, exactly, before it does it: files, bytes, and what is made already."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localmoe.conversion.choice import chosen, converted_config
from localmoe.conversion.journal import FILE, Journal, mark_of, read_journal
from localmoe.conversion.target import Target, make_target
from localmoe.errors import CheckpointError, OutOfMemoryError, UsageError
from localmoe.hub.amount import amount
from localmoe.hub.checkpoint import INDEX, Checkpoint, TensorInfo
from localmoe.hub.json_file import MAX_JSON_BYTES, shown
from localmoe.model.config import read_config
from localmoe.model.tensors import expected_tensors

CONFIG = "config.json"
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".npz")
_SPARE_BYTES = 1 << 20  # for the index, the journal and folders


@dataclass(frozen=True)
class ConversionPlan:
    """All that is known before the first byte is written."""

    name: str  # what the user calls the model
    source: Path
    out: Path
    config: Mapping[str, Any]  # the converted one
    targets: tuple[Target, ...]
    is_sharded: bool  # with an index
    small_files: tuple[Path, ...]
    chosen: frozenset[str]
    journal: Journal  # of what an earlier run made
    free_bytes: int

    @property
    def unfinished(self) -> Path:
        """Where it grows until it is whole: a folder under its own name is complete."""
        return unfinished_of(self.out)

    @property
    def missing(self) -> tuple[Target, ...]:
        """The files that are still to be made."""
        return tuple(target for target in self.targets if not self.has(target))

    def has(self, target: Target) -> bool:
        """Whether an earlier run made it."""
        path = self.unfinished / target.name
        return target.name in self.journal.shards and path.is_file() and path.stat().st_size == target.nbytes

    @property
    def source_bytes(self) -> int:
        """Of the tensors that are read."""
        return sum(target.source_bytes for target in self.targets)

    @property
    def total_bytes(self) -> int:
        """Of the files that come of it."""
        return sum(target.nbytes for target in self.targets) + sum(_size(path) for path in self.small_files)

    @property
    def missing_bytes(self) -> int:
        """Of those that are still to be made."""
        return sum(target.nbytes for target in self.missing) + sum(_size(path) for path in self.small_files)

    def require_room(self) -> None:
        """OutOfMemoryError when the file system has less room than is missing."""
        short = self.missing_bytes + _SPARE_BYTES - self.free_bytes
        if short > 0:
            raise OutOfMemoryError(
                f"{self.name} in FP8 needs {amount(self.missing_bytes)} more on the disk of {shown(self.out.parent)}, "
                f"which has {amount(self.free_bytes)} free.",
                f"free {amount(short)} there, or name a folder on a larger disk.",
                missing_bytes=short,
            )


def plan_conversion(name: str, source: Path, out: Path) -> ConversionPlan:
    """Reads config and headers. UsageError for what cannot be converted or would overwrite, else ModelError."""
    _refuse_place(source, out)
    checkpoint = Checkpoint.open(source)
    config = read_config(checkpoint.config)
    if config.weight_format != "bf16":
        raise UsageError(f"{shown(name)} is FP8 already.", f"it runs as it is: localmoe chat -m {shown(name)}")
    checkpoint.validate(expected_tensors(config))
    tensors = checkpoint.tensors
    names = chosen(checkpoint.config, tensors)
    return ConversionPlan(
        name,
        source,
        out,
        converted_config(checkpoint.config),
        tuple(make_target(file.name, own, names) for file, own in _by_file(tensors).items()),
        (source / INDEX).exists(),
        _small_files(source),
        names,
        _journal(source, out, mark_of(checkpoint.config, tensors.values())),
        _free_bytes(out.parent) + _remains_bytes(unfinished_of(out)),
    )


def unfinished_of(out: Path) -> Path:
    """Beside `out`, so that it can be renamed to it."""
    return out.with_name(f"{out.name}.unfinished")


def _refuse_place(source: Path, out: Path) -> None:
    if out.resolve().is_relative_to(source.resolve()) or source.resolve().is_relative_to(out.resolve()):
        raise UsageError(f"{shown(out)} is where the original lies.", "name another folder.")
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"{shown(out)} is there already.", "name another folder, or remove that one first.")


def _journal(source: Path, out: Path, mark: str) -> Journal:
    """An earlier run's of just this source, or a new one."""
    folder = unfinished_of(out)
    fresh = Journal(folder / FILE, str(source.resolve()), mark)
    if not folder.exists():
        return fresh
    found = read_journal(folder)
    own = f"{FILE}.new"  # of a run that was killed before its first note had its name
    if found is None and any(path.name != own for path in folder.iterdir()):
        raise UsageError(
            f"{shown(folder)} is there and not from a conversion.", "move it away, or name another folder."
        )
    if found is not None and found.mark != mark:
        raise UsageError(
            f"{shown(folder)} was begun from something else ({shown(found.source)}, or an earlier state of it).",
            "remove it to begin again, or name another folder.",
        )
    return found or fresh


def _by_file(tensors: Mapping[str, TensorInfo]) -> dict[Path, list[TensorInfo]]:
    files: dict[Path, list[TensorInfo]] = {}
    for tensor in sorted(tensors.values(), key=lambda one: one.file):
        files.setdefault(tensor.file, []).append(tensor)
    if len({file.name for file in files}) < len(files):
        raise UsageError("two of the model's files have the same name in two folders.", "rename one in the index.")
    return files


def _small_files(source: Path) -> tuple[Path, ...]:
    """What goes over as it is: tokenizer, generation_config.json, the code that other programs run it with."""
    ours = (CONFIG, INDEX, FILE)
    found = [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and not path.name.startswith(".") and path.name not in ours and path.suffix not in WEIGHTS
    ]
    if large := next((path for path in found if _size(path) > MAX_JSON_BYTES), None):
        raise CheckpointError(f"{shown(large.name)} is too large to be copied along.", "move it out of the folder.")
    return tuple(found)


def _remains_bytes(folder: Path) -> int:
    """Of what a killed run was writing, which goes."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*.new"))


def _size(path: Path) -> int:
    return path.stat().st_size


def _free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
