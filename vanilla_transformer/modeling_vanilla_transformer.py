"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017, arXiv 1706.03762), to be read beside the paper.

Shapes in comments: B sentences, S source tokens, T target tokens, h heads, d = d_model, V vocabulary entries. Where
padding is not computed (`skip_logits`), layers see one sentence of all real tokens, between `pack` and `unpack`.
"""

import copy
import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, logging
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin, savable
from .loss_vanilla_transformer import IGNORED_LABEL, label_smoothed_cross_entropy, projected_cross_entropy
from .pipeline_vanilla_transformer import CUSTOM_PIPELINES
from .unpadding_vanilla_transformer import AttentionFunction, Layout, attention_between, needed_positions

logger = logging.get_logger(__name__)

# transformers 5.24 calls `cache` what it called `past_key_values` before, in signatures and in outputs. Here it is
# always `cache`: these two lines are all that knows of the older name.
CACHE_NAME = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"
accepts_older_cache_name = deprecate_kwarg(
    "past_key_values", "5.40.0" if CACHE_NAME == "cache" else "0", new_name="cache"
)


class SinusoidalPositionalEncoding(nn.Module):
    """Positional encoding by sines and cosines (§3.5), in the layouts that are in use.

    - `"sinusoidal"`: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), as printed.
    - `"sinusoidal_concat"`: the same numbers, all sines before all cosines.
    - `"sinusoidal_tensor2tensor"`: the halves of the first public code, with angles pos / 10000^(i/(d/2-1)).

    The table `weight` is a cache of the first positions, not a limit: later ones are computed when they are asked for.
    """

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.layout = config.position_encoding
        self.offset = config.position_offset
        self.num_rows = config.max_position_embeddings + config.position_offset
        self.weight: Tensor
        self.register_buffer("weight", self.table(), persistent=False)  # (rows, d)

    def table(self) -> Tensor:
        return self.encode(torch.arange(self.num_rows)).to(torch.get_default_dtype())

    def encode(self, positions: Tensor) -> Tensor:
        """PE of any positions, (...) -> (..., d), in the widest type: fp32 angles are off by 3e-5 at position 511."""
        dtype = torch.float32 if positions.device.type == "mps" else torch.float64  # MPS has no float64
        i = torch.arange(self.d_model // 2, dtype=dtype, device=positions.device)
        if self.layout == "sinusoidal_tensor2tensor":
            exponent = i / max(self.d_model // 2 - 1, 1)
        else:
            exponent = 2 * i / self.d_model
        angles = positions.to(dtype)[..., None] * 10000.0**-exponent  # (..., d/2)
        if self.layout == "sinusoidal":
            return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    def check_length(self, length: int) -> None:
        """Every length is well."""

    def forward(self, positions: Tensor, length: int) -> Tensor:
        """Encodings of `positions` (B, T), all below `length`: (B, T, d)."""
        positions = positions + self.offset
        if length + self.offset <= self.num_rows:
            return F.embedding(positions, self.weight)
        return self.encode(positions).to(self.weight.dtype)


class LearnedPositionalEncoding(nn.Embedding):
    """Learned positional embedding (§3.5; Table 3, row E). It ends where its table ends."""

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config.max_position_embeddings, config.d_model)
        self.offset = config.position_offset

    def check_length(self, length: int) -> None:
        """A sequence that goes past the table is refused; compiled code knows only the room of its cache."""
        if length + self.offset > self.num_embeddings and not torch.compiler.is_compiling():
            raise ValueError(
                f"a sequence of {length} tokens from position {self.offset} does not fit "
                f"`max_position_embeddings`={self.num_embeddings} learned positions: shorten it, or use sinusoids"
            )

    def forward(self, positions: Tensor, length: int) -> Tensor:  # type: ignore[override]
        """Embeddings of `positions` (B, T), all below `length`: (B, T, d)."""
        self.check_length(length)
        return super().forward(positions + self.offset)


def positional_encoding(config: VanillaTransformerConfig) -> SinusoidalPositionalEncoding | LearnedPositionalEncoding:
    if config.position_encoding == "learned":
        return LearnedPositionalEncoding(config)
    return SinusoidalPositionalEncoding(config)


def positions_from_mask(mask: Tensor) -> Tensor:
    """The position of a token is the number of real tokens before it, so that padding on either side changes nothing.

    `mask`: (B, T), 1 for real tokens; or (B, 1, T, keys), a causal mask in which each token sees itself last, boolean
    or additive. Returns (B, T).
    """
    if mask.dim() == 4:
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
        return (visible[:, 0].sum(dim=-1) - 1).clamp(min=0)
    return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (§3.2.1, equation 1).

    `query` (B, h, T, d_k), `key` (B, h, S, d_k), `value` (B, h, S, d_v), `attention_mask` (B, 1, T, S) added to the
    scores. Returns the output (B, T, h, d_v) and the weights (B, h, T, S).
    """
    scores = torch.matmul(query * scaling, key.transpose(2, 3))
    if attention_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # Two large negatives would sum to minus infinity in fp16, and a row of those has no softmax.
        scores = scores + attention_mask
        weights = scores.clamp(min=torch.finfo(scores.dtype).min).softmax(dim=-1)
        # A query that may see no key gets nothing, as from the fused kernels.
        sees_any = (attention_mask > torch.finfo(attention_mask.dtype).min).any(dim=-1, keepdim=True)
        weights = weights.masked_fill(~sees_any, 0.0)
    weights = F.dropout(weights, p=dropout, training=module.training).to(value.dtype)
    return torch.matmul(weights, value).transpose(1, 2), weights


