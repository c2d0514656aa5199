"""Repairs of Triton's interpreter (seen in 3.9), which multiplies BF16 operands as integers and rounds without carry.

Casts and products of BF16, FP16 and FP8 E4M3 are done by torch instead: exact products, FP32 sums, nearest even.
What the language has is looked up once, not at each launch and at each call of a function within a kernel; and sums of
integers are not looked through for overflows, which tests' sizes are far from. Both took more time than the kernels.
"""

import inspect
import threading
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from localmoe.kernels.gpu.launch import Launch

TORCH = {
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
}
BITS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
FP8_MAX = 448.0  # GPUs saturate, torch makes NaN


def repair() -> None:
    convert, builder = interpreter._convert_float, interpreter.interpreter_builder

    def convert_float(data: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if source not in TORCH or target not in TORCH:
            return convert(data, source, target, rounding)
        found = as_torch(data, source)
        if target == tl.float8e4nv:
            found = found.float().clamp(-FP8_MAX, FP8_MAX)
        size = target.primitive_bitwidth
        bits = found.to(TORCH[target]).view(BITS[size]).numpy().view(f"uint{size}")
        return bits.reshape(data.shape)

    def create_dot(a: Any, b: Any, c: Any, precision: Any, imprecise: Any) -> Any:
        left, right = (as_torch(x.data, x.dtype.scalar).float().numpy() for x in (a, b))
        return interpreter.TensorHandle(np.matmul(left, right) + c.data, c.dtype.scalar)

    run, lock = Launch.run, threading.Lock()

    def run_alone(self: Launch) -> None:
        with lock:  # there is one grid for all threads
            run(self)

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins_of(package):
            interpreter._patch_attr(package, name, member, builder, scope)

    call, called = interpreter.InterpretedFunction.__call__, set()

    def call_again(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn in called:
            return self.rewrite()(*args, **kwargs)
        called.add(self.fn)
        return call(self, *args, **kwargs)  # patches what no launch gives back

    Launch.run = run_alone
    interpreter._patch_builtin = patch_builtin
    interpreter.InterpretedFunction.__call__ = call_again
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._convert_float = convert_float
    builder.create_dot = create_dot


@cache
def builtins_of(package: Any) -> list[tuple[str, Any]]:
    return [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def as_torch(data: np.ndarray, dtype: Any) -> torch.Tensor:
    flat = np.ascontiguousarray(data).view(
        f"int{dtype.primitive_bitwidth}" if dtype.primitive_bitwidth > 8 else "uint8"
    )
    return torch.from_numpy(flat.copy()).view(TORCH[dtype])
