"""Opening a model on the GPUs of its plan: what each holds is counted before anything is put there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localmoe.devices.device import Device
from localmoe.devices.turns import Askers
from localmoe.engine.gpu_devices import Gpus
from localmoe.engine.plan import Plan
from localmoe.errors import OutOfMemoryError
from localmoe.hardware import Machine
from localmoe.hardware.placement import worker_cpus
from localmoe.model.config import ModelConfig
from localmoe.model.tensors import expert_prefixes
from localmoe.weights.expert_source import MemoryExperts
from localmoe.weights.store import Store

if TYPE_CHECKING:
    from localmoe.engine.gpu_network import GpuNetwork

WORKSPACE = "workspace"  # the item that CUDA has taken already when a device is open


def open_on_gpus(config: ModelConfig, store: Store, plan: Plan, machine: Machine, gpus: Gpus) -> "GpuNetwork":
    """The network with `store`, which holds all weights, page-locked where the plan says so."""
    from localmoe.engine.gpu_network import GpuNetwork, Side, Streaming
    from localmoe.model.network import open_network
    from localmoe.prefill.pipeline import Shape

    assert plan.ring is not None and plan.sharing is not None, "a plan with GPUs has a ring, and shares"
    devices = gpus.open([machine.gpus[n] for n in plan.gpus])
    try:
        for device in devices:
            check_room(plan, device)
        if plan.locks_experts and (lock := gpus.page_lock(devices[0])):
            store.lock_pages(*lock)
        network = open_network(
            config,
            store,
            cpus=worker_cpus(plan.num_threads),
            isa=plan.isa,
            cache_dtype="bf16",
            num_pages=plan.num_pages,
        )
        askers = Askers.on(devices[0]) if plan.sharing.takes_turns else None
        sides = [Side(device, gpus.programs(device, network.model, network.cache, askers)) for device in devices]
    except BaseException:
        _close(devices)
        raise
    group = plan.ring.group_experts
    shape = Shape(group, max(1, plan.ring.slots // group))
    source = MemoryExperts([store.experts(prefix) for prefix in expert_prefixes(config)])
    streaming = Streaming(plan.crossover_tokens, shape, plan.chunk, plan.sharing, plan.alone_tokens)
    return GpuNetwork(network, source, sides, streaming, askers)


def check_room(plan: Plan, device: Device) -> None:
    """OutOfMemoryError with every line item where the device has less than the plan puts there."""
    items = [item for item in plan.items if item.place == device.name]
    needed = sum(item.num_bytes for item in items if item.name != WORKSPACE)
    free = device.free_bytes
    if needed > free:
        listed = ", ".join(f"{item.name} {item.num_bytes / 1e9:,.1f}" for item in items)
        raise OutOfMemoryError(
            f"the plan needs {needed / 1e9:,.1f} GB on {device.name} beside its workspace and {free / 1e9:,.1f} GB are"
            f" free now ({listed}).",
            "close what else uses that GPU, choose a shorter --context, or --plan cpu",
            needed - free,
        )


def _close(devices: Sequence[Device]) -> None:
    for device in devices:
        device.close()
