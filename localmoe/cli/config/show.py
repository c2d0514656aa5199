"""`localmoe config show`: each value with its origin."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from localmoe.cli.streams import to_stdout
from localmoe.engine.defaults import own_sampling
from localmoe.errors import LocalmoeError
from localmoe.hub.catalog import Source, resolve
from localmoe.hub.json_file import read_json, shown
from localmoe.settings import RULES, Settings, config_file, line_in_config, load_settings

_ROW = "{:<19} {:<28} {}"
_SAMPLING = ("temperature", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting. `where` is for people: what to change for another value."""

    name: str
    value: Any  # None: left to the engine or the model
    origin: str  # flag, environment, config.toml, model, catalogue or default
    where: str
    line: int | None = None  # in config.toml


def show(flags: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints all settings that are in force."""
    settings = load_settings(flags)
    found = in_force(settings)
    if as_json:
        file = config_file()
        data = {"path": str(file), "exists": file.is_file(), "settings": [asdict(one) for one in found]}
        to_stdout(json.dumps(data) + "\n")
    else:
        to_stdout("".join(_ROW.format(one.name, _value(one.value), one.where).rstrip() + "\n" for one in found))


def in_force(settings: Settings) -> list[Shown]:
    """Every setting, in the order of RULES, then the user's own keys."""
    own = _of_model(settings)
    return [*(own.get(name) or _chosen(settings, name) for name in RULES), *_keys(settings)]


def _keys(settings: Settings) -> Iterator[Shown]:
    for name, choice in settings.keys.items():
        line = int(choice.where.rpartition(" ")[2])
        yield Shown(f"keys.{name}", choice.keys, "config.toml", f"config.toml, line {line}", line)


def _chosen(settings: Settings, name: str) -> Shown:
    value, origin = getattr(settings, name), settings.origin(name)
    if origin == "config.toml":
        line = line_in_config(name)
        return Shown(name, value, origin, f"config.toml, line {line}" if line else "config.toml", line)
    if origin == "default" and value is None:
        return Shown(name, None, origin, f"left to the {'model' if name in (*_SAMPLING, 'think') else 'engine'}")
    return Shown(name, value, origin, settings.said_by(name))


def _of_model(settings: Settings) -> dict[str, Shown]:
    """What the model brings with it, of that which nobody chose; nothing of one that is not here or damaged."""
    try:
        source = resolve(settings.model)
        values = own_sampling(_generation_config(source), source.entry)
    except LocalmoeError:
        return {}
    return {
        name: Shown(name, value, origin, f"{_FROM[origin]} {shown(source.name)}")
        for name, (value, origin) in values.items()
        if settings.origin(name) == "default"
    }


_FROM = {"model": "generation_config.json of", "catalogue": "the catalogue's entry of"}


def _generation_config(source: Source) -> dict[str, Any]:
    path = source.folder / "generation_config.json"
    return read_json(path) if path.exists() else {}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "–" if value is None else shown(value)
