"""A conversion for the tests."""

from pathlib import Path

import numpy as np

from localmoe.conversion.convert import Conversion
from localmoe.conversion.plan import ConversionPlan, plan_conversion
from localmoe.hub.header import read_header

BF16 = {"quantization_config": None}


def plan_of(source: Path, out: Path) -> ConversionPlan:
    return plan_conversion("mine", source, out)


def convert(source: Path, out: Path, **wanted) -> Path:
    return Conversion(plan_of(source, out), lambda event: None, **wanted).run()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor's bytes as its file has them: codes as uint8, BF16 as uint16."""
    kinds = {"F8_E4M3": np.uint8, "BF16": np.uint16, "F32": np.float32}
    found = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        for name, tensor in read_header(path).items():
            raw = np.frombuffer(data[tensor.start : tensor.stop], kinds[tensor.dtype])
            found[name] = raw.reshape(tensor.shape)
    return found
