"""Answers questions with the exported model, greedily or by sampling, many at a time."""

from dataclasses import dataclass
from pathlib import Path

import torch
from fp8 import dequantise, plain_tensors, quantised_matrices
from network import Guide
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokens import EOS_ID
from torch import Tensor

BATCH = 32


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 takes the likeliest."""

    temperature: float = 0.0
    top_p: float = 1.0


def load_model(folder: Path) -> tuple[Guide, Tokenizer]:
    """The exported model, its FP8 weights dequantised to FP32, and its tokenizer."""
    tensors = load_file(folder / "model.safetensors")
    model = Guide()
    for name, matrix in quantised_matrices(model).items():
        matrix.data.copy_(dequantise(tensors[name], tensors[f"{name}_scale_inv"]))
    for name, tensor in plain_tensors(model).items():
        tensor.data.copy_(tensors[name].float())
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(tensors[f"model.{name}"])
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


@torch.no_grad()
def continuations(model: Guide, prompts: list[list[int]], sampling: Sampling, max_tokens: int = 160) -> list[list[int]]:
    """What follows each prompt, without the end token; prompts of equal length run as one batch."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    results: dict[int, list[int]] = {}
    while order:
        length = len(prompts[order[0]])
        group = [index for index in order[:BATCH] if len(prompts[index]) == length]
        order = order[len(group) :]
        outputs = _continue_batch(model, torch.tensor([prompts[index] for index in group]), sampling, max_tokens)
        results |= dict(zip(group, outputs, strict=True))
    return [results[index] for index in range(len(prompts))]


def _continue_batch(model: Guide, ids: Tensor, sampling: Sampling, max_tokens: int) -> list[list[int]]:
    caches: list[dict[str, Tensor]] = [{} for _ in model.layers]
    start, columns = 0, []
    ended = torch.zeros(len(ids), dtype=torch.bool)
    while len(columns) < max_tokens and not ended.all():
        hidden = model(ids, caches, start)
        start += ids.shape[1]
        ids = _choose(model.lm_head(hidden[:, -1]), sampling)[:, None]
        ended |= ids[:, 0] == EOS_ID
        columns.append(ids[:, 0])
    return [_until_end(row.tolist()) for row in torch.stack(columns, 1)]


def _choose(logits: Tensor, sampling: Sampling) -> Tensor:
    if sampling.temperature == 0:
        return logits.argmax(-1)
    probabilities, order = torch.softmax(logits / sampling.temperature, -1).sort(-1, descending=True)
    kept = probabilities.cumsum(-1) - probabilities < sampling.top_p
    return order.gather(1, torch.multinomial(probabilities * kept, 1))[:, 0]


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids
