"""The firmware's table of memory devices: structures of type 17 (SMBIOS Reference Specification, section 7.18)."""

from collections.abc import Iterator
from dataclasses import dataclass

_MEMORY_DEVICE, _END_OF_TABLE = 17, 127
_KINDS = {
    0x18: "DDR3", 0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x20: "HBM",
    0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryDevice:
    """One slot, with a module or without."""

    slot: str
    bank: str
    size_bytes: int | None  # 0: empty; None: the firmware does not know
    kind: str | None
    speed_mt_s: int | None  # as configured, else as the module could
    width_bits: int | None


def memory_devices(table: bytes) -> list[MemoryDevice]:
    """All slots, in the table's order; those before the damage when it is damaged."""
    return [_memory_device(area, strings) for kind, area, strings in _structures(table) if kind == _MEMORY_DEVICE]


def _structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """Type, formatted area and strings of each: the strings follow it, each ends with a zero, the last with two."""
    start = 0
    while start + 4 <= len(table) and table[start] != _END_OF_TABLE:
        length = table[start + 1]
        end = table.find(b"\0\0", start + length)
        if length < 4 or end < 0:
            return
        strings = table[start + length : end].split(b"\0")
        yield table[start], table[start : start + length], [s.decode(errors="replace").strip() for s in strings]
        start = end + 2


def _memory_device(area: bytes, strings: list[str]) -> MemoryDevice:
    configured, could = _speed(area, 0x20, 0x58), _speed(area, 0x15, 0x54)
    return MemoryDevice(
        slot=_string(area, 0x10, strings),
        bank=_string(area, 0x11, strings),
        size_bytes=_size(area),
        kind=_KINDS.get(_number(area, 0x12, 1) or 0),
        speed_mt_s=configured or could,
        width_bits=width if (width := _number(area, 0x0A, 2)) and width != 0xFFFF else None,
    )


def _size(area: bytes) -> int | None:
    """Megabytes, or kilobytes where bit 15 is set; 0x7fff sends to the extended size."""
    size = _number(area, 0x0C, 2)
    if size is None or size == 0xFFFF:
        return None
    if size == 0x7FFF:
        extended = _number(area, 0x1C, 4)
        return None if extended is None else (extended & 0x7FFFFFFF) << 20
    return (size & 0x7FFF) << (10 if size & 0x8000 else 20)


def _speed(area: bytes, offset: int, extended: int) -> int | None:
    """MT/s; 0 is unknown, and 0xffff sends to the extended field."""
    speed = _number(area, offset, 2)
    return (_number(area, extended, 4) if speed == 0xFFFF else speed) or None


def _string(area: bytes, offset: int, strings: list[str]) -> str:
    number = _number(area, offset, 1) or 0
    return strings[number - 1] if 0 < number <= len(strings) else ""


def _number(area: bytes, offset: int, size: int) -> int | None:
    """None beyond the end: older firmware writes shorter structures."""
    return int.from_bytes(area[offset : offset + size], "little") if offset + size <= len(area) else None
