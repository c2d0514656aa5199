"""What a launch is once compiled, found without a GPU: registers, shared memory, spills, instructions, occupancy."""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from localmoe.kernels.gpu.chips import Chip
from localmoe.kernels.gpu.launch import Argument, Launch

POINTERS = {
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
REGISTERS_SM = 65536
REGISTER_UNIT = 256  # registers are given to warps in this many
SHARED_RESERVED = 1024  # bytes of shared memory that the system takes per block
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True)
class Facts:
    """One launch, compiled for one chip."""

    registers: int  # per thread
    stack_bytes: int  # per thread: spilled registers lie there
    local_bytes: int
    shared_bytes: int  # per block
    blocks_sm: int  # blocks that fit one multiprocessor at once
    occupancy: float  # resident warps over the most that the chip holds
    instructions: frozenset[str]  # matrix instructions in the PTX

    @property
    def spills(self) -> bool:
        """Whether registers went to memory."""
        return self.stack_bytes > 0 or self.local_bytes > 0


def compile_for(chip: Chip, launch: Launch) -> Facts:
    """Compiles as a launch on that chip would be compiled, specialised on the same arguments."""
    signature, constants, attributes = _specialised(launch)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    found = triton.compile(source, target=GPUTarget("cuda", chip.capability, 32), options=options)
    usage = _resource_usage(found.asm["cubin"])
    blocks = _blocks_sm(chip, usage["REG"], found.metadata.shared, launch.num_warps)
    return Facts(
        registers=usage["REG"],
        stack_bytes=usage["STACK"],
        local_bytes=usage["LOCAL"],
        shared_bytes=found.metadata.shared,
        blocks_sm=blocks,
        occupancy=blocks * launch.num_warps / chip.warps_sm,
        instructions=frozenset(re.findall(r"\b(?:wg)?mma\.(?:mma_async|sync)\S*", found.asm["ptx"])),
    )


def _specialised(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
    """Signature, constants and attributes by Triton's own rules: 1 and None are constants, 16 divides or does not."""
    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    attributes: dict[tuple[int], Any] = {}
    given: Mapping[str, Argument] = launch.args
    for index, name in enumerate(launch.kernel.arg_names):
        value = given.get(name)
        if name in launch.constants or value is None or (isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants.setdefault(name, value)
            continue
        signature[name] = _type(value)
        if _divisible(value):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _type(value: Tensor | int | float) -> str:
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _divisible(value: Tensor | int | float) -> bool:
    if isinstance(value, Tensor):
        return value.is_meta or value.data_ptr() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, LOCAL and the like of the only kernel in a cubin."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [os.fspath(_CUOBJDUMP), "--dump-resource-usage", os.fspath(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = text.split("Function", 1)[1]
    return {name: int(count) for name, count in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", line)}


def _blocks_sm(chip: Chip, registers: int, shared_bytes: int, num_warps: int) -> int:
    """Blocks resident at once (CUDA's occupancy calculator)."""
    warp_registers = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    warps = REGISTERS_SM // 4 // warp_registers * 4  # each of the four partitions by itself
    return min(
        warps // num_warps,
        chip.warps_sm // num_warps,
        chip.shared_bytes_sm // (shared_bytes + SHARED_RESERVED),
        chip.blocks_sm,
    )
