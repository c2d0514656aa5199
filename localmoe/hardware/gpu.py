"""NVIDIA GPUs through NVML. The library is imported only here, and only when asked."""

from importlib import import_module
from typing import Any

from localmoe.hardware.machine import Gpu


class NoGpuError(Exception):
    """Why no GPU can be seen."""


def read_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """All GPUs and the driver's version; NoGpuError with the reason when there is no driver to ask."""
    try:
        nvml = import_module("pynvml")
    except ImportError as error:
        raise NoGpuError("nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoGpuError(_reason(nvml, error)) from error
    try:
        gpus = tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        return gpus, _text(_ask(nvml, nvml.nvmlSystemGetDriverVersion))
    except nvml.NVMLError as error:
        raise NoGpuError(f"the NVIDIA driver does not answer: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _reason(nvml: Any, error: Exception) -> str:
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the NVIDIA driver is not loaded"
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return "no permission to ask the NVIDIA driver"
    return f"the NVIDIA driver does not start: {error}"


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Gpu(
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown",
        total_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        pcie=_pcie(nvml, handle),
    )


def _pcie(nvml: Any, handle: Any) -> str | None:
    """Link now and at most; an idle GPU may run a lower generation until it works."""
    now = [
        _ask(nvml, f, handle) for f in (nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth)
    ]
    most = [
        _ask(nvml, f, handle) for f in (nvml.nvmlDeviceGetMaxPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkWidth)
    ]
    if None in now or None in most:
        return None
    return f"gen {now[0]} x{now[1]} of gen {most[0]} x{most[1]}"


def _ask(nvml: Any, question: Any, *about: Any) -> Any:
    """The answer, or None where this driver or GPU does not know."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _text(name: Any) -> str | None:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
