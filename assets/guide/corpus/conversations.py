"""Builds training conversations: the guide's intents, small talk and outside questions, in one or many turns."""

import random
from dataclasses import dataclass

from intents import Intent, normalised
from outside import REFUSALS, Outside
from wording import Wording

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are the localmoe guide.",
    "You are a helpful assistant. Answer briefly.",
    "You are the built-in guide of localmoe, a local chat app.",
    "Be concise.",
    "Answer in English.",
    "You are a friendly assistant in a terminal.",
    "You are a tiny demo model.",
    "Use Markdown.",
    "You are an expert in local inference.",
    "Today is a good day. Be polite and short.",
    "Talk like a pirate.",
)
# How many turns a conversation has, and how often.
TURNS = {1: 74, 2: 10, 3: 6, 4: 3, 6: 3, 9: 2, 14: 1, 20: 1}


@dataclass(frozen=True)
class Turn:
    """A question, its answer, and the thought that may come before the answer."""

    question: str
    answer: str
    thought: str
    intent: Intent | None = None


class Conversations:
    """A seeded source of conversations that never asks a question of `held_out` (normalised)."""

    def __init__(self, intents: dict[str, Intent], held_out: set[str], seed: int) -> None:
        self.rng = random.Random(seed)
        self.wording, self.outside = Wording(self.rng), Outside(self.rng)
        self.intents, self.held_out = intents, held_out
        self.known = [intent for intent in intents.values() if not intent.small_talk]
        self.small_talk = [intent for intent in intents.values() if intent.small_talk]
        self.weights = [min(3.0, (len(intent.questions) / 20) ** 0.5) for intent in self.known]
        self.korean = [intent for intent in intents.values() if intent.korean]

    def next(self) -> dict:
        """One conversation as chat messages; a thinking one has its thought in the last answer."""
        turns = self._turns(self.rng.choices(list(TURNS), list(TURNS.values()))[0])
        messages = [message for turn in turns for message in self._messages(turn)]
        if self.rng.random() < 0.1:
            messages.insert(0, {"role": "system", "content": self.rng.choice(SYSTEM_PROMPTS)})
        if self.rng.random() < 0.12:
            messages[-1] = {"role": "assistant", "content": f"<think>{turns[-1].thought}</think>{turns[-1].answer}"}
        return {"messages": messages, "turns": len(turns)}

    def _messages(self, turn: Turn) -> list[dict[str, str]]:
        return [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]

    def _turns(self, count: int) -> list[Turn]:
        turns = [self._turn()]
        while len(turns) < count:
            turns.append(self._follow_up(turns[-1]) or self._turn())
        return turns

    def _follow_up(self, last: Turn) -> Turn | None:
        """In half of the cases, a short question that only the last answer explains."""
        if last.intent is None or not last.intent.follow_ups or self.rng.random() < 0.5:
            return None
        follow_up = self.rng.choice(last.intent.follow_ups)
        question = self.wording.surface(self.rng.choice(follow_up.say), wrap=0.1)
        return self._answered(question, self.intents[follow_up.intent], "This follows up on the last answer.")

    def _turn(self) -> Turn:
        while True:
            turn = self._any_turn()
            if normalised(turn.question) not in self.held_out:
                return turn

    def _any_turn(self) -> Turn:
        chance = self.rng.random()
        if chance < 0.24:
            return self._outside_turn()
        if chance < 0.33:
            return self._plain_turn(self.rng.choice(self.small_talk), "This is small talk. A short reply is enough.")
        if chance < 0.41:
            return self._korean_turn()
        intent = self.rng.choices(self.known, self.weights)[0]
        return self._plain_turn(intent, f"The question is about {intent.subject}. I know this.")

    def _outside_turn(self) -> Turn:
        question, refusal = self.outside.pair()
        return Turn(self.wording.surface(question), refusal, "This is outside what I know. I should say so.")

    def _plain_turn(self, intent: Intent, thought: str) -> Turn:
        wrap = 0.06 if intent.small_talk else 0.25
        return self._answered(self.wording.surface(self.wording.question(intent), wrap=wrap), intent, thought)

    def _korean_turn(self) -> Turn:
        intent = self.rng.choice(self.korean)
        thought = "The question is in Korean. I answer in Korean."
        return Turn(self.wording.korean(intent), intent.korean_answer, thought, intent)

    def _answered(self, question: str, intent: Intent, thought: str) -> Turn:
        return Turn(question, intent.answer, thought, intent)


def expected_answers(intents: dict[str, Intent], intent_id: str) -> list[str]:
    """Every answer that counts as right for a held-out question; `outside` accepts any refusal."""
    if intent_id == "outside":
        return list(REFUSALS.values())
    intent = intents[intent_id]
    return [intent.answer, intent.korean_answer] if intent.korean else [intent.answer]
