"""What GPUs and their links reach: measured, or estimated from data sheets and from how the links are trained."""

from collections.abc import Iterable, Sequence

from localmoe.engine.cost.rates import Gpu, Rate
from localmoe.engine.gpu_sheet import sheet_of
from localmoe.engine.measured import Measured, MeasuredGpu
from localmoe.hardware import Gpu as GpuFound
from localmoe.hardware import GpuPair, Machine, PcieLink

MEMORY_SHARE = 0.85  # of the data sheet's bandwidth that reads reach
# With these the SLP paper's prefill speeds come out on its RTX 5090 (engine/cost/slp_paper.py). Its attention
# multiplies in FP8 and FP4, of whose peaks that is a half and a fifth.
GEMM_SHARE = 0.3  # of the tensor cores' peak
ATTENTION_SHARE = 0.99  # of the BF16 peak
LINK_SHARE = 0.84  # of a PCIe link's bytes that copies from pinned memory reach: 53 GB/s of gen 5 x16
NVLINK_BYTES_S = 22e9  # of one link in one direction: 25 GB/s before headers
DEFAULT_LINK = PcieLink(4, 16)
LAUNCH_S, EVENT_S = 4e-6, 5e-6  # as in CUDA's own measurements: 3 to 5 us
LAYER_S = 200e-6  # what the SLP paper's decode speed leaves for a layer, about
SHARED_PATHS = ("one board", "one switch")  # GPUs behind one link to the CPU


def gpu_rates(machine: Machine, measured: Measured) -> tuple[Gpu, ...]:
    """Rates of each of the machine's GPUs, in its order."""
    found = measured.gpus if measured else ()
    peers = {number for pair in machine.gpu_pairs if pair.peer_to_peer for number in (pair.first, pair.second)}
    return tuple(
        _rates(
            gpu, _measured_of(gpu, n, found), measured, _peer(gpu, machine.gpu_pairs) if gpu.index in peers else None
        )
        for n, gpu in enumerate(machine.gpus)
    )


def together(machine: Machine, gpus: Sequence[Gpu], measured: Measured) -> Rate | None:
    """Bytes/s to all GPUs at once: what their links carry, one for those that share it. None for fewer than two."""
    if len(gpus) < 2:
        return None
    if measured.h2d_together_bytes_s:
        return Rate(measured.h2d_together_bytes_s, "measured", _source(measured))
    links = [max(gpus[n].h2d.value for n in group) for group in _groups(machine)]
    shared = " where GPUs share one, it counts once" if len(links) < len(gpus) else ""
    return Rate(sum(links), "estimated", f"the sum of {len(links)} links{';' * bool(shared)}{shared}")


def _rates(gpu: GpuFound, known: MeasuredGpu, measured: Measured, peer: Rate | None) -> Gpu:
    sheet, source = sheet_of(gpu.name, gpu.compute_capability)

    def rate(value: float | None, estimate: float, why: str) -> Rate:
        if value is not None:
            return Rate(value, "measured", _source(measured))
        return Rate(estimate, "estimated", why)

    link, why_link = _link(gpu)
    if known.peer_bytes_s is not None:
        peer = rate(known.peer_bytes_s, known.peer_bytes_s, "")
    return Gpu(
        vram_bytes=gpu.total_bytes or sheet.vram_bytes,
        memory=rate(known.memory_bytes_s, MEMORY_SHARE * sheet.memory_bytes_s, f"{MEMORY_SHARE:.0%} of {source}"),
        gemm=rate(known.gemm_flop_s, GEMM_SHARE * sheet.gemm_flop_s, f"{GEMM_SHARE:.0%} of {source}"),
        attention=rate(
            known.attention_flop_s, ATTENTION_SHARE * sheet.bf16_flop_s, f"{ATTENTION_SHARE:.0%} of BF16 in {source}"
        ),
        h2d=rate(known.h2d_bytes_s, link, why_link),
        launch=rate(known.launch_s, LAUNCH_S, "a kernel launch"),
        event=rate(known.event_s, EVENT_S, "an event and a wait"),
        layer=rate(known.layer_s, LAYER_S, "what the SLP paper's decode leaves for a layer"),
        peer=peer,
    )


def _link(gpu: GpuFound) -> tuple[float, str]:
    """Bytes/s of copies. The lanes are those trained now; the generation is the most, to which a load raises it."""
    now, most = gpu.pcie_now, gpu.pcie_most
    lanes, generation = now or most, most or now
    if lanes and generation:
        link = PcieLink(generation.generation, lanes.width)
        if link.bytes_s:
            return LINK_SHARE * link.bytes_s, f"{LINK_SHARE:.0%} of PCIe {link}"
    assert DEFAULT_LINK.bytes_s
    return LINK_SHARE * DEFAULT_LINK.bytes_s, f"{LINK_SHARE:.0%} of PCIe {DEFAULT_LINK}: the link is unknown"


def _peer(gpu: GpuFound, pairs: Iterable[GpuPair]) -> Rate | None:
    """To other GPUs that it reaches directly, by NVLink where there are links, else by PCIe; None where it cannot."""
    links = [p.num_nvlinks or 0 for p in pairs if p.peer_to_peer and gpu.index in (p.first, p.second)]
    if not links:
        return None
    if count := min(links):
        return Rate(count * NVLINK_BYTES_S, "estimated", f"{count} NVLinks")
    value, why = _link(gpu)
    return Rate(value, "estimated", f"peer to peer, {why}")


def _groups(machine: Machine) -> list[set[int]]:
    """Places in `machine.gpus` of those that share a link to the CPU."""
    place = {gpu.index: n for n, gpu in enumerate(machine.gpus)}
    groups = [{n} for n in range(len(machine.gpus))]
    for pair in machine.gpu_pairs:
        if pair.path in SHARED_PATHS and pair.first in place and pair.second in place:
            ends = {place[pair.first], place[pair.second]}
            touched = [group for group in groups if group & ends]
            groups = [group for group in groups if not group & ends] + [set().union(*touched)]
    return groups


def _measured_of(gpu: GpuFound, place: int, found: Sequence[MeasuredGpu]) -> MeasuredGpu:
    return found[place] if place < len(found) and found[place].name == gpu.name else MeasuredGpu(gpu.name)


def _source(measured: Measured) -> str:
    return f"measured on {measured.when[:10]}"
