"""A model's folder in the Hugging Face layout: its config, and every tensor's place in its files.

Reads JSON and headers only, never a tensor's data; what a tensor means is the model's business.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from localmoe.errors import CheckpointError
from localmoe.hub.header import TensorInfo, by, read_header
from localmoe.hub.json_file import fetch_hint, read_json, shown, unreadable
from localmoe.hub.layout import INDEX, SINGLE

__all__ = ["Checkpoint", "TensorInfo", "TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a model cannot do without; `dtypes` are safetensors' names, any of which will do."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """An opened folder: its files agree with their headers and with the index."""

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any] = field(default_factory=dict)  # empty when the model has none
    tensors: dict[str, TensorInfo] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path | str, before_file: Callable[[], None] = lambda: None) -> "Checkpoint":
        """Reads config.json, the index or the single file, and the headers. Any damage is a CheckpointError.

        Large models take seconds: `before_file` is called before each header, and may raise to end it.
        """
        folder = Path(folder)
        _require_folder(folder)
        _refuse_gguf(folder)
        config = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        generation_config = read_json(generation) if _exists(generation) else {}
        return cls(folder, config, generation_config, _read_tensors(folder, before_file))

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, those that no one asks for included."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def validate(self, specs: Iterable[TensorSpec]) -> None:
        """CheckpointError unless every expected tensor is here with its shape and dtype. Other tensors are ignored."""
        specs = list(specs)
        missing = [spec.name for spec in specs if spec.name not in self.tensors]
        if missing:
            raise CheckpointError(
                f"tensor {shown(missing[0])} is missing{_and_more(len(missing), 'tensor')}.",
                f"config.json and the weights in {shown(self.folder)} do not belong together, or files are missing.",
            )
        for spec in specs:
            _check(spec, self.tensors[spec.name])


def _check(spec: TensorSpec, tensor: TensorInfo) -> None:
    if tensor.shape == spec.shape and tensor.dtype in spec.dtypes:
        return
    where = f"tensor {shown(spec.name)} in shard {shown(tensor.file.name)}"
    if tensor.shape != spec.shape:
        raise CheckpointError(
            f"{where} has the shape {by(tensor.shape)}; config.json asks for {by(spec.shape)}.",
            "config.json and the weights do not belong together: get both from the same repository and revision.",
        )
    raise CheckpointError(
        f"{where} is stored as {tensor.dtype}; {' or '.join(spec.dtypes)} is expected.",
        "localmoe reads FP8 E4M3 with 128 x 128 blocks and FP32 scales, and BF16; see `localmoe models`.",
    )


def _require_folder(folder: Path) -> None:
    hint = "give a folder that holds config.json and *.safetensors, or a name from `localmoe models`."
    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, ValueError) as error:
        raise unreadable(folder, error) from error
    if not is_folder:
        raise CheckpointError(f"{shown(folder)} is {'not a folder' if exists else 'not there'}.", hint)


def _refuse_gguf(folder: Path) -> None:
    """A folder of llama.cpp's: without a word on GGUF, a missing config.json would mislead."""
    if not _exists(folder / "config.json") and (found := next(folder.glob("*.[gG][gG][uU][fF]"), None)):
        raise CheckpointError(
            f"{shown(folder)} holds {shown(found.name)}; localmoe does not read GGUF.",
            "get the model's original weights, config.json and *.safetensors; `localmoe models` lists what runs.",
        )


def _exists(path: Path) -> bool:
    """Also true for what is there and unusable: a folder, a broken link."""
    try:
        return path.exists() or path.is_symlink()
    except OSError as error:
        raise unreadable(path, error) from error


def _read_tensors(folder: Path, before_file: Callable[[], None]) -> dict[str, TensorInfo]:
    if _exists(folder / INDEX):
        return _read_shards(folder, weight_map_of(folder / INDEX), before_file)
    if _exists(folder / SINGLE):
        return read_header(folder / SINGLE)
    raise CheckpointError(
        f"{shown(folder)} has no weights: neither {INDEX} nor {SINGLE}.",
        f"{fetch_hint(folder / INDEX, again=False)} GGUF and .bin files are not read.",
    )


def weight_map_of(path: Path) -> dict[str, str]:
    """The index: tensor name -> file name, each file inside the folder."""
    return check_weight_map(read_json(path), path)


def check_weight_map(index: dict[str, Any], path: Path) -> dict[str, str]:
    """The same of an index that was read; `path` is for what is said."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map.", fetch_hint(path))
    for name, file in weight_map.items():
        if not isinstance(file, str) or not is_inside(file):
            raise CheckpointError(
                f"{path.name} puts tensor {shown(name)} into '{shown(file)}', which is no file of this folder.",
                "use the index that came with these weights.",
            )
    return weight_map


def is_inside(file: str) -> bool:
    """Whether a path that a stranger wrote names something below the folder it is put to."""
    parts = file.split("/")
    return file.isprintable() and "\\" not in file and all(p not in ("", ".", "..") for p in parts)


def _read_shards(folder: Path, weight_map: dict[str, str], before_file: Callable[[], None]) -> dict[str, TensorInfo]:
    files = sorted(set(weight_map.values()))
    missing = [file for file in files if not _exists(folder / file)]
    if missing:
        raise CheckpointError(
            f"shard {shown(missing[0])} is missing in {shown(folder)}{_and_more(len(missing), 'shard')}.",
            fetch_hint(folder / missing[0], again=False),
        )
    shards: dict[str, dict[str, TensorInfo]] = {}
    for file in files:
        before_file()
        shards[file] = read_header(folder / PurePosixPath(file))
    return gather(weight_map, shards, folder)


def gather(weight_map: dict[str, str], shards: dict[str, dict[str, TensorInfo]], folder: Path) -> dict[str, TensorInfo]:
    """Every tensor that the index names; CheckpointError when its shard, by its header, does not hold it."""
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise CheckpointError(
                f"{INDEX} puts tensor {shown(name)} into shard {shown(file)}, which does not hold it.",
                fetch_hint(folder / file),
            )
    return {name: shards[file][name] for name, file in weight_map.items()}


def _and_more(count: int, noun: str) -> str:
    return f", and {count - 1:,} more {noun}{'s' if count > 2 else ''}" if count > 1 else ""
