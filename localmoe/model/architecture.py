"""A model's sizes and rules in our words: what the network is built from, and how many weights it has."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Yarn:
    """How RoPE was stretched beyond the context of pretraining (YaRN, arXiv 2309.00071; keys of `rope_scaling`)."""

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0  # 0: not given
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None  # None: derived from factor and the mscales
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """A model of the DeepSeek family: V2, V3 and those built like them. The MTP layer is not counted."""

    model_type: str
    num_layers: int
    num_dense_layers: int  # the first ones; the others are mixtures of experts
    hidden: int
    dense_inter: int
    moe_inter: int
    num_experts: int
    top_k: int
    num_shared_experts: int
    num_groups: int
    top_groups: int
    scoring: Literal["sigmoid", "softmax"]
    group_score: Literal["top2", "max"]
    norm_top_k: bool
    routed_scale: float
    has_router_bias: bool
    num_heads: int
    q_lora_rank: int | None  # None: queries are projected in one step
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    rms_eps: float
    rope_theta: float
    rope_interleaved: bool
    yarn: Yarn | None
    max_position: int
    vocab: int
    tie_embeddings: bool
    weight_format: Literal["fp8", "bf16"]
    bos_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def latent_width(self) -> int:
        """Elements of one token's row in the latent cache: the latent, then the rotated key."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.num_layers - self.num_dense_layers

    @property
    def q_dim(self) -> int:
        """Elements of one token's queries, all heads."""
        return self.num_heads * (self.nope_dim + self.rope_dim)

    @property
    def kv_b_dim(self) -> int:
        """Rows of kv_b: every head's key (without position) and value."""
        return self.num_heads * (self.nope_dim + self.v_dim)

    def num_params(self) -> int:
        """All weights, embeddings and head included, scales and the MTP layer not."""
        embeddings = self.vocab * self.hidden * (1 if self.tie_embeddings else 2)
        dense = self.num_dense_layers * self._ffn_params(self.dense_inter)
        routed = self.num_moe_layers * self.num_experts * self._ffn_params(self.moe_inter)
        return embeddings + dense + routed + self._common_params()

    def num_active_params(self) -> int:
        """The weights that one token reads: of the experts the chosen ones, of the embeddings one row."""
        embeddings = self.vocab * self.hidden + (0 if self.tie_embeddings else self.hidden)
        dense = self.num_dense_layers * self._ffn_params(self.dense_inter)
        routed = self.num_moe_layers * self.top_k * self._ffn_params(self.moe_inter)
        return embeddings + dense + routed + self._common_params()

    def attention_flops(self) -> int:
        """What each token of context adds to a decode step: scores and sums over latents, for every head and layer."""
        return 2 * self.num_heads * (2 * self.kv_lora_rank + self.rope_dim) * self.num_layers

    def _ffn_params(self, inter: int) -> int:
        return 3 * self.hidden * inter

    def _attention_params(self) -> int:
        if self.q_lora_rank is None:
            q = self.hidden * self.q_dim
        else:
            q = self.hidden * self.q_lora_rank + self.q_lora_rank + self.q_lora_rank * self.q_dim
        kv = self.hidden * self.latent_width + self.kv_lora_rank + self.kv_lora_rank * self.kv_b_dim
        return q + kv + self.num_heads * self.v_dim * self.hidden

    def _common_params(self) -> int:
        norms = (2 * self.num_layers + 1) * self.hidden
        router = self.num_experts * (self.hidden + self.has_router_bias)
        shared = self._ffn_params(self.num_shared_experts * self.moe_inter)
        return norms + self.num_layers * self._attention_params() + self.num_moe_layers * (router + shared)
