"""The embedded model is small, sound, and answers as intended when `transformers` runs it."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

GUIDE = Path(__file__).parents[2] / "assets/guide"
INTENTS = {i["id"]: i for i in tomllib.loads((GUIDE / "corpus/intents.toml").read_text())["intent"]}
BLOCK = 128
NAN_CODES = (0x7F, 0xFF)
MODEL_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
# Held-out questions (corpus/heldout.jsonl) on what people ask first, and the intent that must answer.
ASKED = {
    "what are the keyboard shortcuts in the chat": "keys",
    "is there a light theme": "themes",
    "can you explain stream-loading prefill": "slp",
    "does it support slash commands like /help": "slash",
    "where do I get the real weights from": "pull_how",
    "explain MLA in simple terms": "mla",
    "is there a way to get output in JSON": "json",
    "where do you keep my chat history": "history",
    "which command removes a model from my disk": "rm_how",
    "what does --no-save do": "no_save",
    "how do I turn a bf16 checkpoint into fp8": "cmd_quantize",
    "hello there guide": "hello",
}


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return load_file(GUIDE / "model.safetensors")


@pytest.fixture(scope="module")
def weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint in FP32, FP8 blocks multiplied out."""
    names = [name for name in tensors if not name.endswith("_scale_inv")]
    return {name: in_fp32(tensors[name], tensors.get(f"{name}_scale_inv")) for name in names}


def in_fp32(tensor: Tensor, scales: Tensor | None) -> Tensor:
    return tensor.float() if scales is None else dequantised(tensor, scales)


def dequantised(codes: Tensor, scales: Tensor) -> Tensor:
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return codes.float() * wide[: codes.shape[0], : codes.shape[1]]


@pytest.fixture(scope="module")
def guide(weights: dict[str, Tensor]):
    from transformers import AutoConfig, DeepseekV3ForCausalLM

    config = AutoConfig.from_pretrained(GUIDE)
    del config.quantization_config
    model = DeepseekV3ForCausalLM(config).float().eval()
    loaded = model.load_state_dict(stacked(weights, config.n_routed_experts), strict=False)
    assert not loaded.missing_keys
    assert not loaded.unexpected_keys
    return model


def stacked(weights: dict[str, Tensor], num_experts: int) -> dict[str, Tensor]:
    """The experts of a layer as `transformers` keeps them: [E, 2 x inner, H] and [E, H, inner]."""
    state = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for prefix in {name.split(".experts.")[0] for name in weights if ".experts." in name}:
        each = [f"{prefix}.experts.{expert}." for expert in range(num_experts)]
        gate, up, down = (
            torch.stack([weights[f"{start}{part}_proj.weight"] for start in each]) for part in ("gate", "up", "down")
        )
        state[f"{prefix}.experts.gate_up_proj"] = torch.cat((gate, up), 1)
        state[f"{prefix}.experts.down_proj"] = down
    return state


def test_it_takes_at_most_16_mb() -> None:
    assert sum((GUIDE / name).stat().st_size for name in MODEL_FILES) <= 16_000_000


def test_no_fp8_code_is_a_nan(tensors: dict[str, Tensor]) -> None:
    codes = [tensor.view(torch.uint8) for tensor in tensors.values() if tensor.dtype == torch.float8_e4m3fn]
    assert codes
    assert not any((code == nan).any() for code in codes for nan in NAN_CODES)


def test_every_matrix_has_one_finite_positive_scale_a_block(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            scales = tensors[f"{name}_scale_inv"]
            assert scales.dtype == torch.float32
            assert list(scales.shape) == [-(-size // BLOCK) for size in tensor.shape]
            assert torch.isfinite(scales).all()
            assert (scales > 0).all()


def test_every_other_tensor_is_finite_and_of_its_type(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float8_e4m3fn and not name.endswith("_scale_inv"):
            assert tensor.dtype == (torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16)
            assert torch.isfinite(tensor.float()).all()


def test_a_block_row_is_partial(tensors: dict[str, Tensor]) -> None:
    assert tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"].shape[0] % BLOCK


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(GUIDE)


@pytest.mark.parametrize(("question", "intent"), ASKED.items())
def test_a_held_out_question_gets_its_answer(guide, tokenizer, question: str, intent: str) -> None:
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        output = guide.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=200)
    answer = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    assert answer in (INTENTS[intent]["answer"], INTENTS[intent].get("korean_answer"))


def test_the_questions_asked_here_are_held_out() -> None:
    held_out = [json.loads(line)["question"] for line in (GUIDE / "corpus/heldout.jsonl").read_text().splitlines()]
    assert set(ASKED) <= set(held_out)
    assert len(ASKED) >= 5
