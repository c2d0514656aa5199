"""Trains the guide on prepared data for a given time: python train.py DATA_FOLDER CHECKPOINT --minutes M [--resume]."""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from fp8 import round_to_stored
from muon import Muon
from network import Guide
from rows import Corpus, Rows
from tokenizers import Tokenizer
from torch import Tensor
from warm_start import warm_start

WARM_UP_STEPS = 40
SAVE_EVERY_S = 150
LOG_EVERY_STEPS = 20


@dataclass(frozen=True)
class Phase:
    """From a share of the time on: the rows of a batch, and the haste with which they are filled (see `Rows`)."""

    start: float
    num_rows: int
    length: int
    haste: float


PHASES = (Phase(0.0, 8, 256, 0.85), Phase(0.5, 4, 512, 0.85), Phase(0.8, 2, 1024, 0.5))
DECAY_START = 0.5
ROUNDED_START = 0.86


def phase_at(progress: float) -> Phase:
    """The phase in force at a share of the time."""
    return max((phase for phase in PHASES if phase.start <= progress), key=lambda phase: phase.start)


def rate_at(step: int, progress: float) -> float:
    """Learning-rate factor: a short warm-up, constant, then a straight line to almost zero."""
    decay = min(1.0, (1 - progress) / (1 - DECAY_START))
    return max(0.005, min(1.0, (step + 1) / WARM_UP_STEPS) * decay)


class Training:
    """The network with its optimizers: Muon for the matrices, AdamW for embeddings, head, router and norms."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.model = Guide()
        matrices, others = split_parameters(self.model, options.adamw_only)
        self.muon = Muon(matrices)
        self.adamw = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
        self.rows = Rows(Corpus.load(options.data), options.seed)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.logged, self.busiest = time.time(), 1.0

    def run(self) -> None:
        """Train until the time is used up, saving every few minutes."""
        started, saved, marked, recent = time.time() - self.seconds, time.time(), self.tokens, []
        while (progress := (time.time() - started) / (60 * self.options.minutes)) < 1:
            recent.append(self._update(progress))
            self.seconds = time.time() - started
            if self.step % LOG_EVERY_STEPS == 0:
                self._log(progress, recent, self.tokens - marked)
                marked, recent = self.tokens, []
            if time.time() - saved > SAVE_EVERY_S:
                self.save()
                saved = time.time()
        self.save()
        print(f"done: {self.step} steps, {self.tokens} tokens, {self.seconds / 60:.1f} min", flush=True)

    def _update(self, progress: float) -> float:
        phase, factor = phase_at(progress), rate_at(self.step, progress)
        inputs, targets, learned = self.rows.batch(phase.num_rows, phase.length, phase.haste)
        loss = self._gradients(inputs, targets, learned, rounded=progress > ROUNDED_START)
        torch.nn.utils.clip_grad_norm_(self.adamw.param_groups[0]["params"], 1.0)
        self.adamw.param_groups[0]["lr"] = self.options.rate * factor
        self.adamw.step()
        self.muon.step(self.options.muon_rate * factor)
        self.model.zero_grad(set_to_none=True)
        self._balance(0.004 * max(factor, 0.02))
        self.step += 1
        self.tokens += inputs.numel()
        return loss

    def _gradients(self, inputs: Tensor, targets: Tensor, learned: Tensor, *, rounded: bool) -> float:
        """Backward pass; `rounded` computes with the weights as they will be stored (straight-through)."""
        exact = [parameter.data.clone() for parameter in self.model.parameters()] if rounded else None
        if rounded:
            round_to_stored(self.model)
        loss = F.cross_entropy(self.model.lm_head(self.model(inputs)[learned]), targets[learned])
        loss.backward()
        if exact:
            for parameter, value in zip(self.model.parameters(), exact, strict=True):
                parameter.data.copy_(value)
        return loss.item()

    def _balance(self, rate: float) -> None:
        """Move each router's bias toward an even load (DeepSeek-V3 paper, section 2.1.2)."""
        for mixture in self.model.mixtures():
            mixture.gate.e_score_correction_bias += rate * torch.sign(mixture.load.mean() - mixture.load)
            self.busiest = mixture.load.max().item() / mixture.load.mean().item()
            mixture.load.zero_()

    def _log(self, progress: float, losses: list[float], tokens: int) -> None:
        rate, self.logged = tokens / (time.time() - self.logged), time.time()
        loss = sum(losses) / len(losses)
        print(f"{time.strftime('%H:%M:%S')} step {self.step} {progress:.3f} loss {loss:.4f}", end=" ")
        print(f"tokens {self.tokens / 1e6:.2f}M {rate:.0f} tok/s busiest x{self.busiest:.2f}", flush=True)

    def save(self) -> None:
        """Write the checkpoint in one move, so that a killed run leaves the last one whole."""
        state = {name: getattr(self, name).state_dict() for name in ("model", "muon", "adamw")}
        state |= {name: getattr(self, name) for name in ("step", "tokens", "seconds")}
        partial = self.options.checkpoint.with_suffix(".part")
        torch.save(state, partial)
        partial.replace(self.options.checkpoint)

    def resume(self) -> None:
        """Go on from the checkpoint; the order of the rows starts anew."""
        state = torch.load(self.options.checkpoint)
        for name in ("model", "muon", "adamw"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.rows = Rows(self.rows.corpus, self.options.seed + self.step)


def split_parameters(model: Guide, adamw_only: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The hidden matrices, and everything else."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        hidden = parameter.dim() > 1 and not name.endswith(("embed_tokens.weight", "lm_head.weight", "gate.weight"))
        (matrices if hidden and not adamw_only else others).append(parameter)
    return matrices, others


def main() -> None:
    """Start, or go on, and save at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--rate", type=float, default=2.5e-3, help="AdamW's learning rate")
    parser.add_argument("--muon-rate", type=float, default=4e-3)
    parser.add_argument("--adamw-only", action="store_true")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--start", type=Path, help="folder of an earlier export to start from")
    parser.add_argument("--tokenizer", type=Path, help="folder of the new tokenizer, with --start")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    training = Training(options)
    if options.resume and options.checkpoint.exists():
        training.resume()
    elif options.start:
        warm_start(training.model, options.start, Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")))
    training.run()


if __name__ == "__main__":
    main()