def fused_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The same formula in torch's fused kernel.

    On a CPU its backward in half precision takes ten times that in float32. Training there takes the plain formula in
    bfloat16 while that needs less memory than copies in float32 do, and the kernel in float32 otherwise.
    """
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if query.device.type != "cpu" or query.dtype.itemsize >= 4 or not query.requires_grad:
        return attend(module, query, key, value, attention_mask, **kwargs)
    # For the backward pass: 6 bytes for each of S scores, or 16 for each of d_k numbers of query, key, value and head.
    if query.dtype == torch.bfloat16 and key.shape[2] <= 2 * key.shape[3]:
        added = added_to_scores(attention_mask, query, key, bool(module.is_causal))
        return eager_attention_forward(module, query, key, value, added, **kwargs)[0], None
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        heads, weights = attend(module, query.float(), key.float(), value.float(), attention_mask, **kwargs)
    return heads.to(query.dtype), weights


def added_to_scores(mask: Tensor | None, query: Tensor, key: Tensor, is_causal: bool) -> Tensor | None:
    """A mask of the fused kernel, for which `None` may mean a causal one, as the plain formula takes it."""
    if mask is None and is_causal and query.shape[2] > 1:  # a single query is the newest token, and sees all
        mask = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)


def attention_function(config: VanillaTransformerConfig) -> AttentionFunction:
    if config._attn_implementation == "sdpa":
        return fused_attention_forward
    return ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, eager_attention_forward)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (§3.2.2).

    The h projections of a kind are one matrix: `q_proj` holds all W_i^Q, `k_proj` W_i^K, `v_proj` W_i^V, and
    `out_proj` is W^O. §3.2.3 uses it three times: in the encoder, masked in the decoder, and from decoder to encoder.
    """

    def __init__(
        self, config: VanillaTransformerConfig, heads: int, is_causal: bool = False, layer_idx: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.dropout = config.attention_dropout
        self.d_k = config.d_k or config.d_model // heads
        self.d_v = config.d_v or config.d_model // heads
        self.scaling = self.d_k**-0.5
        self.q_proj = nn.Linear(config.d_model, heads * self.d_k, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, heads * self.d_k, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, heads * self.d_v, bias=config.attention_bias)
        self.out_proj = nn.Linear(heads * self.d_v, config.d_model, bias=config.attention_bias)

    def keys_and_values(self, states: Tensor, cache: Cache | None, is_cross_attention: bool) -> tuple[Tensor, Tensor]:
        """Keys (B, h, S, d_k) and values (B, h, S, d_v) of `states` (B, S, d), after those of earlier steps.

        Those of the source are computed in the first step and stay.
        """
        if cache is not None and isinstance(cache, EncoderDecoderCache):
            if is_cross_attention and cache.is_updated.get(self.layer_idx):
                layer = cache.cross_attention_cache.layers[self.layer_idx]
                return layer.keys, layer.values
            if is_cross_attention:
                cache.is_updated[self.layer_idx] = True
            cache = cache.cross_attention_cache if is_cross_attention else cache.self_attention_cache
        key = self.k_proj(states).unflatten(-1, (-1, self.d_k)).transpose(1, 2)
        value = self.v_proj(states).unflatten(-1, (-1, self.d_v)).transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return key, value

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any,
        attention_function: AttentionFunction,
        encoder_hidden_states: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """`hidden_states` (B, T, d) attend to themselves, or to `encoder_hidden_states` (B, S, d): (B, T, d), weights.

        The form of `attention_mask` is that of `attention_function`; both come from transformers' interfaces.
        """
        is_cross_attention = encoder_hidden_states is not None
        states = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = self.q_proj(hidden_states).unflatten(-1, (-1, self.d_k)).transpose(1, 2)  # (B, h, T, d_k)
        key, value = self.keys_and_values(states, cache, is_cross_attention)
        heads, weights = attention_function(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
            **kwargs,
        )  # (B, T, h, d_v), (B, h, T, S) or None
        return self.out_proj(heads.flatten(2)), weights


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Each element becomes 0 with probability p, the others grow by 1 / (1 - p) (§5.4).

    On a CPU torch draws a number for every element, one after another: a tenth of a training step. Here one of 64 bits
    serves four, which rounds p to a multiple of 2^-16.
    """
    if not training or not p:
        return x
    dropped = round(p * 2**16)
    if x.device.type != "cpu" or dropped == 2**16 or torch.compiler.is_compiling():
        return F.dropout(x, p)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    drawn = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    return torch.where(drawn >= dropped - 2**15, x * (1 / (1 - dropped / 2**16)), 0.0)


class TransformerLayer(GradientCheckpointingLayer):
    """What encoder and decoder layers share: residual connection, norm, feed-forward network (§3.1, §3.3)."""

    def __init__(self, config: VanillaTransformerConfig, ffn_dim: int) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = layer_norm(config)

    def feed_forward(self, x: Tensor) -> Tensor:
        """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (§3.3, equation 2)."""
        x = self.activation_fn(self.fc1(x))
        return self.fc2(dropout(x, self.activation_dropout, self.training))

    def residual(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.LayerNorm) -> Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))) (§3.1, §5.4), or pre-LN's x + Dropout(Sublayer(LayerNorm(x)))."""
        y = sublayer(norm(x) if self.pre_norm else x)
        x = x + dropout(y, self.dropout, self.training)
        return x if self.pre_norm else norm(x)


def layer_norm(config: VanillaTransformerConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)


class EncoderLayer(TransformerLayer):
    """Self-attention, then the feed-forward network (§3.1, Encoder)."""

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config, config.encoder_ffn_dim)
        self.self_attn = MultiHeadAttention(config, config.encoder_attention_heads)
        self.self_attn_layer_norm = layer_norm(config)

    def forward(self, hidden_states: Tensor, attention_mask: Any, **kwargs: Any) -> Tensor:
        """(B, S, d) -> (B, S, d)."""

        def self_attention(x: Tensor) -> Tensor:
            return self.self_attn(x, attention_mask, **kwargs)[0]

        hidden_states = self.residual(hidden_states, self_attention, self.self_attn_layer_norm)
        return self.residual(hidden_states, self.feed_forward, self.final_layer_norm)


