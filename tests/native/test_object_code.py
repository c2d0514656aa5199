"""No object contains instructions that its processors may lack; the wide ones contain those that they exist for."""

import re
import subprocess
from pathlib import Path

import pytest

from localmoe import _native as native
from localmoe.settings import KERNEL_TARGETS

NATIVE = Path(__file__).parents[2] / "native"
CMAKE = (NATIVE / "CMakeLists.txt").read_text()
BASELINE = ["targets/scalar.cpp", *(str(p.relative_to(NATIVE)) for p in sorted(NATIVE.glob("ops/*.cpp")))]
BASELINE += ["copy_values.cpp", "isa.cpp", "pool.cpp", "program.cpp"]
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


def instructions_of(source: str, folder: Path, *flags: str) -> list[str]:
    """What the compiler makes of a file of native/, one instruction a line."""
    out = folder / "object.o"
    subprocess.run(["g++", "-std=c++20", "-O1", "-w", *flags, "-c", str(NATIVE / source), "-o", str(out)], check=True)
    command = ["objdump", "-d", "--no-show-raw-insn", str(out)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.partition("\t")[2] for line in text.splitlines() if "\t" in line]


def is_amd() -> bool:
    return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()


def having(pattern: str, instructions: list[str]) -> list[str]:
    return [line for line in instructions if re.search(pattern, line)]


@pytest.mark.parametrize("source", BASELINE)
def test_the_baseline_is_free_of_avx(source, tmp_path):
    code = instructions_of(source, tmp_path)
    assert len(code) > 50
    assert having(AVX, code) == []


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


@pytest.mark.parametrize(("source", "converts"), [("targets/avx2.cpp", True), ("targets/avx2_zen.cpp", False)])
def test_avx2_is_free_of_avx512(source, converts, tmp_path):
    code = instructions_of(source, tmp_path, *flags_of("AVX2"))
    assert having(AVX512, code) == []
    assert bool(having(r"^vcvtph2ps", code)) == converts
    assert having(r"^vfmadd.*%ymm", code)


@pytest.mark.parametrize(("source", "shifts"), [("targets/avx512.cpp", False), ("targets/avx512_zen.cpp", True)])
def test_avx512_converts_and_multiplies_sixteen_at_a_time(source, shifts, tmp_path):
    code = instructions_of(source, tmp_path, *flags_of("AVX512"))
    assert bool(having(r"^vpsraw.*%zmm", code)) == shifts  # codes to bits, 32 at a time
    assert having(r"^vcvtph2ps.*%zmm", code)
    assert having(r"^vfmadd.*%zmm", code)
    assert having(r"^vfmadd.*\{1to16\}", code)  # the micro-kernel's left side
    assert having(f"{BF16}|{VBMI}|{LATER}", code) == []


def test_avx512_bf16_looks_codes_up_and_multiplies_pairs(tmp_path):
    code = instructions_of("targets/avx512_bf16.cpp", tmp_path, *flags_of("AVX512_BF16"))
    assert having(r"^vdpbf16ps.*%zmm", code)
    assert having(r"^vperm[it]2b.*%zmm", code)
    assert having(r"^vfmadd.*\{1to16\}", code)  # the rest is as in avx512
    assert having(LATER, code) == []


def test_amx_bf16_multiplies_tiles(tmp_path):
    code = instructions_of("targets/amx_bf16.cpp", tmp_path, *flags_of("AMX_BF16"))
    assert having(r"^tdpbf16ps", code) and having(r"^tileloadd", code)
    assert having(r"^vperm[it]2b.*%zmm", code)
    assert having(r"^vcvtph2ps.*%zmm", code)  # a few tokens as in avx512
    tiles = r"^(tdpbf16ps|tileloadd|tilestored|tilezero|ldtilecfg|tilerelease)"
    assert having(f"{BF16}|{LATER}", [line for line in code if not re.search(tiles, line)]) == []


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
