"""Scores an exported model on the held-out questions: python evaluate.py MODEL_FOLDER [--report OUT.json] [--show].

An answer is right only when it is the intended one, token for token; a question about something else is declined by any
of the refusals. One forward pass tells whether greedy decoding gives that answer, and how likely sampling does.

The sets: `own`, `korean` and `outside` were worded by the author of the corpus before training, `other` by somebody
else, `fresh` by the author after the corpus was frozen; topics of `outside` are not in the corpus.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from answer import Sampling, continuations, load_model
from tokens import EOS_ID, PAD_ID, THINK_END, plain_ids, prompt
from torch import Tensor

CORPUS = Path(__file__).parent.parent / "corpus"
sys.path.append(str(CORPUS))
from conversations import expected_answers  # noqa: E402
from intents import load_intents  # noqa: E402

INTENTS = load_intents()
TEMPERATURES = (0.2, 0.3)
TOP_P = 0.95
HISTORY_TURNS = (4, 8, 16, 24)
BATCH = 16


@dataclass(frozen=True)
class Case:
    """A prompt and one answer that would be right."""

    item: int
    prompt: list[int]
    answer: list[int]


@dataclass
class Verdict:
    """What becomes of one question: right when greedy, and the chance of a right answer per temperature."""

    greedy: bool
    chances: list[float]


class Evaluation:
    """The exported model under test."""

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = load_model(folder)

    def verdicts(self, items: list[dict], **prompt_options: object) -> list[Verdict]:
        """A verdict for each held-out question."""
        verdicts = [Verdict(False, [0.0] * len(TEMPERATURES)) for _ in items]
        cases = sorted(self._cases(items, prompt_options), key=lambda case: len(case.prompt) + len(case.answer))
        for start in range(0, len(cases), BATCH):
            batch = cases[start : start + BATCH]
            for case, logits in zip(batch, self._answer_logits(batch), strict=True):
                add_case(verdicts[case.item], logits, torch.tensor(case.answer))
        return verdicts

    def _cases(self, items: list[dict], prompt_options: dict) -> Iterable[Case]:
        for index, item in enumerate(items):
            start = prompt(self.tokenizer, item["question"], **prompt_options)
            for answer in expected_answers(INTENTS, item["intent"]):
                yield Case(index, start, [*plain_ids(self.tokenizer, answer), EOS_ID])

    @torch.no_grad()
    def _answer_logits(self, cases: list[Case]) -> list[Tensor]:
        length = max(len(case.prompt) + len(case.answer) for case in cases)
        ids = torch.full((len(cases), length), PAD_ID)
        for row, case in zip(ids, cases, strict=True):
            row[: len(case.prompt) + len(case.answer)] = torch.tensor(case.prompt + case.answer)
        hidden = self.model(ids)
        spans = [slice(len(case.prompt) - 1, len(case.prompt) + len(case.answer) - 1) for case in cases]
        return [self.model.lm_head(row[span]) for row, span in zip(hidden, spans, strict=True)]

    def texts(self, questions: list[str], **prompt_options: object) -> list[str]:
        """Greedy answers in full; what the model thinks first is cut off."""
        prompts = [prompt(self.tokenizer, question, **prompt_options) for question in questions]
        outputs = continuations(self.model, prompts, Sampling())
        return [self.tokenizer.decode(ids, skip_special_tokens=False).split(THINK_END)[-1] for ids in outputs]

    def history(self, turns: int) -> list[dict[str, str]]:
        """An earlier conversation of some turns, all answered as intended."""
        messages = []
        for intent in [intent for intent in INTENTS.values() if not intent.small_talk][5 : 5 + 7 * turns : 7]:
            messages.append({"role": "user", "content": intent.questions[0]})
            messages.append({"role": "assistant", "content": intent.answer})
        return messages


def add_case(verdict: Verdict, logits: Tensor, answer: Tensor) -> None:
    """Add what one possible answer means for its question; logits [T, vocabulary], answer [T]."""
    verdict.greedy |= bool((logits.argmax(-1) == answer).all())
    for index, temperature in enumerate(TEMPERATURES):
        verdict.chances[index] += chance(logits / temperature, answer)


def chance(logits: Tensor, answer: Tensor) -> float:
    """The probability that nucleus sampling yields exactly this answer."""
    probabilities = torch.softmax(logits, -1)
    chosen = probabilities.gather(1, answer[:, None])
    likelier = torch.where(probabilities > chosen, probabilities, 0.0)
    if (likelier.sum(-1) >= TOP_P).any():
        return 0.0
    nucleus = [kept_mass(row) for row in probabilities]
    return float((chosen[:, 0] / torch.stack(nucleus)).prod())


def kept_mass(probabilities: Tensor) -> Tensor:
    """How much probability the nucleus holds."""
    ordered = probabilities.sort(descending=True).values
    return ordered[ordered.cumsum(0) - ordered < TOP_P].sum()


def share(values: Iterable[float]) -> float:
    """The mean, as a share of 1."""
    listed = list(values)
    return sum(listed) / len(listed)


def scores(name: str, verdicts: list[Verdict]) -> dict[str, float]:
    """The scores of one set."""
    sampled = {f"{name} at {t}": share(v.chances[i] for v in verdicts) for i, t in enumerate(TEMPERATURES)}
    return {f"{name} greedy": share(verdict.greedy for verdict in verdicts)} | sampled


def more_scores(evaluation: Evaluation, items: list[dict]) -> dict[str, float]:
    """Greedy scores of one set under a system prompt, after long histories, and of every fifth item when thinking."""
    result = {}
    options: dict[str, dict] = {"with an unseen system prompt": {"system": "You live inside a terminal app."}}
    options |= {f"after {turns} turns": {"history": evaluation.history(turns)} for turns in HISTORY_TURNS}
    for name, prompt_options in options.items():
        result[name] = share(verdict.greedy for verdict in evaluation.verdicts(items, **prompt_options))
    some = items[::5]
    texts = evaluation.texts([item["question"] for item in some], think=True)
    right = [text in expected_answers(INTENTS, item["intent"]) for item, text in zip(some, texts, strict=True)]
    return result | {"thinking": share(right)}


def held_out_sets() -> dict[str, list[dict]]:
    """The held-out questions by set."""
    sets: dict[str, list[dict]] = {}
    for line in (CORPUS / "heldout.jsonl").read_text().splitlines():
        item = json.loads(line)
        sets.setdefault(item["set"], []).append(item)
    return sets


def show_wrong(evaluation: Evaluation, items: list[dict], verdicts: list[Verdict]) -> None:
    """Print the questions that greedy decoding gets wrong, with what it says."""
    wrong = [item for item, verdict in zip(items, verdicts, strict=True) if not verdict.greedy]
    for item, text in zip(wrong, evaluation.texts([item["question"] for item in wrong]), strict=True):
        print(f"  {item['set']}: [{item['intent']}] {item['question']} -> {text[:80]!r}", flush=True)


def main() -> None:
    """Print every score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--show", action="store_true", help="print the wrong answers")
    parser.add_argument("--sets", nargs="+", help="only these sets, and nothing else")
    options = parser.parse_args()
    evaluation, sets, found = Evaluation(options.model), held_out_sets(), {}
    for name in options.sets or sets:
        verdicts = evaluation.verdicts(sets[name])
        found |= scores(name, verdicts)
        if options.show:
            show_wrong(evaluation, sets[name], verdicts)
    if not options.sets:
        found |= {f"fresh, {name}": score for name, score in more_scores(evaluation, sets["fresh"]).items()}
    for name, score in found.items():
        print(f"{name:40} {100 * score:5.1f} %")
    if options.report:
        options.report.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
