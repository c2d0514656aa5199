"""Pieces that several kernels share."""

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(code):
    """E4M3 codes (uint8) as BF16: exactly value / 2^8, subnormals included; through the bits of FP16."""
    bits = code.to(tl.uint16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(tl.bfloat16)


@triton.jit
def weight_product(x, w, FORM: tl.constexpr):
    """X [M, K] @ w [K, N] in FP32, before the scales; "decoded" comes divided by 2^8."""
    if FORM == "decoded":
        w = decode_e4m3(w)
    return tl.dot(x, w, out_dtype=tl.float32)


@triton.jit
def block_scale(x_scale, w_scale, block, FORM: tl.constexpr):
    """What to multiply one block of 128 columns' product with: [M, 1] with quantised activations, else a scalar.

    `x_scale` points at the rows' scales, `w_scale` at those of the matrix's row of blocks.
    """
    if FORM == "fp8":
        return (tl.load(x_scale + block) * tl.load(w_scale + block))[:, None]
    else:
        return tl.load(w_scale + block) * 256.0
