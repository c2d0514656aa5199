"""The network on one GPU, from stop to stop: as segments.SegmentProgram, with the ops that GpuOps has recorded.

    ops = GpuOps(gpu.chip, max_tokens)
    program = GpuProgram(ops, decode(ops, model, latents), Resident(gpu))

`begin` writes to memory of the system only; the first piece that runs after it issues the copies. What a program has
issued must have been waited for before the next `begin`, and before `logits` and `chosen`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localmoe.errors import CancelledError
from localmoe.kernels.gpu.graphs import Graphs
from localmoe.kernels.gpu.inputs import Inputs, Staged
from localmoe.kernels.gpu.launch import Launch
from localmoe.kernels.gpu.linear import workspace_floats
from localmoe.kernels.gpu.mixture import Choices
from localmoe.kernels.gpu.ops import GpuOps
from localmoe.kernels.gpu.resident import Resident
from localmoe.kernels.gpu.steps import Steps
from localmoe.kernels.ops import CancelFlag, Router
from localmoe.kernels.recording import Call, Value
from localmoe.kernels.segments import Group, Stop, Tokens

FEW_LOGITS = 16  # rows that there is room for from the start
MOST_REPEATED = 32  # tokens of a run that comes again and again: a step of so many sessions


class GpuProgram:
    """A recorded network for up to `ops.max_tokens` tokens. `output` is its logits; None: it has none.

    `num_pages` is the latent cache's; `on_begin` is told what each run is about. `graphs` None: nothing is captured.
    `stay` runs experts' products by programs that stay; it gets what raises where the run is to end.
    """

    def __init__(
        self,
        ops: GpuOps,
        output: Value | None,
        weights: Resident,
        num_pages: int,
        on_begin: Callable[[Tokens], None] | None = None,
        graphs: Graphs | None = None,
        stay: Callable[[Launch, Callable[[], None]], None] | None = None,
    ) -> None:
        self.max_tokens = ops.max_tokens
        self._ops = ops
        self._on_begin = on_begin
        self._graphs = graphs
        self._output = output
        self._gpu = gpu = weights.gpu
        self._done = 0
        self._is_staged = False
        self._cancel: CancelFlag | None = None
        if output is not None:
            ops.dtypes[output.buffer] = torch.float32
        for call in ops.calls:
            _upload_weights(call, weights)
        self._offsets, nbytes = ops.plan(output)
        self._arena = gpu.empty((nbytes,), torch.uint8)
        width = output.width if output else 0
        self._logits = Staged(gpu, (min(FEW_LOGITS, self.max_tokens) if output else 0, width), torch.float32)
        self._inputs = Inputs(gpu, self.max_tokens, num_pages, ops.rope_rule, ops.table)
        self._ids = gpu.empty((len(ops.routed_selected), self.max_tokens, ops.top_k), torch.int32)
        self._choices = Choices(gpu, self.max_tokens, ops.top_k, ops.num_experts)
        self._workspace = gpu.empty((workspace_floats(gpu.chip, self.max_tokens, max(ops.widths)),), torch.float32)
        self._steps = Steps(weights, self._inputs, self._ids, self._choices, self._workspace)
        if stay is not None:
            self._steps.stay = lambda product: stay(product, self._look)

    @property
    def stops(self) -> Sequence[Stop]:
        """Where a run may be left, in order."""
        return self._ops.stops

    @property
    def num_ops(self) -> int:
        """Calls of the recording."""
        return len(self._ops.calls)

    @property
    def nbytes(self) -> int:
        """Activations and scratch."""
        own = (self._arena, self._logits.there, self._ids, self._workspace)
        return sum(t.nbytes for t in own) + self._inputs.nbytes + self._choices.nbytes

    @property
    def progress(self) -> float:
        """The share of the ops that are issued, from any thread."""
        return self._done / max(self.num_ops, 1)

    @property
    def logits(self) -> NDArray[np.float32]:
        """[S, vocab], a copy, once the last op was run and its stream was waited for."""
        found: NDArray[np.float32] = self._logits.here[: self._inputs.num_selected].numpy().copy()
        return found

    def begin(self, tokens: Tokens, cancel: CancelFlag | None, *, urgent: bool = False) -> None:
        """The runs that follow are about `tokens`."""
        del urgent
        assert tokens.num_rows <= self.max_tokens, "too many tokens"
        self._cancel, self._done = cancel, 0
        self._inputs.stage(tokens)
        logits = self._logits.grown(len(tokens.selected) if self._output else 0)
        if self._graphs is not None and logits is not self._logits:
            self._graphs.forget()
        self._logits = logits
        self._forced = tokens.forced_experts
        self._is_staged = True
        if self._on_begin is not None:
            self._on_begin(tokens)

    def run(self, first: int, end: int, group: Group | None = None) -> None:
        """Issues ops [first, end) to the current stream, as one graph where that is known. CancelledError."""
        self._upload()
        issue = partial(self._issue, first, end, group)
        if self._graphs is not None and first < end and self._is_repeated(group):
            self._look()
            self._graphs.run(self._inputs.shape, (first, end), issue, group)
            self._done = end
        else:
            issue()
        if first < end == self.num_ops and self._output is not None:
            self._logits.download(self._inputs.num_selected)

    def _is_repeated(self, group: Group | None) -> bool:
        """Whether what comes is launched alike in every run of this shape.

        A router leaves more behind than rows: what it sorted. Groups whose experts have places sort for themselves.
        Programs that stay are told something else each time.
        """
        tokens, _, is_absorbed = self._inputs.shape
        if tokens > MOST_REPEATED or not is_absorbed or (group is not None and self._steps.stay is not None):
            return False
        return not self._ops.routed_selected if group is None else group.stays and group.places is not None

    def _look(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise CancelledError("The run was cancelled.")

    def _issue(self, first: int, end: int, group: Group | None) -> None:
        for n in range(first, end):
            self._look()
            self._launch(self._ops.calls[n], group)
            self._done = n + 1

    def run_group(self, stop: Stop, group: Group) -> None:
        """One group of the experts at `stop`, added to what the groups before have left."""
        self.run(stop.op, stop.op + 1, group)

    def rows(self, value: Value, count: int) -> Tensor:
        """[count, width]: a view of the value's rows on the device."""
        if self._output is not None and value.buffer == self._output.buffer:
            return self._logits.there[:count, value.start : value.start + value.width]
        dtype, width = self._ops.dtypes[value.buffer], self._ops.widths[value.buffer]
        start = self._offsets[value.buffer]
        rows = self._arena[start : start + count * width * dtype.itemsize].view(dtype).view(count, width)
        return rows[:, value.start : value.start + value.width]

    def routing(self, stop: Stop, count: int) -> tuple[Tensor, Tensor]:
        """[count, K] int32 ids and float32 weights for the experts at `stop`: views, as `rows`."""
        assert stop.weights is not None
        return self._ids[stop.layer][:count], self.rows(stop.weights, count)

    def chosen(self, layer: int) -> NDArray[np.int32]:
        """[rows, K]: the experts that the last run chose in a layer with routed experts, once it was waited for."""
        found: NDArray[np.int32] = self._ids[layer].cpu().numpy()
        return found

    def _upload(self) -> None:
        """Issues the copies of what `begin` has staged, once."""
        if not self._is_staged:
            return
        self._is_staged = False
        self._inputs.upload()
        self._steps.forced = self._forced is not None
        if self._forced is not None:
            for ids, forced, selected in zip(self._ids, self._forced, self._ops.routed_selected, strict=True):
                rows = forced[self._inputs.selected.cpu().numpy()] if selected else forced
                ids[: len(rows)].copy_(torch.from_numpy(rows))

    def _launch(self, call: Call, group: Group | None) -> None:
        args = [self._tensor(a) if isinstance(a, Value) else a for a in call.args]
        if call.method == "experts":
            assert group is not None, "experts need a group"
            self._steps.experts(group, *args)
        else:
            getattr(self._steps, call.method)(*args)

    def _tensor(self, value: Value) -> Any:
        """The value's rows of this run."""
        count = self._ops.rows[value.buffer]
        if count is None:
            count = self._inputs.num_selected if value.selected else self._inputs.num_tokens
        return self.rows(value, count)


def _upload_weights(call: Call, weights: Resident) -> None:
    """All that the call reads, but experts that come in groups."""
    for a in call.args:
        if isinstance(a, np.ndarray):
            weights.vector(a)
        elif isinstance(a, Router) and a.bias is not None:
            weights.vector(a.bias)
        elif call.method in ("linear", "mla_attention") and hasattr(a, "weight"):
            weights.matrix(a)
