"""What a step waits for beside a prompt's product: measured in both ways, and on a GPU within a few tiles."""

import sys
from pathlib import Path

import pytest
from test_persistent import Products

sys.path.append(str(Path(__file__).parents[2] / "devices"))
from stand_in import ThreadRuntime

from localmoe.devices.cuda import CudaDevice
from localmoe.kernels.gpu import preempted
from localmoe.kernels.gpu.chips import CHIPS, chip_of
from localmoe.kernels.gpu.resident import Gpu

SMALL, STEP = (1, 20, 128, 128), (1, 2, 128, 128)


def test_both_ways_are_measured(device, monkeypatch):
    if device.type == "cuda":
        pytest.skip("there at DeepSeek-V3's shapes")
    for name, value in {"LAYER_KERNELS": 1, "NUM_STEPS": 3, "WARM_STEPS": 1, "NUM_PRODUCTS": 1}.items():
        monkeypatch.setattr(preempted, name, value)
    chip, gpu = CHIPS[86], CudaDevice(ThreadRuntime(), "GPU 0")
    product, step = Products(chip, "bf16", SMALL, device), Products(chip, "bf16", STEP, device)
    work = preempted.Work(
        step.launch("down", step.out("down"), stays=False),
        product.launch("down", product.out("down"), stays=False),
        product.launch("down", product.out("down"), stays=True),
    )
    try:
        found = preempted.measured(gpu, Gpu(device, chip), work, 1.0)
    finally:
        gpu.close()
    assert 0 <= found.leaving.median_s <= found.leaving.most_s
    assert 0 <= found.priorities.median_s <= found.priorities.most_s
    assert found.plain_s > 0 and found.resident_s > 0


def test_programs_leave_a_gpu_within_a_few_tiles(device):
    if device.type != "cuda":
        pytest.skip("takes a GPU")
    from localmoe.devices.cuda_torch import TorchRuntime

    gpu = CudaDevice(TorchRuntime(0), "GPU 0")
    try:
        found = preempted.preempted(gpu)
    finally:
        gpu.close()
    assert chip_of(device).num_sms > 0
    assert found.leaving.median_s <= 10 * found.tile_s
    assert found.resident_s <= 1.5 * found.plain_s
