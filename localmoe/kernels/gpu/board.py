"""What programs of a persistent kernel look at between two tiles, on the GPU: counters, and the urgent job.

Nobody but the programs moves NEXT, OVER, URGENT_NEXT and URGENT_DONE; nobody but others the rest.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from localmoe.kernels.gpu.launch import Argument, Launch
from localmoe.kernels.gpu.resident import Gpu

# Of `counters`: the next bulk tile; 1 once there was none left; how many requests to leave were answered; the next
# urgent ticket; how many there are in all; how many are computed.
NEXT, OVER, ANSWERED, URGENT_NEXT, URGENT_END, URGENT_DONE = range(6)
NUM_COUNTERS = 8
UNIT = 128  # columns: sizes of an urgent job are told in so many, which says to the compiler that it divides them
STRIDE_UNIT = 16  # likewise, of weights
ALIGN_BYTES = 16
NUM_STAGED = 1024  # jobs that may be issued before the first of them is opened: a step has fewer


@dataclass(frozen=True)
class Job:
    """An urgent product, in the order in which the kernel reads it: addresses, then sizes.

    `first` is its first ticket, `number` what its flag gets once all are computed.
    """

    x: int
    x_scale: int
    tokens: int
    offsets: int
    gate: int
    gate_scale: int
    up: int
    up_scale: int
    out: int
    num_experts: int
    cols: int  # units
    rows: int
    x_stride: int  # units
    w_stride: int  # stride units
    w_scale_stride: int
    out_stride: int  # units
    is_gated: int
    first: int
    end: int
    number: int


NUM_FIELDS = len(fields(Job))
END_FIELD = [field.name for field in fields(Job)].index("end")


def why_not_urgent(product: Launch) -> str:
    """What the kernel takes for granted of an urgent job and `product` has not; empty where it has all."""
    args, gate = product.args, product.args["gate"]
    assert isinstance(gate, Tensor)
    for name, size, unit in (
        ("columns", args["num_cols"], UNIT),
        ("the stride of activations", args["x_stride"], UNIT),
        ("the stride of the output", args["out_stride"], UNIT),
        ("the stride of experts", args["w_stride"], STRIDE_UNIT),
    ):
        assert isinstance(size, int)
        if size % unit:
            return f"{name} of urgent jobs are a multiple of {unit}, not {size}"
    operands = (args[name] for name in ("x", "gate", "up", "out"))
    if any(isinstance(t, Tensor) and not t.is_meta and t.data_ptr() % ALIGN_BYTES for t in operands):
        return f"operands of urgent jobs lie at multiples of {ALIGN_BYTES}"
    return ""


def job_of(product: Launch, tickets: range, number: int) -> Job:
    """`product`, of experts.gate_up or experts.down, as an urgent job."""
    assert not (why := why_not_urgent(product)), why
    args = product.args

    def size(name: str, unit: int = 1) -> int:
        found = args[name]
        assert isinstance(found, int)
        return found // unit

    names = ("x", "x_scale", "tokens", "offsets", "gate", "gate_scale", "up", "up_scale", "out")
    return Job(
        **{name: _address(args[name]) for name in names},
        num_experts=size("num_experts"),
        cols=size("num_cols", UNIT),
        rows=size("num_rows"),
        x_stride=size("x_stride", UNIT),
        w_stride=size("w_stride", STRIDE_UNIT),
        w_scale_stride=size("w_scale_stride"),
        out_stride=size("out_stride", UNIT),
        is_gated=int(product.constants["GATED"]),
        first=tickets.start,
        end=tickets.stop,
        number=number,
    )


def _address(tensor: Argument) -> int:
    return tensor.data_ptr() if isinstance(tensor, Tensor) and not tensor.is_meta else 0


class Board:
    """`asked` and `passing` [1] int32 in memory that the GPU and the host see: the numbers of the last requests to
    leave, of steps and of prompts that pass.

    `finished` [1] int32, likewise: the number of the last urgent job that is done.
    """

    def __init__(self, gpu: Gpu, asked: Tensor, passing: Tensor, finished: Tensor) -> None:
        self.asked, self.passing, self.finished = asked, passing, finished
        self.counters = gpu.empty((NUM_COUNTERS,), torch.int64).zero_()
        self.job = gpu.empty((NUM_FIELDS,), torch.int64).zero_()
        self._staged = gpu.staging((NUM_STAGED, NUM_FIELDS), torch.int64)
        self._told = gpu.staging((NUM_COUNTERS,), torch.int64).zero_()

    def begin(self) -> None:
        """Issues what makes the next launch a new product's first one. The launches before were waited for."""
        self._told.zero_()
        self.counters[: OVER + 1].zero_()

    def answer(self, num_requests: int) -> None:
        """Issues it: launches from here on take so many requests as answered, of both together."""
        self.counters[ANSWERED].fill_(num_requests)

    def publish(self, job: Job) -> None:
        """Issues the job's fields, then its last ticket, which opens it. The stream has waited for the job before."""
        staged = self._staged[job.number % NUM_STAGED]
        staged.copy_(torch.tensor([getattr(job, f.name) for f in fields(Job)], dtype=torch.int64))
        self.job.copy_(staged, non_blocking=True)
        self.counters[URGENT_END : URGENT_END + 1].copy_(staged[END_FIELD : END_FIELD + 1], non_blocking=True)

    def tell(self) -> None:
        """Issues the copy that `is_over` looks at."""
        self._told.copy_(self.counters, non_blocking=True)

    @property
    def is_over(self) -> bool:
        """Whether no bulk tile is left, as of the last `tell`, which was waited for."""
        return bool(self._told[OVER])
