"""The sizes at which kernels are measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shapes:
    """DeepSeek-V3's, and odd ones of other models and of none."""

    hidden: int = 7168
    inter: int = 2048
    num_experts: int = 32  # 1.4 GB, more than the caches hold
    top_k: int = 8
    heads: int = 128
    few_heads: int = 16  # enough to measure a long prompt with
    nope: int = 128
    rope: int = 64
    value: int = 128
    rank: int = 512
    context: int = 4096
    chunk: int = 512  # of a prompt, read at once
    moe_tokens: tuple[int, ...] = (1, 2, 4, 8)
    gemm_tokens: tuple[int, ...] = (48, 256)
    odd_matrices: tuple[tuple[int, int], ...] = ((7168, 1408), (16384, 200))
    odd_rows: int = 2043  # no tile divides it
    num_torch: int = 16  # matrices, also more than the caches hold
    num_pairs: int = 9  # of measurements, ours and the reference's


V3 = Shapes()
