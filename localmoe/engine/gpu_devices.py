"""The GPUs that a plan runs on: how they are opened, and who makes their programs. CUDA's, or a test's."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from localmoe.devices.device import Device
from localmoe.hardware import Gpu

if TYPE_CHECKING:
    from localmoe.devices.cuda_copy import LockedMemory
    from localmoe.devices.turns import Askers
    from localmoe.model.cache import LatentCache
    from localmoe.model.decoder import Model
    from localmoe.model.programs import Programs

Lock = tuple[Callable[[int, int], None], Callable[[int], None]]  # weights.page_lock's Register and Unregister


class Gpus(Protocol):
    """What makes devices of GPUs."""

    def why_not(self) -> str:
        """Why nothing can run on this machine's GPUs, though the driver shows some; empty where it can."""
        ...

    def open(self, gpus: Sequence[Gpu]) -> Sequence[Device]:
        """A device for each, named as the plan names them."""
        ...

    def programs(
        self, device: Device, model: "Model", cache: "LatentCache", askers: "Askers | None" = None
    ) -> "Programs":
        """With the weights that every token needs on the device, as soon as a program asks for them.

        `askers`: those whom whole prompts leave the device to.
        """
        ...

    def page_lock(self, device: Device) -> Lock | None:
        """Locks and unlocks memory for all of them; None where copies need no such thing."""
        ...


class CudaGpus:
    """NVIDIA's, by torch, which is imported only here and only when asked: it takes seconds."""

    def __init__(self) -> None:
        self._locked: LockedMemory | None = None  # by the devices that were opened so far

    def why_not(self) -> str:
        """As Gpus says."""
        try:
            from localmoe.devices.cuda_torch import why_no_cuda
        except (ImportError, OSError) as error:
            return f"torch cannot be imported ({error})"
        return why_no_cuda()

    def open(self, gpus: Sequence[Gpu]) -> Sequence[Device]:
        """As Gpus says. UsageError for one that torch does not see."""
        from localmoe.devices.cuda import open_devices
        from localmoe.devices.cuda_copy import LockedMemory
        from localmoe.devices.cuda_torch import cuda_numbers

        self._locked = self._locked or LockedMemory()
        numbers = cuda_numbers([(gpu.pci_address, gpu.name) for gpu in gpus])
        return open_devices(numbers, [f"GPU {gpu.index}" for gpu in gpus], self._locked)

    def programs(
        self, device: Device, model: "Model", cache: "LatentCache", askers: "Askers | None" = None
    ) -> "Programs":
        """As Gpus says."""
        from localmoe.devices.cuda import CudaDevice
        from localmoe.model.gpu_programs import GpuPrograms

        assert isinstance(device, CudaDevice)
        return GpuPrograms(model, cache, device.torch_name, askers=askers)

    def page_lock(self, device: Device) -> Lock | None:
        """As Gpus says."""
        from localmoe.devices.cuda import CudaDevice

        assert isinstance(device, CudaDevice)
        return device.lock, device.unlock
