"""Trains the tokenizer on a corpus and encodes the corpus for training.

python prepare.py CORPUS.jsonl DATA_FOLDER MODEL_FOLDER   (the tokenizer files go to MODEL_FOLDER)

With --tokenizer FOLDER an earlier tokenizer is kept, so that weights trained with it go on unchanged.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokens import THINK, THINK_END, encode, train_tokenizer, write_tokenizer


def conversations(corpus: Path) -> Iterator[dict]:
    """The conversations of a corpus file, one after another."""
    with corpus.open() as file:
        yield from map(json.loads, file)


def texts(corpus: Path) -> Iterator[str]:
    """Every message's text, for the tokenizer."""
    for conversation in conversations(corpus):
        for message in conversation["messages"]:
            yield message["content"].replace(THINK, "").replace(THINK_END, "")


def main() -> None:
    """Write the tokenizer and the encoded corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "data", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder of an earlier tokenizer to keep")
    options = parser.parse_args()
    for folder in (options.data, options.model):
        folder.mkdir(parents=True, exist_ok=True)
    earlier = options.tokenizer
    tokenizer = (
        Tokenizer.from_file(str(earlier / "tokenizer.json")) if earlier else train_tokenizer(texts(options.corpus))
    )
    write_tokenizer(tokenizer, options.model)
    ids, learned, ends = [], [], [0]
    for conversation in conversations(options.corpus):
        conversation_ids, conversation_learned = encode(tokenizer, conversation["messages"])
        ids += conversation_ids
        learned += conversation_learned
        ends.append(len(ids))
    np.savez(options.data / "corpus.npz", ids=np.array(ids, np.uint16), learned=np.array(learned), ends=np.array(ends))
    print(f"{len(ends) - 1} conversations, {len(ids)} tokens, {sum(learned)} of them learned")


if __name__ == "__main__":
    main()
