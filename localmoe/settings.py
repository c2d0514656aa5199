"""What the user chose, and where: flag > LOCALMOE_* > config.toml > default.

Of the values that may be None, None means that the model's generation_config or the engine decides.
"""

import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from localmoe.errors import UsageError
from localmoe.key_choices import KEYS, KeyChoice, key_choices

Origin = Literal["flag", "environment", "config.toml", "default"]

KERNEL_TARGETS = ("scalar", "avx2", "avx2_zen", "avx512", "avx512_zen", "avx512_bf16", "amx_bf16")
CACHE_DTYPES = ("float32", "bf16")
MAX_TTFT_TARGET_S, MAX_TPOT_TARGET_MS = 86_400.0, 60_000.0
PLANS = ("auto", "cpu", "slp", "dslp", "disk")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every choice, with its origin."""

    model: str = "guide"  # a catalogue name or a folder
    context: int | None = None  # tokens; None: the model's, as far as memory goes
    threads: int | None = None  # None: one per physical core, one left for the screen
    isa: str | None = None  # None: the best that CPU and kernel support
    cache_dtype: str = "float32"
    plan: str = "auto"  # what computes where; "auto": the fastest that fits
    prefill_chunk: int = 512  # most tokens read in one run
    ttft_target_s: float = 30.0  # to an answer's first token: prompts that can keep to it are read in time for it
    tpot_target_ms: float = 50.0  # for each token after it: decode's share of the cores beside prefill follows it
    temperature: float | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    think: bool | None = None
    share: bool = True  # one engine for all localmoe processes of this user that want the same
    theme: str = "localmoe-dark"
    keys: Mapping[str, KeyChoice] = field(default_factory=dict)  # by the command's id; checked where keys are known
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False)

    def origin(self, name: str) -> Origin:
        """Where the value of `name` comes from."""
        return self.origins.get(name, "default")

    def said_by(self, name: str) -> str:
        """What a user would change: --plan, LOCALMOE_PLAN, config.toml, or default."""
        origin = self.origin(name)
        own = {"flag": f"--{name.replace('_', '-')}", "environment": f"LOCALMOE_{name.upper()}"}
        return own.get(origin, origin)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting may be: `read` makes a value of it, or raises ValueError."""

    allowed: str
    read: Callable[[Any], Any]
    choices: tuple[str, ...] = ()  # all there are, where they can be counted


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from all layers, None among `flags` meaning not given; UsageError names what is wrong, and where."""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    layers: tuple[tuple[Origin, Mapping[str, tuple[str, Any]]], ...] = (
        ("config.toml", _from_config(config_file())),
        ("environment", _from_environment()),
        ("flag", {k: (f"--{k.replace('_', '-')}", v) for k, v in (flags or {}).items() if v is not None}),
    )
    for origin, layer in layers:
        for name, (where, raw) in layer.items():
            values[name], origins[name] = _checked(name, where, raw), origin
    return Settings(**values, keys=key_choices(config_file()), origins=origins)


def config_file() -> Path:
    """The file that settings are read from."""
    return config_dir() / "config.toml"


def config_dir() -> Path:
    """Where config.toml lies."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def cache_dir() -> Path:
    """What can be made again: benchmark checkpoints."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """What the user would miss."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def history_file() -> Path:
    """Where chats are kept."""
    return data_dir() / "chats.db"


def _xdg(variable: str, default: str) -> Path:
    base = Path(os.environ.get(variable, ""))  # a relative path is to be ignored, says the specification
    return (base if base.is_absolute() else Path.home() / default) / "localmoe"


def _from_environment() -> dict[str, tuple[str, str]]:
    """Set variables that are not empty, by setting: the variable and its text."""
    names = {name: f"LOCALMOE_{name.upper()}" for name in RULES}
    return {name: (variable, text) for name, variable in names.items() if (text := os.environ.get(variable))}


def read_toml_text(path: Path) -> str | None:
    """What `path` holds; None without a file. UsageError for what is none, without opening it: a pipe would block."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} cannot be read: it is not a regular file", "put a file there, or move it away")
        return path.read_bytes().decode("utf-8")  # line ends as they are
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "correct it, or move it away") from error


def _from_config(file: Path) -> dict[str, tuple[str, Any]]:
    """The file's values by setting; empty when there is no file."""
    if (text := read_toml_text(file)) is None:
        return {}
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} cannot be read: {error}", "correct it, or move it away") from error
    data.pop(KEYS, None)
    for key in data:
        check_key(key, f"{file}: ")
    return {name: (f"{file}: {name}", value) for name, value in data.items()}


