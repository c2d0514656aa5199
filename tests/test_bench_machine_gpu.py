"""GPUs are measured through a small part of torch: here a stand-in for it, whose clock runs as it is told."""

from types import SimpleNamespace

import pytest

from localmoe.bench.machine import gpu as room
from localmoe.bench.machine.gpu import measure_gpus
from localmoe.bench.machine.measure import with_gpus
from localmoe.engine.measured import Measured
from localmoe.hardware import Gpu, Machine
from localmoe.hardware.machine import Cpu, Limits, Memory

MS = 2.0  # that every timed stretch takes by the fake's events


class Ears:
    def __init__(self):
        self.heard, self.warned = [], []

    def progress(self, text):
        self.heard.append(text)

    def warn(self, text):
        self.warned.append(text)


class Tensor:
    def copy_(self, other, non_blocking=False):
        return self

    def add_(self, value):
        return self

    def t(self):
        return self

    def to(self, kind):
        return self


class FakeTorch:
    """Two GPUs whose numbers are not in the driver's order."""

    uint8, bfloat16, float8_e4m3fn = "uint8", "bfloat16", "float8_e4m3fn"

    def __init__(self, *, free=8 << 30, has_fp8=True, peers=True, addresses=True, fails=(), seen=2):
        self.asked = []
        self._has_fp8, self._fails = has_fp8, fails
        numbers = [(0, 0x61, 0), (0, 0x41, 0)][:seen]
        names = ("domain", "bus", "device")
        properties = [
            SimpleNamespace(
                name="RTX", **({f"pci_{n}_id": v for n, v in zip(names, number, strict=True)} if addresses else {})
            )
            for number in numbers
        ]
        self.nn = SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=lambda *_, **__: Tensor()))
        self.cuda = SimpleNamespace(
            is_available=lambda: bool(seen),
            device_count=lambda: seen,
            get_device_properties=properties.__getitem__,
            mem_get_info=lambda _: (free, 32 << 30),
            device=lambda n: self._entered(n),
            synchronize=lambda device=None: None,
            can_device_access_peer=lambda a, b: peers,
            Stream=lambda: SimpleNamespace(wait_event=lambda event: None),
            Event=lambda enable_timing=False: SimpleNamespace(
                record=lambda stream=None: None, synchronize=lambda: None, elapsed_time=lambda end: MS
            ),
        )

    def _entered(self, device):
        from contextlib import nullcontext

        if device in self._fails:
            raise RuntimeError("CUDA error: out of memory\nmore lines")
        self.asked.append(device)
        return nullcontext()

    def empty(self, *shape, **options):
        return Tensor()

    randn = ones = empty

    def mm(self, x, y):
        return Tensor()

    def _scaled_mm(self, x, y, **options):
        if not self._has_fp8:
            raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0")
        return Tensor()


def machine(count=2, name="RTX"):
    addresses = ["0000:41:00.0", "0000:61:00.0"]
    gpus = tuple(
        Gpu(name, 32 << 30, 30 << 30, "12.0", None, None, index=n, pci_address=addresses[n]) for n in range(count)
    )
    return Machine(
        cpu=Cpu(None, None, None, None, (), ()),
        nodes=(),
        memory=Memory(None, None, None, None, None, None),
        limits=Limits((), 1, None, None),
        disks=(),
        gpus=gpus,
        gpu_driver="1",
        container=None,
        hypervisor=None,
        unknown=(),
    )


def test_every_figure_comes_from_what_it_took():
    torch, ears = FakeTorch(), Ears()
    (first, second), together = measure_gpus(machine(), ears, torch)
    call_s = MS / 1e3 / room.NUM_COPIES
    assert first.name == second.name == "RTX"
    assert first.h2d_bytes_s == pytest.approx(room.COPY_BYTES / call_s)
    assert first.memory_bytes_s == pytest.approx(2 * room.COPY_BYTES / call_s)
    assert first.gemm_flop_s == pytest.approx(2 * 4096 * 7168 * 2048 / call_s)
    assert first.attention_flop_s == pytest.approx(2 * 32 * 4096 * 4096 * 128 / call_s)
    assert min(first.launch_s, first.event_s, first.layer_s, first.peer_bytes_s, together) > 0
    assert torch.asked == [1, 0]  # by address
    assert not ears.warned


def test_without_addresses_gpus_are_known_by_name():
    torch = FakeTorch(addresses=False)
    measure_gpus(machine(), Ears(), torch)
    assert torch.asked == [0, 1]


def test_a_gpu_without_fp8_is_measured_with_bf16():
    (found, *_), _ = measure_gpus(machine(), Ears(), FakeTorch(has_fp8=False))
    assert found.gemm_flop_s > 0


def test_gpus_that_do_not_reach_each_other_have_no_rate_between_them():
    found, together = measure_gpus(machine(), Ears(), FakeTorch(peers=False))
    assert [one.peer_bytes_s for one in found] == [None, None]
    assert together > 0


def test_one_gpu_alone():
    (found,), together = measure_gpus(machine(1), Ears(), FakeTorch(seen=2))
    assert found.h2d_bytes_s and found.peer_bytes_s is None and together is None


@pytest.mark.parametrize(
    ("torch", "count", "said"),
    [
        (FakeTorch(free=1 << 30), 2, "less than 2.1 GB of its memory are free"),
        (FakeTorch(seen=0), 1, "this torch sees none"),
        (FakeTorch(seen=1), 1, "torch does not see it"),
        (FakeTorch(fails=(0, 1)), 2, "CUDA error: out of memory"),
    ],
    ids=["full", "none", "another one", "failing"],
)
def test_what_cannot_be_measured_is_said(torch, count, said):
    ears = Ears()
    found, together = measure_gpus(machine(count), ears, torch)
    assert together is None
    assert all(one.h2d_bytes_s is None for one in found)
    assert any(said in text for text in ears.warned)
    assert all("more lines" not in text for text in ears.warned)


def test_one_gpu_that_fails_does_not_hide_the_other():
    (first, second), together = measure_gpus(machine(), Ears(), FakeTorch(fails=(1,)))
    assert first.h2d_bytes_s is None and second.h2d_bytes_s
    assert together is None


def test_a_torch_that_cannot_be_imported_is_said(monkeypatch):
    def missing():
        raise ImportError("libcudart.so is missing")

    monkeypatch.setattr(room, "_import_torch", missing)
    ears = Ears()
    assert measure_gpus(machine(), ears) == ((), None)
    assert "libcudart.so" in ears.warned[0]


def test_without_a_gpu_nothing_is_asked_of_torch(monkeypatch):
    monkeypatch.setattr(room, "_import_torch", pytest.fail)
    measured = Measured("2026-11-30", "0.1.0", "avx2", 2)
    assert with_gpus(machine(0), measured, Ears()) is measured
