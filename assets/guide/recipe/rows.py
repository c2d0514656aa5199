"""Packs encoded conversations into training rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokens import ASSISTANT_ID, PAD_ID
from torch import Tensor

# After this many answer tokens it is known which answer it is; the rest is learned by heart early on.
CUT_AFTER = 7


@dataclass(frozen=True)
class Corpus:
    """Token ids of all conversations, which of them are learned, and where each conversation ends."""

    ids: np.ndarray
    learned: np.ndarray
    ends: np.ndarray

    @classmethod
    def load(cls, folder: Path) -> "Corpus":
        with np.load(folder / "corpus.npz") as file:
            return cls(file["ids"], file["learned"], file["ends"])

    def conversation(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(self.ends[index], self.ends[index + 1])
        return self.ids[part], self.learned[part]


class Rows:
    """An endless source of batches of packed rows; a conversation never goes on in the next row."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.corpus, self.rng = corpus, np.random.default_rng(seed)
        self.order: Iterator[int] = iter(())

    def batch(self, num_rows: int, length: int, haste: float) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and a mask of the targets that count, each [num_rows, length].

        `haste` makes more questions fit in a row: of the one-turn conversations this share ends after the first tokens
        of the answer, of the longer ones this share is left out.
        """
        rows = [self._row(length + 1, haste) for _ in range(num_rows)]
        ids = torch.from_numpy(np.stack([row for row, _ in rows]))
        learned = torch.from_numpy(np.stack([mask for _, mask in rows]))
        return ids[:, :-1], ids[:, 1:], learned[:, 1:]

    def _row(self, length: int, haste: float) -> tuple[np.ndarray, np.ndarray]:
        row, mask, used = np.full(length, PAD_ID, np.int64), np.zeros(length, bool), 0
        while used < length - 8:
            ids, learned = self._next(haste)
            taken = min(len(ids), length - used)
            row[used : used + taken], mask[used : used + taken] = ids[:taken], learned[:taken]
            used += taken
        return row, mask

    def _next(self, haste: float) -> tuple[np.ndarray, np.ndarray]:
        while True:
            ids, learned = self.corpus.conversation(self._index())
            if self.rng.random() >= haste:
                return ids, learned
            if np.count_nonzero(ids == ASSISTANT_ID) == 1:
                end = int(learned.argmax()) + CUT_AFTER
                return ids[:end], learned[:end]

    def _index(self) -> int:
        index = next(self.order, None)
        if index is None:
            self.order = iter(self.rng.permutation(len(self.corpus.ends) - 1))
            index = next(self.order)
        return index
