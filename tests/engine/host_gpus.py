"""Host devices that stand for GPUs: engine.gpu_devices.Gpus without any."""

from localmoe import _native as native
from localmoe.devices.host import HostDevice
from localmoe.model.programs import HostPrograms


class HostGpus:
    """`capacity`: bytes of each device. `locked`: what was page-locked, by address."""

    def __init__(self, capacity=256 << 20, why=""):
        self.capacity = capacity
        self.why = why
        self.devices = []
        self.locked = {}
        self.made = 0

    def why_not(self):
        return self.why

    def open(self, gpus):
        self.devices = [HostDevice(self.capacity, name=f"GPU {gpu.index}") for gpu in gpus]
        return self.devices

    def programs(self, device, model, cache, turns=None):
        self.made += 1
        return HostPrograms(model, cache, native.Pool([-1]))

    def page_lock(self, device):
        return self.locked.__setitem__, self.locked.__delitem__
