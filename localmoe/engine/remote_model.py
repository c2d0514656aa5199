"""What an engine has open, and whether that is what somebody else asks for."""

from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from localmoe.engine.request import EngineInfo
from localmoe.errors import RemoteError
from localmoe.settings import Settings

ENGINE_SETTINGS = ("context", "threads", "isa", "plan", "cache_dtype", "prefill_chunk")


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model's files and the settings that decide how it is run. Sampling is every request's own."""

    name: str
    folder: str  # resolved
    entry: str  # of the catalogue, which may choose the template; "": none
    files: str  # a digest of names, sizes and times: other files are another model
    settings: dict[str, Any]

    @property
    def key(self) -> str:
        """What its socket is called by."""
        return sha256(f"{self.folder}\0{self.entry}".encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def why_not(self, running: "OpenModel", info: EngineInfo) -> str:
        """Why the engine that has `running` open is not what is asked for here; "" when it is.

        A setting that is left to the engine here may be anything there.
        """
        if self.files != running.files:
            return "its files have changed since"
        for name, asked in self.settings.items():
            there = running.settings.get(name)
            if asked not in (None, "auto", there, _in_force(name, info)):
                return f"its {name.replace('_', ' ')} is {there or _in_force(name, info)}, not {asked}"
        return ""


def open_model_of(settings: Settings) -> OpenModel:
    """What `settings` ask for. ModelNotFoundError when it is nowhere on this machine."""
    from localmoe.hub.catalog import resolve

    source = resolve(settings.model)
    folder = source.folder.resolve()
    entry = source.entry.name if source.entry else ""
    chosen = {name: getattr(settings, name) for name in ENGINE_SETTINGS}
    return OpenModel(source.name, str(folder), entry, _digest(folder), chosen)


def encode_model(model: OpenModel) -> dict[str, Any]:
    """`model` as a dict of plain values."""
    return asdict(model)


def decode_model(data: Any) -> OpenModel:
    """What `encode_model` made `data` of; RemoteError when it is none."""
    try:
        return OpenModel(**data)
    except TypeError as error:
        raise RemoteError(f"what answers there does not say what it has open: {error}") from error


def _in_force(name: str, info: EngineInfo) -> Any:
    """What became of a setting that was left to the engine."""
    known = {"context": info.context_limit, "threads": info.num_threads, "isa": info.isa}
    return known.get(name, info.details.get("kind") if name == "plan" else None)


def _digest(folder: Path) -> str:
    """Empty where there is nothing to look at: opening such a model says why."""
    digest = sha256()
    try:
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            info = path.stat()
            digest.update(f"{path.name}\0{info.st_size}\0{info.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    except OSError:
        return ""
    return digest.hexdigest()
