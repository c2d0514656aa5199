"""The SLP paper's machine, on which the model of cost is checked, and what localmoe should reach there.

"Achieving Cloud-Grade SLOs for Local MoE Inference" (arXiv 2606.10493): two EPYC 9355, 24 x DDR5-6400, RTX 5090,
DeepSeek-R1 in FP8. Two values are not published and are solved for, each from one published speed: what GEMMs reach on
the GPU from prefill at 20K tokens on one GPU, and a layer's overhead in decode from one stream's speed.
"""

from collections.abc import Callable
from functools import lru_cache

from localmoe.engine.cost import decode, prefill
from localmoe.engine.cost.placement import Placement
from localmoe.engine.cost.rates import Cpu, Gpu, Kernels, Rate, Rates
from localmoe.engine.cost.shipped import KERNELS
from localmoe.model.config import ModelConfig

PREFILL_20K_TOK_S = 1200.0
DECODE_TOK_S = 21.5
DECODE_CONTEXT = 1024  # the paper gives about 20 at 32K, so 21.5 is at a short one

CORES, SUSTAINED_HZ = 64, 3.55e9  # 2 x 32 at the base clock
FMA_FLOP, BF16_FLOP = 64, 128  # a core and cycle: two AVX-512 units, FP32 and VDPBF16PS
CHUNK = 4096  # its CPU path takes prompts up to this length


def paper_rates(config: ModelConfig, num_gpus: int = 1) -> Rates:
    """The machine as the paper used it; `config` is DeepSeek-V3's or R1's, for the two solved values."""
    return _machine("SLP paper", _paper_cpu(), num_gpus, *fit(config))


def localmoe_rates(config: ModelConfig, num_gpus: int = 1) -> Rates:
    """The same machine with the fractions that localmoe's own CPU kernels reach, measured elsewhere.

    The streaming read is at least what the paper's GEMV reached. The GPU stays as fitted until its kernels are
    measured.
    """
    cpu = Cpu(
        stream=Rate(947e9, "estimated", "the paper's GEMV: a streaming read is not slower"),
        fma=_estimate(CORES * SUSTAINED_HZ * FMA_FLOP, "FP32 FMA at the base clock"),
        kernels=KERNELS,
        layer=_estimate(50e-6, "stages of a layer"),
    )
    return _machine("localmoe on the SLP paper's machine", cpu, num_gpus, *fit(config))


@lru_cache(maxsize=8)
def fit(config: ModelConfig) -> tuple[float, float]:
    """GEMM FLOP/s on the GPU and s of a layer's overhead in decode, such that both published speeds come out.

    Each is the only unknown of its own equation, the second once the first is known.
    """
    tokens, placement = 20 * 1024, Placement(num_gpus=1, chunk=CHUNK)

    def prefill_s(gemm: float) -> float:
        return prefill.streamed(_machine("", _paper_cpu(), 1, gemm, 1.0), config, placement, tokens).seconds

    gemm = _solve(prefill_s, tokens / PREFILL_20K_TOK_S, 1e12, 1e16)

    def step_s(layer: float) -> float:
        return decode.step(_machine("", _paper_cpu(), 1, gemm, layer), config, placement, DECODE_CONTEXT).seconds

    return gemm, _solve(step_s, 1 / DECODE_TOK_S, 1e-9, 1e-1)


def _solve(f: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The x in low..high with f(x) == target, f monotone; ValueError where there is none."""
    rises = f(high) > f(low)
    if not min(f(low), f(high)) <= target <= max(f(low), f(high)):
        raise ValueError(f"no value between {low:g} and {high:g} gives {target:g}: {f(low):g} to {f(high):g}")
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if (f(middle) > target) == rises else (middle, high)
    return high


def _paper_cpu() -> Cpu:
    return Cpu(
        stream=_estimate(24 * 6400e6 * 8, "24 x DDR5-6400"),
        fma=_estimate(CORES * SUSTAINED_HZ * BF16_FLOP, "VDPBF16PS at the base clock"),
        kernels=Kernels(
            read=Rate(947e9 / (24 * 6400e6 * 8), "measured", "the paper's GEMV, 947 GB/s"),
            matmul=((1, _estimate(0.5, "half of the peak")),),
            prompt_attention=_estimate(0.5, "half of the peak"),
            token_attention=_estimate(0.5, "half of the peak"),
        ),
        layer=_estimate(50e-6, "stages of a layer"),
    )


def _machine(name: str, cpu: Cpu, num_gpus: int, gemm: float, layer: float) -> Rates:
    gpu = Gpu(
        vram_bytes=32607 << 20,
        memory=_estimate(1.792e12, "data sheet"),
        gemm=_estimate(gemm, "solved for from prefill at 20K tokens"),
        attention=_estimate(1038e12 / 5, "SageAttention3 (arXiv 2505.11594): a fifth of its 1038 TOPS"),
        h2d=_estimate(52.5e9, "PCIe 5 x16: 50 to 55 GB/s"),
        launch=_estimate(4e-6, "a kernel launch"),
        event=_estimate(5e-6, "an event"),
        layer=_estimate(layer, "solved for from decode"),
    )
    return Rates(name, cpu, (gpu,) * num_gpus)


def _estimate(value: float, source: str) -> Rate:
    return Rate(value, "estimated", source)
