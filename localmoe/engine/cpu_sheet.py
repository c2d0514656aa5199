"""What is known of CPU families by name: memory channels, clocks, the width of their FMA units.

From the makers' data sheets. Only machines that nobody has measured are judged by it.
"""

import re
from dataclasses import dataclass

CHANNEL_BYTES = 8  # of a DDR4 or DDR5 channel: 64 bits
GIGA = 1e9
FLOP_PER_CYCLE = {  # FP32 FMA, a core; amx_bf16 multiplies faster than that where there are many tokens
    "scalar": 4,
    "avx2": 32,
    "avx2_zen": 32,
    "avx512": 64,
    "avx512_zen": 64,
    "avx512_bf16": 64,
    "amx_bf16": 64,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One socket of a CPU family."""

    name: str
    channels: int
    speed_mt_s: int
    clock_hz: float  # that all cores sustain under vector code
    half_width: bool = False  # AVX-512 on units of 256 bits

    @property
    def peak_bytes_s(self) -> float:
        """All channels with the modules that the family is sold for."""
        return self.channels * self.speed_mt_s * 1e6 * CHANNEL_BYTES


_FAMILIES = tuple(
    (re.compile(pattern, re.IGNORECASE), Family(name, channels, speed, clock * GIGA, half))
    for pattern, name, channels, speed, clock, half in (
        (r"EPYC 9\d\d5", "EPYC 9005", 12, 6000, 3.3, False),
        (r"EPYC 9[\dF]\w4", "EPYC 9004", 12, 4800, 3.1, True),
        (r"EPYC 8\d\d4", "EPYC 8004", 6, 4800, 2.6, True),
        (r"EPYC 7\w\w1\b", "EPYC 7001", 8, 2666, 2.5, False),
        (r"EPYC 7\w\w[23]", "EPYC 7002 or 7003", 8, 3200, 2.8, False),
        (r"EPYC 4\d\d\d", "EPYC 4004 or 4005", 2, 5200, 4.2, True),
        (r"Threadripper PRO 9\d\d\dWX", "Threadripper PRO 9000", 8, 6400, 3.6, False),
        (r"Threadripper PRO 7\d\d\dWX", "Threadripper PRO 7000", 8, 5200, 3.6, True),
        (r"Threadripper PRO", "Threadripper PRO 3000 or 5000", 8, 3200, 3.5, False),
        (r"Threadripper 9\d\d\d", "Threadripper 9000", 4, 6400, 4.0, False),
        (r"Threadripper 7\d\d\d", "Threadripper 7000", 4, 5200, 4.0, True),
        (r"Threadripper", "Threadripper", 4, 3200, 3.6, False),
        (r"Ryzen (\w+ )*[3579] 9\d\d\d", "Ryzen 9000", 2, 5600, 4.5, False),
        (r"Ryzen (\w+ )*[3579] [78]\d\d\d", "Ryzen 7000 or 8000", 2, 5200, 4.4, True),
        (r"Ryzen", "Ryzen", 2, 3200, 3.8, False),
        (r"Xeon.* 69\d\dP", "Xeon 6900", 12, 6400, 2.6, False),
        (r"Xeon.* 6[57]\d\dP", "Xeon 6500 or 6700", 8, 6400, 2.6, False),
        (r"Xeon.*(Platinum|Gold|Silver|Bronze) \d5\d\d", "Xeon Scalable, 5th generation", 8, 5600, 2.6, False),
        (r"Xeon.*(Platinum|Gold|Silver|Bronze) \d4\d\d", "Xeon Scalable, 4th generation", 8, 4800, 2.5, False),
        (r"Xeon.*(Platinum|Gold|Silver|Bronze) \d3\d\d", "Xeon Scalable, 3rd generation", 8, 3200, 2.5, False),
        (
            r"Xeon.*(Platinum|Gold|Silver|Bronze) \d[12]\d\d",
            "Xeon Scalable, 1st or 2nd",
            6,
            2666,
            2.3,
            False,
        ),
        (r"Xeon.* w[79]-\d\d", "Xeon W-3400 or W-3500", 8, 4800, 2.8, False),
        (r"Xeon.* w[35]-\d\d", "Xeon W-2400 or W-2500", 4, 4800, 2.8, False),
        (r"Core.*-1[234]\d\d[PU]", "Core mobile", 2, 4800, 2.6, False),
        (r"Core.*-1[234]\d\d\dH", "Core mobile", 2, 4800, 3.0, False),
        (r"Core.*-1[234]\d\d\d|Core.*Ultra", "Core, 12th generation or later", 2, 5600, 4.2, False),
        (r"Core", "Core", 2, 2933, 3.4, False),
    )
)
_DESKTOP = Family("a desktop CPU", 2, 3200, 3.0 * GIGA)
_SERVER = Family("a server CPU", 8, 3200, 2.6 * GIGA)
_NEW_SERVER = Family("a server CPU with DDR5", 8, 4800, 2.6 * GIGA)
_MOST_DESKTOP_CORES = 24  # of a socket


def family_of(model: str | None, cores_per_socket: int, flags: tuple[str, ...]) -> tuple[Family, bool]:
    """The family that a CPU's model name speaks of, and whether it does: else one by the number of its cores."""
    for pattern, family in _FAMILIES:
        if pattern.search(model or ""):
            return family, True
    if "amx_tile" in flags:
        return _NEW_SERVER, False
    return (_SERVER if cores_per_socket > _MOST_DESKTOP_CORES else _DESKTOP), False
