"""How fast a machine is: what was measured on it, and where nothing was, an estimate that says what it is made of.

Estimates come from what `probe` found, from makers' data sheets and from our own bench rows. None of them is an upper
or a lower bound.
"""

from collections.abc import Sequence
from dataclasses import replace

from localmoe.engine.cost.rates import Cpu, Kernels, Matmul, Rate, Rates
from localmoe.engine.cost.shipped import KERNELS
from localmoe.engine.cpu_sheet import CHANNEL_BYTES, FLOP_PER_CYCLE, GIGA, Family, family_of
from localmoe.engine.gpu_rates import gpu_rates, together
from localmoe.engine.measured import Measured, Points
from localmoe.hardware import Disk, Machine

NOTHING = Measured("", "", "", 1)
READ_SHARE = 0.77  # of the modules' peak: what the SLP paper's GEMV reached, 947 of 1,228.8 GB/s
CORE_BYTES_S = 15 * GIGA  # that one core reads at most: 12 to 25 GB/s on servers of the last years
LAYER_S, STEP_S, LOGIT_S = 50e-6, 250e-6, 17e-9  # about what `doctor --measure` finds on two cores
DISK_BYTES_S = {  # direct reads
    "NVMe": 3.0 * GIGA,
    "SSD": 0.5 * GIGA,
    "rotating": 0.15 * GIGA,
    "virtual": 0.5 * GIGA,
    "network": 0.3 * GIGA,
    "memory": 4.0 * GIGA,
    "unknown": 0.3 * GIGA,
}


def rates_of(machine: Machine, measured: Measured | None = None) -> Rates:
    """Rates of a probed machine; those in `measured` take the place of estimates. Never raises."""
    m = measured or NOTHING
    gpus = gpu_rates(machine, m)
    return Rates(
        machine=machine.cpu.model or "this machine",
        cpu=_cpu(machine, m),
        gpus=gpus,
        h2d_together=together(machine, gpus, m),
        disk=_disk(machine.disks, m),
    )


def _known(value: float | None, m: Measured, estimate: Rate) -> Rate:
    """`value` as measured, or the estimate where nothing was."""
    return estimate if value is None else Rate(value, "measured", _source(m))


def _source(m: Measured) -> str:
    return f"measured on {m.when[:10]} with {m.num_threads} threads of {m.isa} kernels"


def _cpu(machine: Machine, m: Measured) -> Cpu:
    family, is_named = _family(machine)
    fma = _known(m.fma_flop_s, m, _fma(machine, family, is_named))
    stream = _known(m.stream_bytes_s, m, _stream(machine, family, is_named))
    return Cpu(
        stream=stream,
        fma=fma,
        kernels=replace(_kernels(stream, fma, m), lanes=_lanes(machine, m)),
        layer=_known(m.layer_s, m, _estimate(LAYER_S, "stages and barriers of a layer, as on two cores")),
        nodes=tuple(Rate(value, "measured", _source(m)) for _, value in m.node_bytes_s),
        activations=Rate(m.activation_bytes_s, "measured", _source(m)) if m.activation_bytes_s else None,
        step=_known(m.step_s, m, _estimate(STEP_S, "Python, text and events of a step, as on two cores")),
        logit=_known(m.logit_s, m, _estimate(LOGIT_S, "sampling, as on two cores")),
    )


def _family(machine: Machine) -> tuple[Family, bool]:
    cores = (machine.cpu.num_cores or machine.limits.usable_cores) // _num_sockets(machine)
    return family_of(machine.cpu.model, cores, machine.cpu.flags)


def _num_sockets(machine: Machine) -> int:
    return max(1, machine.cpu.num_sockets or 1)


def num_workers(machine: Machine) -> int:
    """Cores that compute: all that are usable, one left for the screen where there are more than two."""
    cores = max(1, machine.limits.usable_cores)
    return cores - 1 if cores > 2 else cores


def _stream(machine: Machine, family: Family, is_named: bool) -> Rate:
    """The modules' peak, as far as reads reach it and as the usable cores take it."""
    peak, why = _peak(machine, family, is_named)
    share = _node_share(machine)
    memory, cores = READ_SHARE * share * peak, num_workers(machine) * CORE_BYTES_S
    part = f" of {share:.0%} of the memory" if share < 1 else ""
    if cores < memory:
        return _estimate(cores, f"{num_workers(machine)} cores at {CORE_BYTES_S / GIGA:.0f} GB/s each")
    return _estimate(memory, f"{READ_SHARE:.0%}{part} of {why}")


