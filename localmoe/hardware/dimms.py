"""Memory modules: from the firmware's SMBIOS tables, which only root may read, or else from the EDAC driver."""

import re
from collections.abc import Iterable

from localmoe.hardware import files
from localmoe.hardware.machine import Dimm, Dimms
from localmoe.hardware.smbios import MemoryDevice, memory_devices

SMBIOS = "/sys/firmware/dmi/tables/DMI"
EDAC = "/sys/devices/system/edac/mc"
# "P0 CHANNEL A", "P1_Node0_Channel3_Dimm0", "Controller1-ChannelA-DIMM0"; then "P1-DIMMA1", "DIMM_B2", "ChannelB-DIMM0"
_WITH_SOCKET = re.compile(r"(?:P|CPU|Controller)\s?(\d+).*?Channel[\s_-]?([A-P]\b|\d+)", re.IGNORECASE)
_WITHOUT = re.compile(r"(?:(?:P|CPU)(\d+)[\s_-]*)?(?:DIMM|Channel)[\s_-]?([A-P])(?:\d|\b)", re.IGNORECASE)
_KIND = re.compile(r"(?:LP)?DDR\d")


def read_dimms(root: str) -> Dimms | None:
    """The modules; None when neither the firmware nor a driver tells."""
    try:
        devices = memory_devices(files.read_bytes(root, SMBIOS))
    except (OSError, ValueError):
        devices = []
    return _from_smbios(devices) if devices else _from_edac(root)


def _from_smbios(devices: list[MemoryDevice]) -> Dimms:
    modules = tuple(
        Dimm(d.slot or d.bank, channel_of(d), d.size_bytes, d.kind, d.speed_mt_s, d.width_bits)
        for d in devices
        if d.size_bytes != 0
    )
    return Dimms(modules, len(devices), _channels(modules), _slowest(modules), "SMBIOS")


def channel_of(device: MemoryDevice) -> str | None:
    """Socket and channel, "0/A", where the board names its slots so."""
    for pattern in (_WITH_SOCKET, _WITHOUT):
        for name in (device.bank, device.slot):
            if found := pattern.search(name):
                return f"{found[1] or 0}/{found[2].upper()}"
    return None


def _from_edac(root: str) -> Dimms | None:
    """The driver of the memory controllers shows modules that are there, by size and kind."""
    folders = [
        f"{EDAC}/{controller}/{name}"
        for controller in files.names(root, EDAC)
        for name in files.names(root, f"{EDAC}/{controller}")
        if re.fullmatch(r"dimm\d{1,3}", name)
    ]
    modules = tuple(_edac_dimm(root, folder) for folder in folders if files.read_int(root, f"{folder}/size") != 0)
    return Dimms(modules, None, None, None, "EDAC") if modules else None


def _edac_dimm(root: str, folder: str) -> Dimm:
    size_mb, kind = files.read_int(root, f"{folder}/size"), files.read(root, f"{folder}/dimm_mem_type") or ""
    return Dimm(
        slot=files.read_line(root, f"{folder}/dimm_label") or folder.removeprefix(f"{EDAC}/"),
        channel=None,
        size_bytes=None if size_mb is None else size_mb << 20,
        kind=found[0] if (found := _KIND.search(kind)) else None,
        speed_mt_s=None,
        width_bits=None,
    )


def _channels(modules: Iterable[Dimm]) -> int | None:
    channels = {module.channel for module in modules}
    return None if None in channels else len(channels) or None


def _slowest(modules: Iterable[Dimm]) -> int | None:
    speeds = [module.speed_mt_s for module in modules]
    return None if None in speeds else min((speed for speed in speeds if speed), default=None)
