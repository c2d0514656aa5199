"""Questions about everything else, each with the sentence that declines it."""

import random
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
TABLES = tomllib.loads((HERE / "outside.toml").read_text())
WORDS = (HERE / "words.txt").read_text().split()
REFUSALS: dict[str, str] = TABLES["refusals"]


class Outside:
    """A seeded source of (question, refusal) pairs: hand-written topics, random words, arithmetic, whole questions."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = list(TABLES["kinds"])
        self.shares = [TABLES["kinds"][kind]["share"] for kind in self.kinds]

    def pair(self) -> tuple[str, str]:
        """A question that the guide cannot answer, and its refusal."""
        kind = TABLES["kinds"][self.rng.choices(self.kinds, self.shares)[0]]
        template = self.rng.choice(kind["say"])
        return template.format_map(_Slots(self.rng)), REFUSALS[kind["refusal"]]


class _Slots(dict):
    """Fills a template's slots on demand: {number}, {word}, or a name of a list in `outside.toml`."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    def __missing__(self, name: str) -> str:
        if name == "number":
            return str(self.rng.randrange(2, 10 ** self.rng.randrange(1, 5)))
        if name == "word":
            return self.rng.choice(WORDS)
        if name == "topic" and self.rng.random() < 0.4:
            return self._random_topic()
        return self.rng.choice(TABLES["slots"][name])

    def _random_topic(self) -> str:
        return self.rng.choice(("{a}", "a {a}", "the {a}", "the {a} of {b}", "{a} {b}", "{a}s")).format(
            a=self.rng.choice(WORDS), b=self.rng.choice(WORDS)
        )
