"""Host devices that stand for GPUs: engine.gpu_devices.Gpus without any."""

from localmoe import _native as native
from localmoe.devices.host import HostDevice
from localmoe.model.cache import LatentCache
from localmoe.model.mirror import Mirror
from localmoe.model.programs import HostPrograms

BF16_NAN = 0x7FC0


class HostGpus:
    """`capacity`: bytes of each device. `locked`: what was page-locked, by address."""

    def __init__(self, capacity=1 << 30, why=""):
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

    def programs(self, device, model, cache, askers=None):
        self.made += 1
        return HostPrograms(model, cache, native.Pool([-1]))

    def page_lock(self, device):
        return self.locked.__setitem__, self.locked.__delitem__


class FarGpus(HostGpus):
    """Each has pages of its own, as GPUs have; what nobody has brought there is found out."""

    def programs(self, device, model, cache, askers=None):
        self.made += 1
        pages = LatentCache(cache.num_layers, cache.num_pages, cache.width, "bf16")
        pages._data[:] = BF16_NAN
        return FarPrograms(model, Mirror(cache, pages), native.Pool([-1]))


class FarPrograms(HostPrograms):
    """They tell the mirror what they write, as a GPU's do."""

    def _program(self, ops, output, max_tokens):
        program = super()._program(ops, output, max_tokens)
        begin = program.begin

        def begin_and_hold(tokens, cancel, *, urgent=False):
            self.cache.hold(tokens.segments)
            begin(tokens, cancel, urgent=urgent)

        if output is not None:
            program.begin = begin_and_hold
        return program
