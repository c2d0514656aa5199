"""No object contains instructions that its processors may lack; the wide ones contain those that they exist for."""

import re
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
CMAKE = (NATIVE / "CMakeLists.txt").read_text()
BASELINE = ["targets/scalar.cpp", *(str(p.relative_to(NATIVE)) for p in sorted(NATIVE.glob("ops/*.cpp")))]
BASELINE += ["isa.cpp", "pool.cpp", "program.cpp"]
AVX = r"^v[a-z]|[yz]mm"  # mnemonics of AVX and all later vectors start with v
AVX512 = r"zmm|%k[0-7]|[xy]mm(1[6-9]|2\d|3[01])\b|\{1to\d+\}"
LATER = r"^(vdpbf16ps|vperm[it]2b|vpermb|vpdp\w+|vcvtne\w*bf16|vfmadd\w+ph|v(add|mul)ph|tile\w+)\b"


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


def having(pattern: str, instructions: list[str]) -> list[str]:
    return [line for line in instructions if re.search(pattern, line)]


@pytest.mark.parametrize("source", BASELINE)
def test_the_baseline_is_free_of_avx(source, tmp_path):
    code = instructions_of(source, tmp_path)
    assert len(code) > 50
    assert having(AVX, code) == []


def test_only_targets_are_compiled_for_more_than_the_baseline():
    wide = re.findall(r"set_source_files_properties\((\S+) PROPERTIES COMPILE_OPTIONS", CMAKE)
    assert wide == ["targets/avx2.cpp", "targets/avx512.cpp"]
    assert not [
        line
        for line in CMAKE.splitlines()
        if re.search(r"-m(avx|fma|f16c|arch)", line) and not line.startswith("set(AVX")
    ]


def test_avx2_is_free_of_avx512(tmp_path):
    code = instructions_of("targets/avx2.cpp", tmp_path, *flags_of("AVX2"))
    assert having(AVX512, code) == []
    assert having(r"^vcvtph2ps.*%ymm", code)
    assert having(r"^vfmadd.*%ymm", code)


def test_avx512_converts_and_multiplies_sixteen_at_a_time(tmp_path):
    code = instructions_of("targets/avx512.cpp", tmp_path, *flags_of("AVX512"))
    assert having(r"^vcvtph2ps.*%zmm", code)
    assert having(r"^vfmadd.*%zmm", code)
    assert having(r"^vfmadd.*\{1to16\}", code)  # the micro-kernel's left side
    assert having(LATER, code) == []
