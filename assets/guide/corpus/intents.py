"""Reads `intents.toml`: what the guide knows, and the many ways to ask for it."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class FollowUp:
    """Short questions that only make sense after another answer, and the intent that they lead to."""

    say: tuple[str, ...]
    intent: str


@dataclass(frozen=True)
class Intent:
    """One thing to know: an answer, whole questions, and phrases for the question templates."""

    id: str
    answer: str
    questions: tuple[str, ...] = ()
    concepts: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    korean: tuple[str, ...] = ()
    korean_answer: str = ""
    small_talk: bool = False
    follow_ups: tuple[FollowUp, ...] = ()

    @property
    def subject(self) -> str:
        """A few words that name the intent, for the thought before an answer."""
        return (self.concepts + self.commands + self.actions + (self.id.replace("_", " "),))[0]


def load_intents(path: Path = HERE / "intents.toml") -> dict[str, Intent]:
    """All intents by id, in the order of the file."""
    entries = tomllib.loads(path.read_text())["intent"]
    return {entry["id"]: _intent(entry) for entry in entries}


def _intent(entry: dict) -> Intent:
    follow_ups = tuple(FollowUp(tuple(item["say"]), item["intent"]) for item in entry.pop("follow_ups", ()))
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Intent(follow_ups=follow_ups, **fields)


def normalised(question: str) -> str:
    """A question without case and punctuation, to compare it with the ones held out."""
    return re.sub(r"[^\w/]+", " ", question.lower()).strip()
