"""Writes the training corpus: python generate.py OUT.jsonl [--conversations N] [--seed S]."""

import argparse
import json
from collections import Counter
from pathlib import Path

from conversations import Conversations
from intents import load_intents, normalised

HERE = Path(__file__).parent


def held_out_questions() -> list[dict[str, str]]:
    """All test questions, {set, intent, question}; none of them may be trained on."""
    return [json.loads(line) for line in (HERE / "heldout.jsonl").read_text().splitlines()]


def main() -> None:
    """Write the conversations and say how long they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--conversations", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    held_out = {normalised(item["question"]) for item in held_out_questions()}
    source = Conversations(load_intents(), held_out, options.seed)
    turns: Counter[int] = Counter()
    with options.out.open("w") as file:
        for _ in range(options.conversations):
            conversation = source.next()
            turns[conversation["turns"]] += 1
            file.write(json.dumps(conversation, ensure_ascii=False) + "\n")
    print("conversations by turns:", dict(sorted(turns.items())))


if __name__ == "__main__":
    main()
