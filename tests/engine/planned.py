"""Machines and rates by hand, and plans for them."""

from dataclasses import replace
from functools import partial

from tiny import DEEPSEEK_V3, SHAPES, V3

from localmoe.engine.cost.rates import Cpu as CpuRates
from localmoe.engine.cost.rates import Gpu as GpuRates
from localmoe.engine.cost.rates import Kernels, Rate, Rates
from localmoe.engine.cost.sizes import common_bytes, routed_bytes
from localmoe.engine.plan import Plan, make_plan
from localmoe.hardware import Cpu, Disk, Gpu, Limits, Machine, Memory, Node
from localmoe.model.config import read_config
from localmoe.settings import Settings

GB = 10**9
SMALL = read_config(V3)
FULL = read_config(DEEPSEEK_V3)
MOONLIGHT = read_config(
    V3
    | SHAPES["moonlight"]
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "intermediate_size": 11264,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163840,
        "max_position_embeddings": 8192,
    }
)
FULL_BYTES = routed_bytes(FULL) + common_bytes(FULL)
measured = partial(Rate, origin="measured")

KERNELS = Kernels(
    read=measured(0.9),
    matmul=((1, measured(0.2)), (8, measured(0.4)), (48, measured(0.6)), (256, measured(0.7))),
    prompt_attention=measured(0.6),
    token_attention=measured(0.5),
)
GPU_RATES = GpuRates(
    vram_bytes=32 << 30,
    memory=measured(1.7e12),
    gemm=measured(300e12),
    attention=measured(200e12),
    h2d=measured(50e9),
    launch=measured(5e-6),
    event=measured(5e-6),
    layer=measured(200e-6),
)
RATES = Rates(
    "a test's machine",
    CpuRates(stream=measured(900e9), fma=measured(9e12), kernels=KERNELS, layer=measured(20e-6)),
    (GPU_RATES,) * 4,
    disk=measured(5e9),
)
# Moving every expert of the tiny model is worth it from some 100 tokens on.
SLOW = replace(
    RATES,
    cpu=replace(RATES.cpu, fma=measured(20e9), stream=measured(20e9)),
    gpus=(replace(GPU_RATES, h2d=measured(3e8)),) * 2,
)


def gpu(free: int | None = 32 * GB, capability: str | None = "12.0", index: int = 0, name: str = "RTX 5090") -> Gpu:
    return Gpu(name, None if free is None else 34 * GB, free, capability, None, None, index=index)


def gpus(*free: int) -> tuple[Gpu, ...]:
    return tuple(gpu(each, index=n) for n, each in enumerate(free))


def machine(
    dram: int | None = 1000 * GB,
    *,
    cores: int = 64,
    gpus: tuple[Gpu, ...] = (),
    nodes: tuple[int, ...] = (),
    disk: int | None = 2000 * GB,
    **changes,
) -> Machine:
    """One with so many bytes available, in DRAM, on each of its nodes and on its disk."""
    found = Machine(
        cpu=Cpu("a CPU", 1, cores, cores, (), ("scalar", "avx2")),
        nodes=tuple(Node(n, (n,), size, size, size) for n, size in enumerate(nodes)),
        memory=Memory(dram, dram, None, dram, 0, "madvise"),
        limits=Limits((), cores, None, None, None, locks_freely=True),
        disks=(Disk("models", "/models", disk, disk, "ext4", "NVMe"),),
        gpus=gpus,
        gpu_driver=None,
        container=None,
        hypervisor=None,
        unknown=(("GPU", "no NVIDIA driver"),),
    )
    return replace(found, **changes)


def planned(
    on: Machine | None = None, config=FULL, settings: Settings | None = None, rates: Rates = RATES, **options
) -> Plan:
    """DeepSeek-V3's plan, or another's."""
    options.setdefault("name", "deepseek-v3")
    return make_plan(machine() if on is None else on, config, settings or Settings(), rates, **options)


def told(plan: Plan, what: str) -> str:
    """The decision on `what`, as it is printed."""
    return next(str(decision) for decision in plan.decisions if decision.what == what)
