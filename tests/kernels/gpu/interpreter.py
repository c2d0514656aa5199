"""Repairs of Triton's interpreter (seen in 3.9), which multiplies BF16 operands as integers and rounds without carry.

Casts and products of BF16, FP16 and FP8 E4M3 are done by torch instead: exact products, FP32 sums, nearest even.
What the language has is looked up once, not at each launch and at each call of a function within a kernel; sums of
integers are not looked through for overflows, which tests' sizes are far from; and a type is described once, not for
each value. All three took more time than the kernels.
"""

import inspect
import threading
from dataclasses import replace
from functools import cache
from math import prod
from operator import index
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
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
    describe_once()


def describe_once() -> None:
    """Blocks of one type share its description, and those of one shape share that."""
    describe, described, scalar = tl.block_type.__init__, {}, described_shape()
    dtype_of, dtypes = interpreter._get_np_dtype, {}
    broadcast, equal = TritonSemantic.broadcast_impl_value, tl.dtype.__eq__

    def init_type(self: Any, element: Any, shape: Any) -> None:
        key = element.name, *map(index, shape)
        if key not in described:
            describe(self, element, shape)
            self.tensor_shape = described_shape(*key[1:])
            described[key] = vars(self)
        self.__dict__ = described[key]

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.tensor_shape if type.is_block() else scalar

    def broadcast_others(self: Any, left: Any, right: Any) -> Any:
        return (left, right) if left.shape is right.shape else broadcast(self, left, right)

    def known_dtype(type: Any) -> np.dtype:
        name = type.scalar.name
        if name not in dtypes:
            dtypes[name] = dtype_of(type.scalar)
        return dtypes[name]

    tl.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    tl.block_type.__init__ = init_type
    tl.tensor.__init__ = init_tensor
    TritonSemantic.broadcast_impl_value = broadcast_others
    interpreter._get_np_dtype = known_dtype


@cache
def described_shape(*sizes: int) -> tuple[Any, Any]:
    return tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(prod(sizes))


@cache
def builtins_of(package: Any) -> list[tuple[str, Any]]:
    return [(name, member) for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def as_torch(data: np.ndarray, dtype: Any) -> torch.Tensor:
    flat = np.ascontiguousarray(data).view(
        f"int{dtype.primitive_bitwidth}" if dtype.primitive_bitwidth > 8 else "uint8"
    )
    return torch.from_numpy(flat.copy()).view(TORCH[dtype])
