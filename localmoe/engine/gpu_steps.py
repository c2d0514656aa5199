"""Steps beside a GPU: once it shows which experts are chosen most, those move there and stay.

Short prompts that are read while a longer one's run goes on are like steps: the first GPU and the CPU compute them.
"""

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from localmoe.decode.beside import Beside
from localmoe.decode.hot import HotExperts, count_choices, hottest
from localmoe.devices.spans import Spans
from localmoe.engine.activity import Activity
from localmoe.kernels.ops import CancelFlag, Segment

FROZEN_AFTER = 2048  # tokens, as weights.expert_cache has it: from then on the set stays


class Seen:
    """Which experts prompts and steps chose so far, until FROZEN_AFTER tokens were seen. Both may tell at once."""

    def __init__(self, num_layers: int, num_experts: int) -> None:
        self._lock = Lock()
        self._counts = np.zeros((num_layers, num_experts), np.int64)
        self._num_tokens = 0

    @property
    def is_enough(self) -> bool:
        """Whether the set may be chosen."""
        return self._num_tokens >= FROZEN_AFTER

    def add(self, chosen: NDArray[np.int32] | None) -> None:
        """[moe layers, T, K] of a run that is through; None where it does not tell."""
        if chosen is None:
            return
        counts = count_choices(chosen, self._counts.shape[1])
        with self._lock:
            if not self.is_enough:
                self._counts += counts
                self._num_tokens += chosen.shape[1]

    def hottest(self, num: int) -> list[list[int]]:
        """Ids of `num` experts by layer. A prompt's last layer tells of few tokens: each layer counts for as many."""
        told = self._counts.sum(axis=1, keepdims=True)
        return hottest(self._counts * int(told.max(initial=0)) // np.maximum(told, 1), num)


class GpuSteps:
    """ops.Program for steps: `make` makes what runs them, without hot experts until enough tokens were seen.

    `activity` is told of each step. `place` copies experts, by layer, to the device: `num_hot` in all, 0 for none. The
    set is chosen once, between two steps, and is frozen. Raises what `place` and `make` raise, once: the steps that
    follow go on without hot experts.
    """

    def __init__(
        self,
        make: Callable[[HotExperts | None], Beside],
        seen: Seen,
        activity: Activity,
        num_hot: int,
        place: Callable[[Sequence[Sequence[int]]], HotExperts],
    ) -> None:
        self._make, self._place = make, place
        self._seen = seen
        self._activity = activity
        self._num_hot = num_hot  # 0 once the set is chosen
        self._hot: HotExperts | None = None
        self._plain = self._running = make(None)  # the plain one stays: its rows are page-locked
        self.max_tokens = self._plain.max_tokens

    @property
    def recorded(self) -> Spans:
        """What all steps did, when."""
        return self._running.recorded

    @property
    def progress(self) -> float:
        """0 to 1 within the current run; may be read from any thread."""
        return self._running.progress

    @property
    def nbytes(self) -> int:
        """Activations and scratch at all places, beside hot experts."""
        return self._plain.nbytes + (self._running.nbytes if self._hot else 0)

    @property
    def hot_bytes(self) -> int:
        """Of hot experts, on the device."""
        return self._hot.nbytes if self._hot else 0

    @property
    def last_experts(self) -> NDArray[np.int32] | None:
        """As Beside's."""
        return self._running.last_experts

    def forward(
        self,
        ids: NDArray[np.int32],
        segments: Sequence[Segment],
        *,
        urgent: bool = True,
        cancel: CancelFlag | None = None,
        all_logits: bool = False,
        forced_experts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float32]:
        """As ops.Program says; raises what a device failed with too."""
        with self._activity.step():
            if self._num_hot and self._seen.is_enough:
                self._freeze()
            found = self._running.forward(
                ids, segments, urgent=urgent, cancel=cancel, all_logits=all_logits, forced_experts=forced_experts
            )
        if not self._seen.is_enough:
            self._seen.add(self.last_experts)
        return found

    def close(self) -> None:
        """Gives the hot experts' memory back. The device is the caller's to close."""
        for program in {self._plain, self._running}:
            program.close()
        if self._hot:
            self._hot.close()

    def _freeze(self) -> None:
        num, self._num_hot = self._num_hot, 0
        hot = self._place(self._seen.hottest(num))
        try:
            self._running = self._make(hot)
        except BaseException:
            hot.close()
            raise
        self._hot = hot
