"""Scores an exported model on the held-out questions: python evaluate.py MODEL_FOLDER [--report OUT.json].

An answer is right when it is the intended one word for word (but for 5 % of the characters). Five sets:
`own` and `korean` were worded by the author of the corpus before training, `other` by somebody else,
`outside` has topics that are not in the corpus; `fresh` was worded after training.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from answer import Sampling, continuations, load_model
from tokens import THINK_END, prompt

HERE = Path(__file__).parent
CORPUS = HERE.parent / "corpus"
sys.path.append(str(CORPUS))
from conversations import expected_answers  # noqa: E402
from intents import load_intents  # noqa: E402

INTENTS = load_intents()
HISTORY_TURNS = (4, 8, 16, 24)
GREEDY = Sampling()


def is_right(text: str, intent: str) -> bool:
    """Whether an answer is, almost to the letter, one of those intended."""
    answers = expected_answers(INTENTS, intent)
    return any(difflib.SequenceMatcher(None, text, answer, autojunk=False).ratio() >= 0.95 for answer in answers)


class Evaluation:
    """The exported model under test."""

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = load_model(folder)

    def answers(self, questions: list[str], sampling: Sampling, **prompt_options: object) -> list[str]:
        """The model's answers; what it thinks first is cut off."""
        prompts = [prompt(self.tokenizer, question, **prompt_options) for question in questions]
        outputs = continuations(self.model, prompts, sampling)
        return [self.tokenizer.decode(ids, skip_special_tokens=False).split(THINK_END)[-1] for ids in outputs]

    def score(self, items: list[dict], sampling: Sampling = GREEDY, **prompt_options: object) -> tuple[float, list]:
        """The share of right answers, and the wrong ones."""
        texts = self.answers([item["question"] for item in items], sampling, **prompt_options)
        wrong = [(item, text) for item, text in zip(items, texts, strict=True) if not is_right(text, item["intent"])]
        return 1 - len(wrong) / len(items), wrong

    def history(self, turns: int) -> list[dict[str, str]]:
        """An earlier conversation of some turns, all answered as intended."""
        messages = []
        for intent in list(INTENTS.values())[5 : 5 + 7 * turns : 7]:
            messages.append({"role": "user", "content": intent.questions[0]})
            messages.append({"role": "assistant", "content": intent.answer})
        return messages


def report(evaluation: Evaluation, sets: dict[str, list[dict]], show: Callable[[str], None]) -> dict[str, float]:
    """All scores by name; wrong greedy answers are shown on the way."""
    scores = {}
    for name, items in sets.items():
        scores[f"{name} greedy"], wrong = evaluation.score(items)
        for item, text in wrong:
            show(f"  {name}: [{item['intent']}] {item['question']} -> {text[:90]!r}")
        for temperature in (0.2, 0.3):
            scores[f"{name} at {temperature}"], _ = evaluation.score(items, Sampling(temperature, 0.95))
    scores["own, thinking"], _ = evaluation.score(sets["own"], think=True)
    scores["own, unseen system prompt"], _ = evaluation.score(sets["own"], system="You live inside a terminal app.")
    for turns in HISTORY_TURNS:
        history = evaluation.history(turns)
        scores[f"own after {turns} turns"], _ = evaluation.score(sets["own"][::4], history=history)
    return scores


def held_out_sets() -> dict[str, list[dict]]:
    """The held-out questions by set."""
    sets: dict[str, list[dict]] = {}
    for line in (CORPUS / "heldout.jsonl").read_text().splitlines():
        item = json.loads(line)
        sets.setdefault(item["set"], []).append(item)
    return sets


def main() -> None:
    """Print every score, and the wrong answers on the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--quick", action="store_true", help="greedy scores only")
    options = parser.parse_args()
    torch.manual_seed(0)
    evaluation, sets = Evaluation(options.model), held_out_sets()
    if options.quick:
        scores = {name: evaluation.score(items)[0] for name, items in sets.items()}
    else:
        scores = report(evaluation, sets, print)
    for name, score in scores.items():
        print(f"{name:28} {100 * score:5.1f} %")
    if options.report:
        options.report.write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
