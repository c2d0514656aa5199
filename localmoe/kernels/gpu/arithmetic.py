"""Pieces that several kernels share."""

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(code):
    """E4M3 codes (uint8) as FP16: exactly value / 2^8, subnormals included."""
    bits = code.to(tl.uint16)
    return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def load_depth(at, depth, left, EVEN_K: tl.constexpr):
    """What lies at `at`, zero where `depth` is not below `left`; EVEN_K: it always is."""
    if EVEN_K:
        return tl.load(at)
    else:
        return tl.load(at, mask=depth < left, other=0.0)


@triton.jit
def accumulate(total, x, w, x_scale, w_scale, block, FORM: tl.constexpr):
    """Adds to total x [M, K] @ w [K, N] in FP32, K within one block of 128 columns.

    `x_scale` points at the rows' scales, `w_scale` at those of the matrix's row of blocks; FORM as in tiles.Form.
    """
    if FORM == "fp8":
        scale = tl.load(x_scale + block) * tl.load(w_scale + block)
        return total + tl.dot(x, w, out_dtype=tl.float32) * scale[:, None]
    elif FORM == "decoded":
        product = tl.dot(x, decode_e4m3(w).to(tl.bfloat16), out_dtype=tl.float32)
        return total + product * (tl.load(w_scale + block) * 256.0)
    else:
        return tl.dot(x, w, total, out_dtype=tl.float32)
