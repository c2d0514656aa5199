"""Pipelines on host devices over the parity checkpoints, and the resident path's answers."""

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "model"))
import parity
from tiny import make_checkpoint  # noqa: F401

from localmoe import _native as native
from localmoe.devices.host import HostDevice
from localmoe.hub.checkpoint import Checkpoint
from localmoe.kernels.cpu import CpuProgram
from localmoe.model.decoder import decode
from localmoe.model.programs import HostPrograms
from localmoe.prefill.pipeline import Pipeline, Shape
from localmoe.weights.expert_files import FileExperts
from localmoe.weights.expert_source import MemoryExperts

POOL = native.Pool([-1, -1])
SAME = 1e-4
_truths: dict = {}


def prefixes(config):
    """Of the layers with routed experts."""
    return [f"model.layers.{n}.mlp.experts" for n in range(config.num_dense_layers, config.num_layers)]


def memory_source(case):
    return MemoryExperts([layer.moe.experts for layer in case.model.layers if layer.moe])


def file_source(case):
    return FileExperts(Checkpoint.open(case.folder), prefixes(case.config))


def resident(case, sizes, *, start=0):
    """Logits [T, V] of the resident path; remembered."""
    key = (case.folder, tuple(sizes))
    if key not in _truths:
        cache = case.cache()
        _truths[key] = parity.run(resident_program(case, cache), cache.new_table(), case.ids, sizes)[0]
    return _truths[key]


def resident_program(case, cache):
    """For all of the case's tokens."""
    return CpuProgram(lambda ops: decode(ops, case.model, cache), parity.NUM_TOKENS, POOL)


@contextmanager
def many():
    """A maker of pipelines for parity's checks; it closes them all."""
    with ExitStack() as stack:

        def make_program(model, cache, max_tokens, num_devices=1):
            devices = [HostDevice(64 << 20, name=f"host{n}") for n in range(num_devices)]
            for device in devices:
                stack.callback(device.close)
            source = MemoryExperts([layer.moe.experts for layer in model.layers if layer.moe])
            programs = [HostPrograms(model, cache, POOL)] * num_devices
            pipeline = Pipeline(model.config, cache, source, devices, programs, max_tokens, Shape(3, 3))
            stack.callback(pipeline.close)
            return pipeline

        yield make_program


@contextmanager
def opened(case, *, num_devices=1, shape=None, from_files=False, cache=None, max_tokens=100, source=None, **device):
    """A pipeline; `device` has HostDevice's keywords, or `devices` instead."""
    with ExitStack() as stack:
        devices = device.pop("devices", None)
        if devices is None:
            devices = [HostDevice(64 << 20, name=f"host{n}", **device) for n in range(num_devices)]
            for one in devices:
                stack.callback(one.close)
        if source is None:
            source = file_source(case) if from_files else memory_source(case)
        if from_files:
            stack.callback(source.close)
        shape = shape or Shape(group_experts=2, num_slots=4)
        cache = cache or case.cache()
        programs = [HostPrograms(case.model, cache, POOL)] * len(devices)
        pipeline = Pipeline(case.config, cache, source, devices, programs, max_tokens, shape)
        stack.callback(pipeline.close)
        yield pipeline


def logits(case, pipeline, sizes, *, start=0, table=None):
    """Logits [T, V] of all tokens in pieces of `sizes`."""
    table = table or pipeline._cache.new_table()
    found, _ = parity.run(pipeline, table, case.ids[start:], sizes, start=start)
    return found