def _peak(machine: Machine, family: Family, is_named: bool) -> tuple[float, str]:
    """Bytes/s of all channels, and where that is from."""
    dimms, sockets = machine.memory.dimms, _num_sockets(machine)
    if dimms and (peak := dimms.peak_bytes_s):
        return peak, f"{dimms.num_channels} channels at {dimms.speed_mt_s:,} MT/s"
    speed = dimms.speed_mt_s if dimms and dimms.speed_mt_s else family.speed_mt_s
    channels = sockets * family.channels
    if dimms and dimms.modules:
        channels = min(channels, len(dimms.modules))
    whose = f"{family.name} CPUs have" if is_named else f"{family.name} of unknown name may have"
    why = f"{channels} channels at {speed:,} MT/s, as {whose}"
    return channels * CHANNEL_BYTES * speed * 1e6, why


def _node_share(machine: Machine) -> float:
    """How much of the memory's nodes this process may use."""
    nodes = {node.number for node in machine.nodes if node.total_bytes}
    allowed = nodes & set(machine.limits.nodes)
    return len(allowed) / len(nodes) if allowed else 1.0


def _fma(machine: Machine, family: Family, is_named: bool) -> Rate:
    target = machine.cpu.targets[-1] if machine.cpu.targets else "scalar"
    flop, cores = FLOP_PER_CYCLE.get(target, FLOP_PER_CYCLE["scalar"]), num_workers(machine)
    if family.half_width:
        flop = min(flop, FLOP_PER_CYCLE["avx2"])
    whose = f"{family.name}'s" if is_named else f"{family.name}'s, its name being unknown"
    return _estimate(
        cores * family.clock_hz * flop,
        f"{cores} cores x {family.clock_hz / GIGA:.1f} GHz ({whose}) x {flop} FP32 FLOP a cycle ({target})",
    )


def _kernels(stream: Rate, fma: Rate, m: Measured) -> Kernels:
    shipped = _elsewhere(KERNELS)
    return Kernels(
        read=_known(m.read_fraction, m, shipped.read),
        matmul=_matmul(m.fp8_flop_s, fma, m) or shipped.matmul,
        prompt_attention=_known(_part(m.prompt_attention_flop_s, fma), m, shipped.prompt_attention),
        token_attention=_known(_part(m.token_attention_flop_s, fma), m, shipped.token_attention),
        bf16_matmul=_matmul(m.bf16_flop_s, fma, m),
        latents=None if m.latent_bytes_s is None else Rate(m.latent_bytes_s / stream.value, "measured", _source(m)),
    )


def _lanes(machine: Machine, m: Measured) -> int:
    """Floats in a vector of the kernels that were measured, or of those that run here."""
    best = machine.cpu.targets[-1] if machine.cpu.targets else "scalar"
    target = best if m.token_attention_flop_s is None else m.isa
    return 8 if target.startswith(("scalar", "avx2")) else 16


def _elsewhere(kernels: Kernels) -> Kernels:
    """Measured, but not on this machine."""
    return Kernels(
        read=_foreign(kernels.read),
        matmul=tuple((tokens, _foreign(rate)) for tokens, rate in kernels.matmul),
        prompt_attention=_foreign(kernels.prompt_attention),
        token_attention=_foreign(kernels.token_attention),
    )


def _foreign(rate: Rate) -> Rate:
    return _estimate(rate.value, rate.source)


def _matmul(points: Points, fma: Rate, m: Measured) -> Matmul:
    return tuple((tokens, Rate(value / fma.value, "measured", _source(m))) for tokens, value in sorted(points))


def _part(value: float | None, fma: Rate) -> float | None:
    return None if value is None else value / fma.value


def _disk(disks: Sequence[Disk], m: Measured) -> Rate:
    """Of the disk with the models, or the first one that was asked about."""
    models = [disk for disk in disks if disk.purpose == "models"]
    kind = next((disk.kind for disk in (*models, *disks)), "unknown")
    value = DISK_BYTES_S.get(kind, DISK_BYTES_S["unknown"])
    of_kind = "a disk of unknown kind" if kind == "unknown" else f"a disk of kind {kind}"
    return _known(m.disk_bytes_s, m, _estimate(value, f"direct reads of {of_kind}"))


def _estimate(value: float, source: str) -> Rate:
    return Rate(value, "estimated", source)
