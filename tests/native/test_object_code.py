"""No file's code has instructions that its processors may lack; the wide ones have those that they exist for.

Looked at is the module that this process runs, whose symbols tell from which file a function is.
"""

import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from localmoe import _native as native
from localmoe.settings import KERNEL_TARGETS

NATIVE = Path(__file__).parents[2] / "native"
CMAKE = (NATIVE / "CMakeLists.txt").read_text()
TARGETS = {path.name for path in NATIVE.glob("targets/*.cpp")}
SHARED = ""  # functions of several files: the linker kept any one of them, so they must run everywhere
AVX = r"^v[a-z]|[yz]mm"  # mnemonics of AVX and all later vectors start with v
AVX512 = r"zmm|%k[0-7]|[xy]mm(1[6-9]|2\d|3[01])\b|\{1to\d+\}"
BF16 = r"^(vdpbf16ps|vcvtne\w*bf16)\b"
VBMI = r"^(vperm[it]2b|vpermb|vpmultishiftqb)\b"
# VNNI, FP16, AMX; IFMA, VBMI2, bit algorithms, GFNI and the vector ciphers.
LATER = (
    r"^(vpdp\w+|vfn?m(add|sub)\w+[ps]h|v(add|sub|mul|div|max|min|sqrt|rcp|getexp|reduce|rndscale)[ps]h|vcvt(?!ps2ph\b)\w+2phx?|vmovw"
    r"|tile\w+|tdp\w+|vpmadd52\w+|vp(compress|expand)[bw]|vpsh[lr]d\w+|vpopcnt\w+|vpshufbitqmb|vgf2p8\w+|vaes\w+|vpclmul\w+)\b"
)


def flags_of(name: str) -> list[str]:
    """The words of set(NAME ...) in CMakeLists.txt."""
    words = re.search(rf"^set\({name} ([^)]*)\)", CMAKE, re.MULTILINE)[1].split()
    groups = [flags_of(word[2:-1]) if word.startswith("${") else [word] for word in words]
    return [flag for group in groups for flag in group]


def output_of(*command: str) -> str:
    return subprocess.run([*command, native.__file__], capture_output=True, text=True, check=True).stdout


def files_by_address() -> dict[int, str]:
    """The file of each function. In a table of symbols a file's own follow its name; those of all come last."""
    files, file = {}, SHARED
    for line in output_of("readelf", "-sW").splitlines():
        match line.split():
            case [_, _, _, "FILE", _, _, _, *name]:
                file = name[0] if name else SHARED
            case [_, address, _, "FUNC", "LOCAL", _, section, *_] if section != "UND":
                files[int(address, 16)] = file
    return files


@cache
def code() -> dict[str, list[str]]:
    """Each file's instructions, one a line; of what is not known to be of one file, under SHARED."""
    files, found, file = files_by_address(), defaultdict(list), SHARED
    for line in output_of("objdump", "-d", "--no-show-raw-insn").splitlines():
        if line.endswith(">:"):
            file = files.get(int(line.split()[0], 16), SHARED)
        elif "\t" in line:
            found[file].append(line.partition("\t")[2])
    return found


def is_amd() -> bool:
    return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()


def having(pattern: str, instructions: list[str]) -> list[str]:
    return [line for line in instructions if re.search(pattern, line)]


def test_all_but_the_targets_is_free_of_avx():
    assert code().keys() >= {*TARGETS, SHARED}
    baseline = {file: lines for file, lines in code().items() if file not in TARGETS}
    assert sum(map(len, baseline.values())) > 10_000
    assert {file: having(AVX, lines) for file, lines in baseline.items() if having(AVX, lines)} == {}


def test_scalar_is_free_of_avx():
    assert len(code()["scalar.cpp"]) > 1000
    assert having(AVX, code()["scalar.cpp"]) == []


def test_only_targets_are_compiled_for_more_than_the_baseline():
    wide = re.findall(r"set_source_files_properties\((.+) PROPERTIES COMPILE_OPTIONS", CMAKE)
    alone = [f"targets/{name}.cpp" for name in ("avx512_bf16", "amx_bf16")]
    together = [f"targets/{name}.cpp targets/{name}_zen.cpp" for name in ("avx2", "avx512")]
    assert wide == [*together, *alone]
    assert not [
        line
        for line in CMAKE.splitlines()
        if re.search(r"-m(avx|amx|fma|f16c|arch)", line) and not line.startswith(("set(AVX", "set(AMX"))
    ]


@pytest.mark.parametrize(("source", "converts"), [("avx2.cpp", True), ("avx2_zen.cpp", False)])
def test_avx2_is_free_of_avx512(source, converts):
    lines = code()[source]
    assert having(AVX512, lines) == []
    assert bool(having(r"^vcvtph2ps", lines)) == converts
    assert having(r"^vfmadd.*%ymm", lines)


@pytest.mark.parametrize(("source", "looks"), [("avx512.cpp", True), ("avx512_zen.cpp", False)])
def test_avx512_shifts_and_multiplies_sixteen_at_a_time(source, looks):
    lines = code()[source]
    assert having(r"^vpsraw.*%zmm", lines)  # codes to bits, 32 at a time
    assert bool(having(r"^vptestmb.*%zmm", lines)) == looks  # for denormals
    assert having(r"^vcvtph2ps.*%zmm", lines)
    assert having(r"^vfmadd.*%zmm", lines)
    assert having(r"^vfmadd.*\{1to16\}", lines)  # the micro-kernel's left side
    assert having(f"{BF16}|{VBMI}|{LATER}", lines) == []


def test_avx512_bf16_looks_codes_up_and_multiplies_pairs():
    lines = code()["avx512_bf16.cpp"]
    assert having(r"^vdpbf16ps.*%zmm", lines)
    assert having(r"^vperm[it]2b.*%zmm", lines)
    assert having(r"^vfmadd.*\{1to16\}", lines)  # the rest is as in avx512
    assert having(LATER, lines) == []


def test_amx_bf16_multiplies_tiles():
    lines = code()["amx_bf16.cpp"]
    assert having(r"^tdpbf16ps", lines) and having(r"^tileloadd", lines)
    assert having(r"^vpsraw.*%zmm", lines) and having(r"^vptestmb.*%zmm", lines)  # as avx512 does
    assert having(r"^vcvtph2ps.*%zmm", lines)
    tiles = r"^(tdpbf16ps|tileloadd|tilestored|tilezero|ldtilecfg|tilerelease)"
    assert having(f"{BF16}|{VBMI}|{LATER}", [line for line in lines if not re.search(tiles, line)]) == []


def test_the_settings_name_every_target_and_the_selection_knows_them():
    names = {path: re.findall(r'make_table\("(\w+)"\)', path.read_text()) for path in NATIVE.glob("targets/*.cpp")}
    assert all(len(found) == 1 for found in names.values())
    assert sorted(name for (name,) in names.values()) == sorted(KERNEL_TARGETS)
    tables = re.findall(r"\{&(k\w+)Kernels, &\1Measures", (NATIVE / "isa.cpp").read_text())
    assert {table[1:].lower() for table in tables} == {name.replace("_", "") for name in KERNEL_TARGETS}
    here = native.supported_targets()
    assert here[0] == "scalar"
    assert {name for name in here if name.startswith("avx512")} <= set(KERNEL_TARGETS[3:])
    order = ("avx512", "avx512_bf16", "avx512_zen")  # FP32 denormals cost nothing on AMD's cores
    order = order if is_amd() else order[::-1]
    assert [name for name in here if name in order] == [name for name in order if name in here]
