"""Long texts folded to a word in the prompt: `[pasted 1: 812 lines]` stands for all of them."""

import re

from localmoe.chat.attachment import sections

FOLDED_LINES, FOLDED_LETTERS = 10, 1_200  # a paste beyond either is folded
_EDITABLE_LETTERS = 20_000  # more than that is folded also where it comes back to be changed


class Blocks:
    """Labels and the texts behind them. A label that is deleted keeps its text: undo may bring it back."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._number = 0

    def fold(self, text: str) -> str:
        """A new label for `text`."""
        self._number += 1
        return self._add(f"pasted {self._number}", text)

    def fold_paste(self, text: str) -> str:
        """A label where `text` is long, else `text`."""
        is_long = text.count("\n") >= FOLDED_LINES or len(text) > FOLDED_LETTERS
        return self.fold(text) if is_long else text

    def fold_again(self, text: str) -> str:
        """`text` as it can be changed: files, and what was folded before or is too long to be shown, as labels."""
        for label, whole in self._texts.items():
            text = text.replace(whole, label)
        for section in reversed(sections(text)):
            mark = text[section.start : section.end].lstrip("\n")
            start = section.end - len(mark)
            text = text[:start] + self._add(f"file {section.name}", mark) + text[section.end :]
        return self.fold(text) if len(text) > _EDITABLE_LETTERS else text

    def whole(self, text: str) -> str:
        """`text` with all it stands for."""
        return self._labels.sub(lambda match: self._texts[match[0]], text) if self._texts else text

    def spans(self, line: str) -> list[tuple[int, int]]:
        """Where labels stand in a line."""
        return [match.span() for match in self._labels.finditer(line)] if self._texts else []

    def labels_in(self, text: str) -> list[str]:
        """The labels in `text`."""
        return [match[0] for match in self._labels.finditer(text)] if self._texts else []

    def _add(self, name: str, text: str) -> str:
        lines = text.rstrip("\n").count("\n") + 1 - 2 * name.startswith("file ")
        label = f"[{name}: {lines:,} line{'s' * (lines != 1)}]"
        while self._texts.get(label, text) != text:
            label = f"{label[:-1]} ]"
        self._texts = {**self._texts, label: text}  # a new one: a thread may be looking into the old one
        return label

    @property
    def _labels(self) -> re.Pattern[str]:
        longest_first = sorted(self._texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))
