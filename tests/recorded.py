"""Recorded machines: tests/machines/*.txt, each unpacked into a folder that `probe` takes for the root.

A file is a list of sections, each of them a path and what it holds:

    === /proc/sys/vm/max_map_count          a file
    === /sys/x/cpu{c}/size | c = 0-63       one for each c: in path and text {…} is a Python expression of c
    === /proc/cpuinfo | c = 0-63            without {c} in the path: the text so often, one after the other
    === /sys/class/block/sda -> ../x        a link
    === /sys/firmware/dmi/tables/DMI denied a file that this user may not read
    === /var/lib/models/                    a folder
    === dmi                                 rows of slot | bank | MiB | kind | MT/s | width, written as SMBIOS tables
    === nvml                                what the NVIDIA driver answers, in TOML (see fake_nvml.py)

A path that comes twice is one file with both texts. Lines with # in front of the first section are comments.
"""

import errno
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from fake_nvml import FakeNvml

from localmoe.hardware import Machine, probe

FOLDER = Path(__file__).parent / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
PATHS = {"models": Path("/home/me/.cache/huggingface"), "data": Path("/home/me/.local/share/localmoe")}
_os_open = os.open
_KINDS = {"DDR4": 0x1A, "DDR5": 0x22, "LPDDR5": 0x23, "Unknown": 0x02}


@dataclass(frozen=True)
class Recorded:
    root: Path
    nvml: FakeNvml | None
    denied: frozenset[str]  # tests may run as root, whom no file mode stops

    def probe(self) -> Machine:
        with patch("os.open", self._open):
            return probe(self.root, PATHS, self.nvml)

    def _open(self, path: str, *arguments: int) -> int:
        if str(path).removeprefix(str(self.root)) in self.denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return _os_open(path, *arguments)


def recorded(name: str, folder: Path) -> Recorded:
    """Unpacks tests/machines/`name`.txt."""
    nvml, denied = None, set()
    for head, text in _sections((FOLDER / f"{name}.txt").read_text()):
        if head == "nvml":
            nvml = FakeNvml(tomllib.loads(text))
        elif head == "dmi":
            _write(folder, "/sys/firmware/dmi/tables/DMI", smbios(text.splitlines()))
        elif head.endswith(" denied"):
            denied.add(path := head.removesuffix(" denied"))
            _write(folder, path, text.encode())
        elif " -> " in head:
            _link(folder, *head.split(" -> "))
        else:
            _files(folder, head, text)
    return Recorded(folder, nvml, frozenset(denied))


def _sections(text: str) -> list[tuple[str, str]]:
    parts = re.split(r"^=== (.+)\n", text, flags=re.MULTILINE)[1:]
    return list(zip((head.strip() for head in parts[::2]), parts[1::2], strict=True))


def _files(folder: Path, head: str, text: str) -> None:
    path, _, loop = (part.strip() for part in head.partition("|"))
    if path.endswith("/"):
        (folder / path.strip("/")).mkdir(parents=True, exist_ok=True)
        return
    if not loop:
        return _write(folder, path, text.encode())
    first, last = map(int, loop.removeprefix("c =").split("-"))
    for c in range(first, last + 1):
        _write(folder, _filled(path, c), _filled(text, c).encode())


def _filled(text: str, c: int) -> str:
    return re.sub(r"\{([^{}]+)\}", lambda found: str(eval(found[1], {"c": c})), text)


def _write(folder: Path, path: str, content: bytes) -> None:
    file = folder / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as out:
        out.write(content)


def _link(folder: Path, path: str, target: str) -> None:
    link = folder / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def smbios(rows: list[str]) -> bytes:
    """A firmware's table: a BIOS structure, the memory devices, the end."""
    table = b"\x00\x18\x00\x00\x01\x02\x00\xf0\x03" + bytes(15) + b"Maker\x001.0\x00\x00"
    for number, row in enumerate(filter(None, rows)):
        table += _memory_device(number, *(field.strip() for field in row.split("|")))
    return table + b"\x7f\x04\xfe\xff\x00\x00"


def _memory_device(number: int, slot: str, bank: str, size: str, kind: str, speed: str, width: str) -> bytes:
    size_mib, width_bits = int(size), int(width)
    small = min(size_mib, 0x7FFF)
    area = bytearray(0x5C)
    area[0:2] = 17, len(area)
    for offset, value, length in (
        (0x02, 0x1100 + number, 2),
        (0x08, width_bits + width_bits // 8, 2),
        (0x0A, width_bits, 2),
        (0x0C, small, 2),
        (0x10, 1, 1),
        (0x11, 2 if bank else 0, 1),
        (0x12, _KINDS[kind], 1),
        (0x15, int(speed), 2),
        (0x1C, size_mib if small == 0x7FFF else 0, 4),
        (0x20, int(speed), 2),
    ):
        area[offset : offset + length] = value.to_bytes(length, "little")
    return bytes(area) + "".join(f"{name}\0" for name in (slot, bank) if name).encode() + b"\0"
