"""Turns a plain question into one that a person might type: synonyms, short forms, typing errors, openings."""

import random
import re
import tomllib
from pathlib import Path

from intents import Intent

TABLES = tomllib.loads((Path(__file__).parent / "wording.toml").read_text())
ALPHABET = "abcdefghijklmnoprstuvwy"
KOREAN = re.compile("[가-힣]")


def _compile(groups: list[list[str]]) -> list[tuple[re.Pattern[str], list[str]]]:
    """One pattern per word and group, longest first, so that 'real model' wins over 'model'."""
    pairs = [(word, group) for group in groups for word in group]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return [(re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])", re.IGNORECASE), group) for word, group in pairs]


SYNONYMS = _compile(TABLES["synonyms"])
DROPPABLE = frozenset(TABLES["droppable"])


class Wording:
    """A seeded source of wordings."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def question(self, intent: Intent) -> str:
        """A question for an intent, from its own list or from a template."""
        templated = [(kind, phrase) for kind in ("concepts", "commands", "actions") for phrase in getattr(intent, kind)]
        if templated and self.rng.random() > min(0.75, 0.03 * len(intent.questions)):
            kind, phrase = self.rng.choice(templated)
            return self.rng.choice(TABLES[kind]).format(x=phrase)
        question = self.rng.choice(intent.questions)
        return question if intent.small_talk else self.reworded(question)

    def korean(self, intent: Intent) -> str:
        """A Korean question for an intent that has some."""
        question = self.rng.choice(TABLES["korean_wrappers"]).format(q=self.rng.choice(intent.korean))
        return question.rstrip("?") if self.rng.random() < 0.3 else question

    def reworded(self, question: str) -> str:
        """Swap words for synonyms; now and then drop function words or change their order."""
        for pattern, group in SYNONYMS:
            if self.rng.random() < 0.25 and pattern.search(question):
                replacement = self.rng.choice(group)
                question = pattern.sub(lambda _match, word=replacement: word, question, count=1)
        chance = self.rng.random()
        if chance < 0.22:
            return self._shortened(question)
        return self._reordered(question) if chance < 0.26 else question

    def surface(self, question: str, *, wrap: float = 0.25) -> str:
        """Openings, case, punctuation and typing errors."""
        if KOREAN.search(question):
            return question
        if self.rng.random() < wrap:
            question = self.rng.choice(TABLES["wrappers"]).format(q=question)
        question = self._punctuated(self._cased(question))
        return self._mistyped(question) if self.rng.random() < 0.14 else question

    def _shortened(self, question: str) -> str:
        words = question.split(" ")
        kept = [word for word in words if word.lower().strip("?,.") not in DROPPABLE or self.rng.random() < 0.4]
        return " ".join(kept) if len(kept) > 1 else question

    def _reordered(self, question: str) -> str:
        words = question.rstrip("?").split(" ")
        cut = self.rng.randrange(len(words))
        return " ".join(words[cut:] + words[:cut])

    def _cased(self, question: str) -> str:
        chance = self.rng.random()
        if chance < 0.45:
            return question.lower()
        if chance < 0.47 and len(question) < 30:
            return question.upper()
        return question[:1].upper() + question[1:] if chance < 0.75 else question

    def _punctuated(self, question: str) -> str:
        chance = self.rng.random()
        if chance < 0.35:
            return question.rstrip("?.!") or question
        if chance < 0.42 and question[-1].isalnum():
            return question + "?"
        return question + self.rng.choice((" ", "  ", "!", "??", "...", ".", "?!")) if chance < 0.47 else question

    def _mistyped(self, question: str) -> str:
        """Drop, swap, double or replace a letter of one of the longer words."""
        words = question.split(" ")
        long_words = [index for index, word in enumerate(words) if len(word) >= 4 and word.isalpha()]
        if not long_words:
            return question
        index = self.rng.choice(long_words)
        word, at = words[index], self.rng.randrange(1, len(words[index]) - 1)
        middle = self.rng.choice(("", word[at + 1] + word[at], word[at] * 2, self.rng.choice(ALPHABET)))
        skip = 2 if len(middle) == 2 and middle[0] != middle[1] else 1
        words[index] = word[:at] + middle + word[at + skip :]
        return " ".join(words)