def check_key(key: str, where: str = "") -> None:
    """UsageError for what is no setting."""
    if key not in RULES:
        raise UsageError(f"{where}unknown key {key!r}", _closest(key))


def line_in_config(key: str) -> int | None:
    """Where config.toml sets `key`; None: it does not, or in a way that only a parser sees."""
    import re

    wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*=""")
    for number, line in enumerate((read_toml_text(config_file()) or "").splitlines(), 1):
        if line.lstrip().startswith("["):  # a table: settings stand before all of them
            return None
        if wanted.match(line):
            return number
    return None


def _closest(key: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key.lower().replace("-", "_"), RULES, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(RULES)


def _checked(name: str, where: str, raw: Any) -> Any:
    rule = RULES[name]
    try:
        return rule.read(raw)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{where} must be {rule.allowed}, not {raw!r}", f"choose {rule.allowed}") from None


def _whole(low: int, high: int, what: str) -> Rule:
    def read(raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str) or not low <= int(raw) <= high:
            raise ValueError
        return int(raw)

    return Rule(f"{what} from {low:,} to {high:,}", read)


def _number(low: float, high: float, *, above: bool = False) -> Rule:
    def read(raw: Any) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise ValueError
        value = float(raw)
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            raise ValueError
        return value

    return Rule(f"above {low:g} and at most {high:g}" if above else f"a number from {low:g} to {high:g}", read)


def _one_of(*names: str) -> Rule:
    def read(raw: Any) -> str:
        if raw not in names:
            raise ValueError
        return cast(str, raw)

    return Rule(" or ".join(names), read, names)


def _text(what: str) -> Rule:
    def read(raw: Any) -> str:
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError
        return raw

    return Rule(what, read)


def _yes_or_no(raw: Any) -> bool:
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or raw.lower() not in known:
        raise ValueError
    return known[raw.lower()]


RULES: Mapping[str, Rule] = {
    "model": _text("a catalogue name or a folder"),
    "context": _whole(1, 1 << 24, "a number of tokens"),
    "threads": _whole(1, 1024, "a number"),
    "isa": _one_of(*KERNEL_TARGETS),
    "cache_dtype": _one_of(*CACHE_DTYPES),
    "plan": _one_of(*PLANS),
    "prefill_chunk": _whole(1, 1 << 16, "a number of tokens"),
    "ttft_target_s": _number(0, MAX_TTFT_TARGET_S, above=True),
    "tpot_target_ms": _number(0, MAX_TPOT_TARGET_MS, above=True),
    "temperature": _number(0, 100),
    "top_p": _number(0, 1, above=True),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0, 100, above=True),
    "seed": _whole(0, (1 << 63) - 1, "a number"),
    "max_tokens": _whole(1, 1 << 24, "a number of tokens"),
    "think": Rule("true or false", _yes_or_no, ("true", "false")),
    "share": Rule("true or false", _yes_or_no, ("true", "false")),
    "theme": _text("a theme's name"),
}

ABOUT: Mapping[str, str] = {
    "model": "The model that answers when none is named.",
    "context": "Most tokens in a conversation. Fewer need less memory.",
    "threads": "Worker threads. Left alone: one for each physical core, one core left for the screen.",
    "isa": "The kernels that compute. Left alone: the best that this CPU runs.",
    "cache_dtype": "What the latent cache is kept in. bf16 takes half the memory.",
    "plan": "What computes where. auto takes the fastest that fits.",
    "prefill_chunk": "Most tokens of a prompt read in one run.",
    "ttft_target_s": "How soon an answer should begin, in seconds. Prompts are read in an order that keeps to it.",
    "tpot_target_ms": "How long each token may take while another prompt is read. Answers get the cores for it.",
    "temperature": "How freely tokens are chosen. 0 always takes the likeliest.",
    "top_p": "Choose among the likeliest tokens, up to this probability in all.",
    "min_p": "Leave out what is less likely than this share of the likeliest.",
    "repetition_penalty": "Above 1, what was said becomes less likely. 1 is off.",
    "seed": "The same seed gives the same answer.",
    "max_tokens": "Most tokens in an answer. Left alone: until the context is full.",
    "think": "Whether the model thinks before it answers, where it can do both.",
    "share": "One engine for all localmoe programs of yours that want the same model.",
    "theme": "The colours.",
}

assert list(RULES) == [f.name for f in fields(Settings) if f.name not in (KEYS, "origins")]
