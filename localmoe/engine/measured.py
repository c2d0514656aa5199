"""What was measured on this machine, kept between runs in the user's cache folder."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from localmoe.hardware import Machine
from localmoe.settings import cache_dir

FORMAT = 1  # of the file: others are ignored, and written anew by the next measurement
MOST_BYTES = 1 << 20  # no file of ours is larger

Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """One GPU, in `Machine.gpus`' order. None: not measured."""

    name: str
    memory_bytes_s: float | None = None
    gemm_flop_s: float | None = None
    attention_flop_s: float | None = None
    h2d_bytes_s: float | None = None  # from pinned memory, alone
    launch_s: float | None = None
    event_s: float | None = None  # to record an event and wait for it
    layer_s: float | None = None  # a hand-over from GPU to CPU and back
    peer_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Plain numbers in bytes/s, FLOP/s and seconds; None or empty: not measured."""

    when: str  # ISO 8601, UTC
    version: str  # of localmoe
    isa: str  # the kernels' target
    num_threads: int
    stream_bytes_s: float | None = None  # the fastest streaming read, all threads
    node_bytes_s: Points = ()  # of each NUMA node by its number, read by its own cores
    fma_flop_s: float | None = None
    read_fraction: float | None = None  # of the streaming read, by a BF16 GEMV
    fp8_flop_s: Points = ()  # (tokens at once, FLOP/s) with FP8 weights
    bf16_flop_s: Points = ()
    prompt_attention_flop_s: float | None = None
    token_attention_flop_s: float | None = None
    latent_bytes_s: float | None = None  # of the latents that one token's attention reads, beside its arithmetic
    activation_bytes_s: float | None = None  # of what a prompt's ops pass on to each other
    layer_s: float | None = None  # for each layer and run, beside arithmetic and memory
    step_s: float | None = None  # for each step of decode, beside the network
    logit_s: float | None = None  # for each entry of the vocabulary, to choose a token
    disk_bytes_s: float | None = None  # direct reads
    disk_folder: str | None = None
    gpus: tuple[MeasuredGpu, ...] = ()
    h2d_together_bytes_s: float | None = None  # all GPUs at once

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measured":
        """What `to_json` gave; ValueError for anything else."""
        try:
            values = dict(data)
            values["gpus"] = tuple(MeasuredGpu(**_checked(MeasuredGpu, gpu)) for gpu in values["gpus"])
            for name in ("node_bytes_s", "fp8_flop_s", "bf16_flop_s"):
                values[name] = tuple((_count(n), _positive(name, value)) for n, value in values[name])
            return cls(**_checked(cls, values))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no measurement of this version: {error}") from None


def load_measured(machine: Machine) -> Measured | None:
    """What was measured on this very machine; None where nothing was, or the file is damaged or of another version."""
    try:
        with measured_file(machine).open("rb") as file:
            data = json.loads(file.read(MOST_BYTES))
        return Measured.from_json(data["measured"]) if data["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def save_measured(machine: Machine, measured: Measured) -> Path:
    """Writes the file whole or not at all, and returns its path; OSError where that cannot be done."""
    path = measured_file(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": FORMAT, "measured": measured.to_json()}, indent=1) + "\n"
    with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise
    return path


def measured_file(machine: Machine) -> Path:
    """Where the measurements of `machine` are kept: a machine that is changed has another file."""
    return cache_dir() / f"measured-{machine_key(machine)}.json"


def machine_key(machine: Machine) -> str:
    """A short hash of what speeds depend on: CPU, cores, nodes, modules, GPUs and kernel target."""
    dimms, cpu = machine.memory.dimms, machine.cpu
    identity = (
        (cpu.model, cpu.num_sockets, machine.limits.usable_cores, cpu.targets[-1:]),
        [(node.number, len(node.cpus), _gigabytes(node.total_bytes)) for node in machine.nodes],
        _gigabytes(machine.memory.total_bytes),
        (dimms.num_channels, dimms.speed_mt_s, len(dimms.modules)) if dimms and dimms.source == "SMBIOS" else None,
        [(gpu.name, gpu.pci_address, str(gpu.pcie_most)) for gpu in machine.gpus],
    )
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]


def _gigabytes(num_bytes: int | None) -> int | None:
    """In whole GB: a few MB more or less are the kernel's doing."""
    return None if num_bytes is None else round(num_bytes / 1e9)


def _checked(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of the dataclass `cls`, all of them, each of its type."""
    known = {field.name: field.type for field in fields(cls)}
    if values.keys() != known.keys():
        raise ValueError(f"{', '.join(sorted(values.keys() ^ known.keys()))}: not of this version")
    for name, value in values.items():
        kind = known[name]
        if kind == float | None and value is not None:
            _positive(name, value)
        elif kind in (str, str | None) and not (isinstance(value, str) or (value is None and kind == str | None)):
            raise ValueError(f"{name} is {value!r}")
    _count(values.get("num_threads", 1))
    return dict(values)


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
