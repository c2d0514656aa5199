"""How fast the disk under a folder is read past the page cache: a file of weights there, or one written for it."""

import os
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from tempfile import NamedTemporaryFile

import numpy as np

from localmoe.bench.plain_reader import Setting, read_rate
from localmoe.bench.rows import Listener

SETTINGS = (Setting(4, 4 << 20), Setting(8, 1 << 20))
FIRST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
WRITTEN_BYTES = 512 << 20
SPARE_BYTES = 2 << 30  # that must be left on the disk beside what is written
READ_S = 0.5  # that a read is to last
MOST_FILES = 20_000  # that are looked at to find one of weights


def disk_bytes_s(folder: Path, listener: Listener) -> float | None:
    """Bytes/s of direct reads by a few threads; None, and a warning, where there are none."""
    folder = next(place for place in (folder, *folder.parents) if place.is_dir())
    try:
        if file := _weights_in(folder):
            listener.progress(f"direct reads of {file}")
            return _rate(file)
        if disk_usage(folder).free < WRITTEN_BYTES + SPARE_BYTES:
            listener.warn(f"the disk is not measured: {folder} has no file of weights and no room for one to read")
            return None
        listener.progress(f"direct reads of a file of {WRITTEN_BYTES >> 20} MiB, written to {folder}")
        return _rate_of_new_file(folder)
    except OSError as error:
        listener.warn(f"the disk is not measured: {folder} cannot be read directly ({error.strerror or error})")
        return None


def _weights_in(folder: Path) -> Path | None:
    """The largest file of weights, if it is large enough."""
    best, size, seen = None, FIRST_BYTES, 0
    for place, _, names in os.walk(folder):
        seen += len(names)
        for name in names:
            if name.endswith(".safetensors") and (found := _size(Path(place, name))) >= size:
                best, size = Path(place, name), found
        if seen > MOST_FILES:
            break
    return best


def _size(file: Path) -> int:
    """0 for a link to nowhere."""
    with suppress(OSError):
        return file.stat().st_size
    return 0


def _rate_of_new_file(folder: Path) -> float:
    with NamedTemporaryFile(dir=folder, prefix=".localmoe-measure-") as file:
        piece = np.random.default_rng(0).bytes(1 << 24)  # some disks do not store what repeats
        for _ in range(WRITTEN_BYTES // len(piece)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return _rate(Path(file.name))


def _rate(file: Path) -> float:
    """The better of a few settings; the first, short read says how much the others may take."""
    first = read_rate([file], FIRST_BYTES, SETTINGS[0])
    num_bytes = int(min(MOST_BYTES, max(FIRST_BYTES, READ_S * first)))
    return max(read_rate([file], num_bytes, setting) for setting in SETTINGS)
