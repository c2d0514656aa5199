"""The oracle: transformers with the checkpoint's weights dequantised to FP32, read by nothing of ours.

answer = Oracle(folder)(ids)      # .logits [T, V], .experts [moe layers, T, K], .gap(layer, token)
"""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

torch.set_num_threads(1)  # tiny tensors: a second thread only waits, and spins while it does
BLOCK = 128
CLASSES = {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3", "kimi_k2": "DeepseekV3"}


@dataclass(frozen=True)
class Rule:
    """How one layer chooses experts, as far as ties are concerned."""

    top_k: int
    groups: int
    top_groups: int
    softmax: bool
    bias: np.ndarray | None


@dataclass(frozen=True)
class Answer:
    """What the oracle says of one sequence."""

    logits: np.ndarray  # [T, V] float32
    experts: np.ndarray  # [moe layers, T, K] int32, in no order
    router_logits: list[np.ndarray]  # of each MoE layer [T, E] float32
    rules: list[Rule]

    def gap(self, layer: int, token: int) -> float:
        """The distance between the last choice taken and the first one left: a near tie when it is tiny."""
        rule, scores = self.rules[layer], self._scores(layer, token)
        if rule.groups == 1:
            return _margin(scores, rule.top_k)
        groups = np.sort(scores.reshape(rule.groups, -1), axis=1)[:, ::-1]
        best = groups[:, 0] if rule.softmax else groups[:, :2].sum(axis=1)
        allowed = np.argsort(-best, kind="stable")[: rule.top_groups]
        return min(_margin(best, rule.top_groups), _margin(groups[allowed].ravel(), rule.top_k))

    def _scores(self, layer: int, token: int) -> np.ndarray:
        rule, logits = self.rules[layer], self.router_logits[layer][token].astype(np.float64)
        if rule.softmax:
            powers = np.exp(logits - logits.max())
            return powers / powers.sum()
        return 1 / (1 + np.exp(-logits)) + (0 if rule.bias is None else rule.bias)


class Oracle:
    """transformers' own model of a checkpoint: eager attention, FP32."""

    def __init__(self, folder: Path | str) -> None:
        self.config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self.model = _empty_model(self.config)
        lacking, unknown = self.model.load_state_dict(dequantised_weights(Path(folder), self.config), strict=False)
        assert not unknown
        assert all("shared_experts" in name for name in lacking)  # of width 0 where a model has none
        self.gates = [layer.mlp.gate for layer in self.model.model.layers if hasattr(layer.mlp, "gate")]

    @torch.inference_mode()
    def __call__(self, ids: np.ndarray) -> Answer:
        """The whole sequence in one go."""
        seen: list[tuple[torch.Tensor, ...]] = []  # of each MoE layer: router logits, weights, experts
        hooks = [gate.register_forward_hook(lambda module, args, output: seen.append(output)) for gate in self.gates]
        logits = self.model(torch.from_numpy(np.asarray(ids, np.int64))[None], use_cache=False).logits[0]
        for hook in hooks:
            hook.remove()
        experts = np.array([chosen.numpy() for _, _, chosen in seen], np.int32)
        experts = experts.reshape(len(seen), len(ids), self.config["num_experts_per_tok"])  # also without MoE layers
        return Answer(logits.numpy(), experts, [r.numpy() for r, _, _ in seen], [self._rule(g) for g in self.gates])

    def _rule(self, gate: torch.nn.Module) -> Rule:
        c, bias = self.config, getattr(gate, "e_score_correction_bias", None)
        groups = (1, 1) if c.get("topk_method") == "greedy" else (c["n_group"], c["topk_group"])
        return Rule(c["num_experts_per_tok"], *groups, bias is None, None if bias is None else bias.numpy())


def dequantised_weights(folder: Path, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All tensors but the MTP layer's in FP32, under transformers' names: a layer's experts are one tensor there."""
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= load_file(file)
    stored = {name: value for name, value in stored.items() if not _is_mtp(name, config)}
    scales = {name: stored.pop(name) for name in list(stored) if name.endswith("_scale_inv")}
    weights = {name: _dequantised(value, scales.get(name + "_scale_inv")) for name, value in stored.items()}
    for n in range(config["num_hidden_layers"]):
        _stack_experts(weights, f"model.layers.{n}.mlp.experts.", config["n_routed_experts"])
    if config.get("tie_word_embeddings"):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


def _is_mtp(name: str, config: dict[str, Any]) -> bool:
    parts = name.split(".")
    return parts[1] == "layers" and int(parts[2]) >= config["num_hidden_layers"]


def _dequantised(weight: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    if scale is None:
        return weight.float()
    rows, cols = weight.shape
    spread = torch.kron(scale.float(), torch.ones(BLOCK, BLOCK))[:rows, :cols]
    return weight.float() * spread


def _stack_experts(weights: dict[str, torch.Tensor], prefix: str, count: int) -> None:
    if f"{prefix}0.gate_proj.weight" not in weights:
        return  # a dense layer
    gate, up, down = (
        torch.stack([weights.pop(f"{prefix}{e}.{name}_proj.weight") for e in range(count)])
        for name in ("gate", "up", "down")
    )
    weights[prefix + "gate_up_proj"] = torch.cat([gate, up], dim=1)
    weights[prefix + "down_proj"] = down


def _empty_model(config: dict[str, Any]) -> Any:
    ignored = ("model_type", "architectures", "quantization_config", "torch_dtype", "auto_map")
    name = CLASSES[config["model_type"]]
    settings = getattr(transformers, name + "Config")(**{k: v for k, v in config.items() if k not in ignored})
    settings._attn_implementation = "eager"
    settings._experts_implementation = "eager"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return getattr(transformers, name + "ForCausalLM")(settings).float().eval()


def _margin(scores: np.ndarray, count: int) -> float:
    """Between the count-th largest and the next one."""
    ranked = np.sort(scores)[::-1]
    return float(ranked[count - 1] - ranked[count]) if count < len(ranked) else float("inf")
