"""Memory modules out of the firmware's tables."""

import random

import pytest
from recorded import smbios

from localmoe.hardware.dimms import channel_of, read_dimms
from localmoe.hardware.smbios import MemoryDevice, memory_devices

GIB = 1 << 30
# SMBIOS 2.3, from a board of 2012: 27 bytes, no speed as configured; an empty slot after it.
OLD = (
    bytes.fromhex("111b1d00 1a00 feff 4800 4000 0020 09 00 01 02 18 8000 4006 00000000".replace(" ", ""))
    + b"DIMM_A1\0BANK 0\0\0"
    + bytes.fromhex("111b1e00 1a00 feff ffff ffff 0000 09 00 01 00 02 0000 0000 00000000".replace(" ", ""))
    + b"DIMM_A2\0\0"
)


def test_old_tables_are_shorter():
    module, empty = memory_devices(OLD)
    assert module == MemoryDevice("DIMM_A1", "BANK 0", 8 * GIB, "DDR3", 1600, 64)
    assert empty == MemoryDevice("DIMM_A2", "", 0, None, None, None)


@pytest.mark.parametrize(
    ("size", "extended", "nbytes"),
    [(0, 0, 0), (16384, 0, 16 * GIB), (0x8200, 0, 512 << 10), (0x7FFF, 131072, 128 * GIB), (0xFFFF, 0, None)],
)
def test_sizes_have_four_spellings(size, extended, nbytes):
    table = bytearray(smbios(["DIMM_A1 | BANK 0 | 1 | DDR5 | 4800 | 64"]))
    start = table.index(b"\x11\x5c")
    table[start + 0x0C : start + 0x0E] = size.to_bytes(2, "little")
    table[start + 0x1C : start + 0x20] = extended.to_bytes(4, "little")
    assert memory_devices(bytes(table))[0].size_bytes == nbytes


@pytest.mark.parametrize(
    ("configured", "rated", "speed"), [(5600, 6400, 5600), (0, 6400, 6400), (0, 0, None), (0xFFFF, 0, 70000)]
)
def test_the_speed_is_the_one_it_runs_at(configured, rated, speed):
    table = bytearray(smbios(["DIMM_A1 | BANK 0 | 1 | DDR5 | 4800 | 64"]))
    start = table.index(b"\x11\x5c")
    table[start + 0x15 : start + 0x17] = rated.to_bytes(2, "little")
    table[start + 0x20 : start + 0x22] = configured.to_bytes(2, "little")
    table[start + 0x58 : start + 0x5C] = (70000).to_bytes(4, "little")
    assert memory_devices(bytes(table))[0].speed_mt_s == speed


@pytest.mark.parametrize(
    ("slot", "bank", "channel"),
    [
        ("DIMM 0", "P0 CHANNEL A", "0/A"),
        ("DIMM 1", "P1 CHANNEL L", "1/L"),
        ("P2-DIMMC1", "P1_Node0_Channel2_Dimm0", "1/2"),
        ("P1-DIMMA1", "", "1/A"),
        ("CPU1_DIMM_H2", "NODE 2", "1/H"),
        ("DIMM_B2", "BANK 3", "0/B"),
        ("ChannelB-DIMM0", "BANK 2", "0/B"),
        ("Controller1-ChannelA-DIMM0", "BANK 0", "1/A"),
        ("A1", "", None),
        ("PROC 1 DIMM 3", "", None),
        ("DIMM 0", "Not Specified", None),
        ("RAM slot #0", "RAM slot #0", None),
    ],
)
def test_boards_name_their_channels_in_many_ways(slot, bank, channel):
    assert channel_of(MemoryDevice(slot, bank, GIB, "DDR5", 4800, 64)) == channel


def of(tmp_path, *rows):
    file = tmp_path / "sys/firmware/dmi/tables/DMI"
    file.parent.mkdir(parents=True)
    file.write_bytes(smbios(list(rows)))
    return read_dimms(str(tmp_path))


def test_two_modules_of_one_channel_are_one_channel(tmp_path):
    dimms = of(tmp_path, *(f"DIMM_{slot} | BANK 0 | 32768 | DDR5 | 5200 | 64" for slot in ("A1", "A2", "B1", "B2")))
    assert (len(dimms.modules), dimms.num_channels) == (4, 2)
    assert dimms.peak_bytes_s == 2 * 8 * 5200e6


def test_the_slowest_module_sets_the_speed(tmp_path):
    dimms = of(tmp_path, "DIMM_A1 | | 1 | DDR5 | 5600 | 64", "DIMM_B1 | | 1 | DDR5 | 4800 | 64")
    assert dimms.speed_mt_s == 4800


def test_one_module_of_unknown_speed_leaves_it_unknown(tmp_path):
    dimms = of(tmp_path, "DIMM_A1 | | 1 | DDR5 | 5600 | 64", "DIMM_B1 | | 1 | DDR5 | 0 | 64")
    assert (dimms.speed_mt_s, dimms.peak_bytes_s) == (None, None)


def test_damaged_tables_never_raise():
    table = smbios(["DIMM 0 | P0 CHANNEL A | 65536 | DDR5 | 6400 | 64"] * 4)
    for seed in range(500):
        rng = random.Random(seed)
        damaged = bytearray(table[: rng.randrange(len(table) + 1)])
        for index in rng.sample(range(len(damaged)), len(damaged) // 50):
            damaged[index] = rng.randrange(256)
        assert len(memory_devices(bytes(damaged))) <= 8
