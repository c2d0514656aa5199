"""Which experts a token goes to, one token a block (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from localmoe.kernels.gpu.launch import Launch, power_of_two
from localmoe.kernels.gpu.matrix import check, check_together
from localmoe.kernels.ops import Router

MAX_EXPERTS = 1024


@triton.jit
def _route_kernel(
    logits, bias, ids, weights, scale,
    NUM_GROUPS: tl.constexpr, GROUP_SIZE: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    TOP_GROUPS: tl.constexpr, TOP_K: tl.constexpr, CHOICES: tl.constexpr,
    SIGMOID: tl.constexpr, BEST_TWO: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """GROUPS and SIZE are NUM_GROUPS and GROUP_SIZE, rounded up to powers of two; likewise CHOICES and TOP_K."""
    token = tl.program_id(0)
    group = tl.arange(0, GROUPS)
    member = tl.arange(0, SIZE)
    real = (group[:, None] < NUM_GROUPS) & (member[None, :] < GROUP_SIZE)
    expert = group[:, None] * GROUP_SIZE + member[None, :]
    nothing = float("-inf")
    logit = tl.load(logits + token * NUM_GROUPS * GROUP_SIZE + expert, mask=real, other=nothing).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-logit))
    else:
        score = tl.exp(logit - tl.max(logit))
        score = score / tl.sum(score)
    selection = score
    if bias is not None:
        selection = score + tl.load(bias + expert, mask=real, other=0.0)
    selection = tl.where(real, selection, nothing)
    if NUM_GROUPS > 1:
        best = tl.max(selection, 1)
        if BEST_TWO:
            taken = member[None, :] == tl.argmax(selection, 1)[:, None]
            best += tl.max(tl.where(taken, nothing, selection), 1)
        allowed = group < 0
        for _ in tl.static_range(TOP_GROUPS):
            winner = group == tl.argmax(tl.where(allowed | (group >= NUM_GROUPS), nothing, best), 0)
            allowed = allowed | winner
        selection = tl.where(allowed[:, None], selection, nothing)
    flat = tl.reshape(selection, [GROUPS * SIZE])
    scores = tl.reshape(tl.where(real, score, 0.0), [GROUPS * SIZE])
    place = tl.arange(0, GROUPS * SIZE)
    choice = tl.arange(0, CHOICES)
    chosen = tl.zeros([CHOICES], tl.int32)
    weight = tl.zeros([CHOICES], tl.float32)
    for n in tl.static_range(TOP_K):  # equal scores go to the lower id
        winner = tl.argmax(flat, 0)
        chosen = tl.where(choice == n, winner // SIZE * GROUP_SIZE + winner % SIZE, chosen)
        weight = tl.where(choice == n, tl.sum(tl.where(place == winner, scores, 0.0)), weight)
        flat = tl.where(place == winner, nothing, flat)
    if NORMALIZE:
        weight = weight / (tl.sum(weight) + 1e-20)
    tl.store(ids + token * TOP_K + choice, chosen, mask=choice < TOP_K)
    tl.store(weights + token * TOP_K + choice, weight * scale, mask=choice < TOP_K)


def route(logits: Tensor, router: Router, bias: Tensor | None, ids: Tensor, weights: Tensor) -> Launch:
    """The chosen experts ids [T, K] int32, best first, and their weights [T, K] float32 from logits [T, E] float32.

    `bias` [E] float32 is `router.bias` on the device, or None where that is None.
    """
    num_tokens, num_experts = logits.shape
    check(logits, "logits", (num_tokens, router.num_experts), torch.float32)
    check(ids, "ids", (num_tokens, router.top_k), torch.int32)
    check(weights, "weights", (num_tokens, router.top_k), torch.float32)
    assert (bias is None) == (router.bias is None), "the router's bias is not the one on the device"
    assert num_tokens > 0 and num_experts <= MAX_EXPERTS, f"{num_tokens} tokens, {num_experts} experts"
    assert num_experts % router.num_groups == 0, f"{num_experts} experts in {router.num_groups} groups"
    size = num_experts // router.num_groups
    assert router.top_k <= router.top_groups * size, f"{router.top_k} experts from {router.top_groups} groups of {size}"
    assert router.num_groups == 1 or router.group_score == "max" or size >= 2, "a group has fewer than two experts"
    if bias is not None:
        check(bias, "bias", (num_experts,), torch.float32)
    for x in (logits, ids, weights):
        assert x.is_contiguous(), "logits, ids and weights are packed"
    check_together(logits, bias, ids, weights)
    return Launch(
        _route_kernel,
        (num_tokens,),
        {"logits": logits, "bias": bias, "ids": ids, "weights": weights, "scale": float(router.scale)},
        {
            "NUM_GROUPS": router.num_groups,
            "GROUP_SIZE": size,
            "GROUPS": power_of_two(router.num_groups),
            "SIZE": power_of_two(size),
            "TOP_GROUPS": router.top_groups,
            "TOP_K": router.top_k,
            "CHOICES": power_of_two(router.top_k),
            "SIGMOID": router.scoring == "sigmoid",
            "BEST_TWO": router.group_score == "top2",
            "NORMALIZE": router.normalize,
        },
        1 if num_experts <= 128 else 2,
        1,
    )