class DecoderLayer(TransformerLayer):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network (§3.1, Decoder)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int) -> None:
        super().__init__(config, config.decoder_ffn_dim)
        heads = config.decoder_attention_heads
        self.self_attn = MultiHeadAttention(config, heads, is_causal=True, layer_idx=layer_idx)
        self.self_attn_layer_norm = layer_norm(config)
        self.encoder_attn = MultiHeadAttention(config, heads, layer_idx=layer_idx)
        self.encoder_attn_layer_norm = layer_norm(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any,
        encoder_hidden_states: Tensor | None,
        encoder_attention_mask: Any,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """(B, T, d) and the encoder's output (B, S, d) -> (B, T, d)."""

        def self_attention(x: Tensor) -> Tensor:
            return self.self_attn(x, attention_mask, cache=cache, **kwargs)[0]

        def encoder_attention(x: Tensor) -> Tensor:
            return self.encoder_attn(
                x, encoder_attention_mask, encoder_hidden_states=encoder_hidden_states, cache=cache, **kwargs
            )[0]

        hidden_states = self.residual(hidden_states, self_attention, self.self_attn_layer_norm)
        if encoder_hidden_states is not None:
            hidden_states = self.residual(hidden_states, encoder_attention, self.encoder_attn_layer_norm)
        return self.residual(hidden_states, self.feed_forward, self.final_layer_norm)


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """Initialisation, tying, and what transformers asks of every model."""

    config: VanillaTransformerConfig
    config_class = VanillaTransformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012 (transformers wants a list)
    # Sinusoids are computed, not stored; other toolkits stored their table.
    _keys_to_ignore_on_load_unexpected = [r"embed_positions\.weight$"]  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The paper is silent. Glorot uniform with zero biases and N(0, 1/d) embeddings, as in the first public code.

        Only through `transformers.initialization`, which leaves alone what a checkpoint has filled.
        """
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, SinusoidalPositionalEncoding):
            # from_pretrained builds on the meta device: without this the table would be whatever the memory held.
            init.copy_(module.weight, module.table())
        elif isinstance(module, VanillaTransformerForConditionalGeneration) and module.final_logits_bias is not None:
            init.zeros_(module.final_logits_bias)

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """Which parameter of this module (not of its parts) is which other one, as the config says now."""
        return {}

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # transformers' own drops every tie where `tie_word_embeddings` is False; here a flag unties what it names.
        return super().get_expanded_tied_weights_keys(all_submodels=True) if all_submodels else self._tied_weights_keys

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            resized = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
            self.resize_final_logits_bias(resized.num_embeddings)
            return resized
        # Two vocabularies: the source's alone.
        embeddings = self.get_input_embeddings()
        resized = self._get_resized_embeddings(embeddings, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.set_input_embeddings(resized)
        return resized

    def resize_final_logits_bias(self, size: int) -> None:
        """Nothing to do without an output projection."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As any model; the config says in addition which of the saved code is the pipeline "translation"."""
        self.config.custom_pipelines = copy.deepcopy(CUSTOM_PIPELINES)
        super().save_pretrained(save_directory, *args, **kwargs)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        ids = torch.tensor([[5, 6, 7, 2]], device=self.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids}


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """What encoder and decoder share: scaled embeddings plus positions, with dropout (§3.4, §3.5, §5.4)."""

    ids_name = "input_ids"
    embeds_name = "inputs_embeds"

    def __init__(self, config: VanillaTransformerConfig, vocab_size: int) -> None:
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.embed_positions = positional_encoding(config)
        self.layer_norm = layer_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.gradient_checkpointing = False

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Token embeddings times sqrt(d_model) (§3.4): (B, T, d). Embeddings given from outside are scaled alike."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"give exactly one of `{self.ids_name}` and `{self.embeds_name}`")
        return (self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds) * self.embed_scale

    def add_positions(self, embeddings: Tensor, positions: Tensor, length: int) -> Tensor:
        """The input of the first layer (§3.5), with dropout (§5.4): (B, T, d). All `positions` are below `length`."""
        summed = embeddings + self.embed_positions(positions, length)
        return dropout(summed, self.config.dropout, self.training)

    def attention_config(self, output_attentions: bool | None) -> VanillaTransformerConfig:
        """The config that says which attention function this call uses, for its masks too.

        Fused kernels do not hand out their weights: a call that asks for them is computed by the plain formula.
        """
        wanted = self.config.output_attentions if output_attentions is None else output_attentions
        if not wanted or self.config._attn_implementation == "eager":
            return self.config
        logger.warning_once("`output_attentions=True` is computed with eager attention, not with the fused kernel")
        config = copy.copy(self.config)
        config._attn_implementation = "eager"
        return config


class VanillaTransformerEncoder(VanillaTransformerStack):
    """A stack of N identical layers over the source (§3.1, Encoder)."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}  # noqa: RUF012

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config, config.vocab_size)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        skip_padding: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode a source.

        Args:
            input_ids: (B, S), or `inputs_embeds` (B, S, d), not yet scaled.
            attention_mask: (B, S), 1 for real tokens, padding on either side; or a 4D mask of the attention function.
                `None`: what is not `pad_token_id` in `input_ids`.
            skip_padding: compute real positions only, as far as the mask tells them; the state of the others is 0.

        Returns:
            `last_hidden_state` (B, S, d); `hidden_states` and `attentions` of every layer on demand.
        """
        hidden_states = self.embed(input_ids, inputs_embeds)
        attention_mask = source_mask(attention_mask, input_ids, self.config)
        if attention_mask is not None and attention_mask.dim() == 2:
            positions = positions_from_mask(attention_mask)
        else:
            positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        hidden_states = self.add_positions(hidden_states, positions, length=hidden_states.shape[1])

        config = self.attention_config(kwargs.get("output_attentions"))
        mask = create_bidirectional_mask(config=config, inputs_embeds=hidden_states, attention_mask=attention_mask)
        source = Layout(attention_mask if skip_padding else None)
        attend = attention_between(source, source, attention_function(config))
        hidden_states = source.pack(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, attention_function=attend, **kwargs)
        return BaseModelOutput(last_hidden_state=source.unpack(self.layer_norm(hidden_states)))


def source_mask(
    attention_mask: Tensor | None, input_ids: Tensor | None, config: VanillaTransformerConfig
) -> Tensor | None:
    """The mask as given, or else what is not padding in `input_ids` (B, S)."""
    if attention_mask is not None or input_ids is None or config.pad_token_id is None:
        return attention_mask
    return input_ids.ne(config.pad_token_id)


class VanillaTransformerDecoder(VanillaTransformerStack):
    """A stack of N identical layers over the target, each attending to the encoder's output (§3.1, Decoder)."""

    ids_name = "decoder_input_ids"
    embeds_name = "decoder_inputs_embeds"
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config, config.target_vocab_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer_idx) for layer_idx in range(config.decoder_layers))
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @accepts_older_cache_name
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        needed: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode a target, or the next tokens of one.

        Args:
            input_ids: (B, T), or `inputs_embeds` (B, T, d), not yet scaled; only the new tokens if there is a cache.
            attention_mask: (B, cached + T), 1 for real tokens, or a 4D mask; `None`: all are real. Never made from
                `pad_token_id`, which may be the start token.
            encoder_hidden_states, encoder_attention_mask: (B, S, d) and (B, S) of the source.
            cache: keys and values of the tokens before; filled in place.
            use_cache: return a cache, a new one if none was given.
            needed: (B, T), the positions to compute, and what they see; the state of the others is 0. `None`: all.

        Returns:
            `last_hidden_state` (B, T, d), the cache, and on demand `hidden_states`, `attentions`, `cross_attentions`.
        """
        hidden_states = self.embed(input_ids, inputs_embeds)
        new = hidden_states.shape[1]
        if cache is None and use_cache:
            cache = DynamicCache(config=self.config)
        if cache is not None and not isinstance(cache, EncoderDecoderCache):
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        past = 0 if cache is None else cache.get_seq_length()
        if cache is not None and isinstance(past, Tensor) and torch.compiler.is_compiling():
            length = cache.get_mask_sizes(new, 0)[0]  # all that a static cache can hold
        else:
            length = int(past) + new
        if isinstance(attention_mask, Tensor):
            positions = positions_from_mask(attention_mask)[:, -new:]
        else:
            positions = (torch.arange(new, device=hidden_states.device) + past)[None]
        hidden_states = self.add_positions(hidden_states, positions, length)

        config = self.attention_config(kwargs.get("output_attentions"))
        self_mask = create_causal_mask(
            config=config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            **{CACHE_NAME: None if cache is None else cache.self_attention_cache},
        )
        encoder_mask = create_bidirectional_mask(
            config=config,
            inputs_embeds=hidden_states,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        target, source = Layout(needed), Layout(None if needed is None else encoder_attention_mask)
        attend = attention_between(target, source, attention_function(config))
        hidden_states = target.pack(hidden_states)
        if encoder_hidden_states is not None:
            encoder_hidden_states = source.pack(encoder_hidden_states)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                self_mask,
                encoder_hidden_states,  # positional: re-entrant gradient checkpointing only sees those
                encoder_mask,
                cache=cache,
                attention_function=attend,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=target.unpack(self.layer_norm(hidden_states)), **{CACHE_NAME: cache}
        )


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder (Figure 1), without the output projection."""

    _auto_class = "AutoModel"

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        if not self.config.share_encoder_decoder_embeddings:
            return {}
        return {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared, self.decoder.embed_tokens = with_matrix_of(value), with_matrix_of(value)

    @can_return_tuple
    @accepts_older_cache_name
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        needed: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Encode the source (B, S), unless `encoder_outputs` are given, and decode the target (B, T).

        Arguments and masks as in `VanillaTransformerEncoder.forward` and, with `decoder_` before the name, as in
        `VanillaTransformerDecoder.forward`; with `needed` the encoder skips padding too.

        Returns:
            `last_hidden_state` (B, T, d) of the decoder, the cache, and both stacks' states on demand.

        Raises:
            ValueError: ids and embeddings both given, or neither, for source or target; or more tokens than learned
                positions.
        """
        target = decoder_input_ids if decoder_inputs_embeds is None else decoder_inputs_embeds
        if target is not None:
            self.decoder.embed_positions.check_length(target.shape[1])
        attention_mask = source_mask(attention_mask, input_ids, self.config)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                skip_padding=needed is not None,
                **kwargs,
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):  # a plain tuple, as with `return_dict=False`
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if use_cache is None and self.training:
            use_cache = False  # a training step decodes all positions at once
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            needed=needed,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            **{CACHE_NAME: decoder_outputs.get(CACHE_NAME)},
        )


def with_matrix_of(embeddings: nn.Embedding) -> nn.Embedding:
    """Another module around the same matrix, as a new model has them: an adapter wraps one, found by its name."""
    if type(embeddings) is not nn.Embedding:
        return embeddings
    with torch.device("meta"):
        other = nn.Embedding(embeddings.num_embeddings, embeddings.embedding_dim, embeddings.padding_idx)
    other.weight = embeddings.weight
    return other


def shift_right(labels: Tensor, config: VanillaTransformerConfig) -> Tensor:
    """The decoder's input, the labels "offset by one position" (§3.1): (B, T) -> (B, T), a new tensor."""
    if config.decoder_start_token_id is None or config.pad_token_id is None:
        raise ValueError("labels need `decoder_start_token_id` and `pad_token_id` in the config to be decoder input")
    start = labels.new_full((labels.shape[0], 1), config.decoder_start_token_id)
    shifted = torch.cat((start, labels[:, :-1]), dim=1)
    return shifted.masked_fill(shifted.eq(IGNORED_LABEL), config.pad_token_id)


class VanillaTransformerForConditionalGeneration(VanillaTransformerPreTrainedModel, VanillaTransformerGenerationMixin):
    """The Transformer for sequence transduction: the whole of Figure 1, with loss and generation."""

    _auto_class = "AutoModelForSeq2SeqLM"
    generation_config: GenerationConfig

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.target_vocab_size, bias=False)
        self.final_logits_bias = (
            nn.Parameter(torch.zeros(1, config.target_vocab_size)) if config.final_logits_bias else None
        )
        self.set_default_generation_config()
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        if not self.config.tie_word_embeddings:
            return {}
        # Named as the source of every tie of that matrix, as transformers' loading expects.
        shared = self.config.share_encoder_decoder_embeddings
        return {"lm_head.weight": "model.shared.weight" if shared else "model.decoder.embed_tokens.weight"}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target vocabulary where it is not the source's; as `resize_token_embeddings` otherwise.

        Raises:
            ValueError: source and target share one matrix.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "source and target share one matrix (`share_encoder_decoder_embeddings`): use resize_token_embeddings"
            )
        decoder = self.model.decoder
        decoder.embed_tokens = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        size = decoder.embed_tokens.num_embeddings
        self.lm_head = self._get_resized_lm_head(self.lm_head, size, mean_resizing=mean_resizing)
        self.resize_final_logits_bias(size)
        self.config.decoder_vocab_size = size
        self.tie_weights()
        return decoder.embed_tokens

    def resize_final_logits_bias(self, size: int) -> None:
        """The bias of new vocabulary entries is 0."""
        bias = self.final_logits_bias
        if bias is not None and bias.shape[1] != size:
            resized = F.pad(bias.data, (0, size - bias.shape[1]))
            self.final_logits_bias = nn.Parameter(resized, requires_grad=bias.requires_grad)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As any model; where the default is greedy decoding, without what is for several beams alone."""
        decoding = self.generation_config
        self.generation_config = savable(decoding)
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            self.generation_config = decoding

    def project(self, states: Tensor) -> Tensor:
        """Logits of the decoder's states (§3.4): (B, T, d) -> (B, T, V)."""
        logits = self.lm_head(states)
        return logits if self.final_logits_bias is None else logits + self.final_logits_bias

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's input for `labels` (B, T): the start token, then all but the last; -100 becomes padding."""
        return shift_right(labels, self.config)

    def returns_states(self, kwargs: TransformersKwargs) -> bool:
        """Whether a call with these arguments returns the states or the weights of every layer."""
        names = ("output_hidden_states", "output_attentions")
        wanted = ((kwargs.get(name), getattr(self.config, name)) for name in names)
        return any(default if given is None else given for given, default in wanted)

    @can_return_tuple
    @accepts_older_cache_name
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        epsilon_ls: float = 0.0,
        skip_logits: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Logits of the target, and the loss if there are labels.

        Args:
            labels: (B, T), aligned with the logits: `labels[:, t]` is what position t predicts, the last one the end
                token; -100 is ignored. Without a decoder input they are also that, shifted right.
            num_items_in_batch: labels of all the batches that make one update; `None` means of this batch.
            epsilon_ls: label smoothing (§5.4), by the paper's name: transformers' trainers take for labels whatever
                has "label" in its name.
            skip_logits: return the loss without `logits`, which takes less time and much less memory. Padding is
                not computed, so `encoder_last_hidden_state` is 0 there; it is in compiled code, and where a cache or a
                4D decoder mask is given or states are asked for.
            The others: as in `VanillaTransformerModel.forward`.

        Returns:
            `logits` (B, T, V), `loss` (a scalar), the cache, and both stacks' states on demand.

        Raises:
            ValueError: as `VanillaTransformerModel.forward`; `skip_logits` without labels; labels of another shape
                than the decoder's input.
        """
        if labels is None and skip_logits:
            raise ValueError("`skip_logits` leaves nothing to return without `labels`")
        needed = None
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            target = decoder_input_ids if decoder_inputs_embeds is None else decoder_inputs_embeds
            if target is not None and labels.shape != target.shape[:2]:
                given = tuple(target.shape[:2])
                raise ValueError(f"labels {tuple(labels.shape)} need as many positions of the decoder, got {given}")
            # Keys and values that are given, states that are asked for and masks that may show later positions are
            # those of the whole batch.
            is_causal = decoder_attention_mask is None or decoder_attention_mask.dim() == 2
            if skip_logits and cache is None and is_causal and not self.returns_states(kwargs):
                needed = needed_positions(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            needed=needed,
            **kwargs,
        )
        logits, loss, states = None, None, outputs.last_hidden_state
        if labels is not None and skip_logits and type(self.lm_head) is nn.Linear and self.lm_head.bias is None:
            weight, bias = self.lm_head.weight, self.final_logits_bias
            loss = projected_cross_entropy(states, weight, bias, labels, epsilon_ls, num_items_in_batch)
        else:
            logits = self.project(states)
            if labels is not None:
                loss = label_smoothed_cross_entropy(logits, labels, epsilon_ls, num_items_in_batch)
        if skip_logits:
            logits = None
        others = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)

    stood_in_for = frozenset(
        (
            *(forward, VanillaTransformerModel.forward, VanillaTransformerDecoder.forward),
            *(DecoderLayer.forward, MultiHeadAttention.forward),
        )
    )


__all__ = [
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
