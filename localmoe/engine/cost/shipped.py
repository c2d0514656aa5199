"""Rows of our own `bench --suite kernels` that come with the source: what CPU kernels reach where nobody measured.

They are copied from assets/bench/epyc-zen3.csv, which is not installed; a test holds them to it.
"""

from localmoe.engine.cost.rates import kernels_from_rows

COMMIT = "9e30701b6"
MACHINE = "2 Zen 3 cores, AVX2"
ROWS = {  # value and reference, both in GB/s or both in GFLOP/s
    "gemv": (33.1171, 35.3507),
    "gemv-bf16": (46.1144, 49.78),
    "moe-8-same": (5.789, 47.1865),
    "gemm-48": (154.198, 203.74),
    "gemm-256": (156.681, 203.579),
    "attention-4k": (129.51, 201.042),
    "attend-4k": (141.036, 204.143),
}
SOURCE = f"bench --suite kernels at {COMMIT} on {MACHINE}"
KERNELS = kernels_from_rows(ROWS, SOURCE)
