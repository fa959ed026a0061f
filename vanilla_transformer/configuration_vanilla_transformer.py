"""Every choice the paper makes, and the ones it leaves open, as one configuration."""

from typing import Any

from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN

NORM_POSITIONS = ("post", "pre")
POSITION_ENCODINGS = ("sinusoidal", "sinusoidal_concat", "sinusoidal_tensor2tensor", "learned")
SIZES = (
    "vocab_size",
    "decoder_vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "max_position_embeddings",
)
FLAGS = (
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "attention_bias",
    "scale_embedding",
    "final_logits_bias",
    "use_cache",
)
# Where a saved folder's own code files hold the classes (`trust_remote_code=True`).
AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
}


class VanillaTransformerConfig(PreTrainedConfig):
    """Configuration of the Transformer of *Attention Is All You Need* (2017).

    The defaults are the paper's base model (Table 3, first row). "Paper" below is arXiv 1706.03762.

    Args:
        vocab_size: entries of the source vocabulary, and of the target's when they are one (§5.1: about 37,000).
        decoder_vocab_size: entries of the target vocabulary; `None` means `vocab_size`.
        share_encoder_decoder_embeddings: one matrix for source and target embedding (§3.4).
        tie_word_embeddings: the output projection is the target embedding, transposed (§3.4). Each of the two flags
            unties only what it names.
        d_model: width of every sub-layer's output (§3.1).
        encoder_layers, decoder_layers: N of each stack (§3.1).
        encoder_ffn_dim, decoder_ffn_dim: d_ff (§3.3).
        activation_function: between the two linear maps of the feed-forward network (§3.3: ReLU).
        encoder_attention_heads, decoder_attention_heads: h (§3.2.2).
        d_k, d_v: width of a head's keys (and queries) and values; `None` means d_model / h. Free, as rows A and B of
            Table 3 need.
        dropout: P_drop on each sub-layer's output and on the sums of embeddings and positions (§5.4).
        attention_dropout: on the attention weights; the paper's translation models have none.
        activation_dropout: after the activation of the feed-forward network; the paper has none.
        attention_bias: biases in W^Q, W^K, W^V, W^O. The formulas of §3.2.2 show none; the first public code had them.
        layer_norm_eps: the paper is silent; 1e-6 in the first public code.
        norm_position: `"post"`, LayerNorm(x + Sublayer(x)) as in §3.1, or `"pre"`, x + Sublayer(LayerNorm(x)) with one
            more norm at the end of each stack.
        position_encoding: `"sinusoidal"`, the paper's interleaved table (§3.5); `"sinusoidal_concat"`, the same
            frequencies, sine half then cosine half (Marian in transformers); `"sinusoidal_tensor2tensor"`, halves
            with divisor d/2 - 1 (tensor2tensor, fairseq, FSMT); `"learned"` (Table 3, row E).
        position_offset: position of the first token.
        max_position_embeddings: rows of the position table. Sinusoids go on beyond it; learned positions end there.
        scale_embedding: multiply embeddings by sqrt(d_model) (§3.4).
        final_logits_bias: a trained bias on the logits; the paper and the first public code have none.
        attention_score: how a query is compared with a key; only `"scaled_dot_product"` (§3.2.1).
        attention_window: neighbourhood of restricted self-attention (§4); only `None`, the whole sequence.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id: special entries of the vocabulary.
        use_cache: return keys and values for the next decoding step unless a call says otherwise.

    Raises:
        ValueError: a field has a value the model cannot have; the message names the field and the remedy.
    """

    model_type = "vanilla_transformer"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # noqa: RUF012 (a list, as the trainer adds to it)
    attribute_map = {  # noqa: RUF012 (the base class' own form)
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    _auto_class = "AutoConfig"

    vocab_size: int = 37000
    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    attention_bias: bool = True
    layer_norm_eps: float = 1e-6
    norm_position: str = "post"
    position_encoding: str = "sinusoidal"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    final_logits_bias: bool = False
    attention_score: str = "scaled_dot_product"
    attention_window: int | None = None
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        # The cache reads its own copy of the config, in which `decoder_vocab_size` stands for `vocab_size`: no None.
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        kwargs.setdefault("auto_map", dict(AUTO_MAP))
        # Decoding settings live in the generation config alone; transformers drops its older ones itself.
        decoding = vars(GenerationConfig()).keys() - vars(PreTrainedConfig).keys() | {
            "max_length_margin",
            "length_penalty_kind",
        }
        kwargs = {name: value for name, value in kwargs.items() if name not in decoding}
        super().__post_init__(**kwargs)
        self._check_types()
        self._check_heads()
        self._check_names()
        self._check_positions()
        self._check_vocabulary()

    def __setattr__(self, name: str, value: Any) -> None:
        """One matrix has one size: where it is shared, a new `vocab_size` is the target's too."""
        state = self.__dict__
        if name == "vocab_size" and "decoder_vocab_size" in state and state["share_encoder_decoder_embeddings"]:
            super().__setattr__("decoder_vocab_size", value)
        super().__setattr__(name, value)

    @property
    def target_vocab_size(self) -> int:
        """Entries of the target vocabulary, which is the source's where the two embeddings are one matrix."""
        if self.share_encoder_decoder_embeddings or self.decoder_vocab_size is None:
            return self.vocab_size
        return self.decoder_vocab_size

    def _check_types(self) -> None:
        for name in SIZES:
            self._check(name, _is_whole(getattr(self, name), 1), "a whole number of 1 or more")
        for name in ("d_k", "d_v"):
            value = getattr(self, name)
            self._check(name, value is None or _is_whole(value, 1), "None or a whole number of 1 or more")
        self._check("position_offset", _is_whole(self.position_offset, 0), "a whole number of 0 or more")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            value = getattr(self, name)
            self._check(name, _is_number(value) and 0 <= value <= 1, "a probability between 0 and 1")
        eps = self.layer_norm_eps
        self._check("layer_norm_eps", _is_number(eps) and eps >= 0, "a number of 0 or more")
        for name in FLAGS:
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check("is_encoder_decoder", self.is_encoder_decoder is True, "True: the model has both stacks")

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise ValueError(f"`{name}` must be {expected}; got {getattr(self, name)!r}")

    def _check_heads(self) -> None:
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            heads = getattr(self, name)
            if (self.d_k is None or self.d_v is None) and self.d_model % heads:
                raise ValueError(
                    f"`{name}`={heads} does not divide `d_model`={self.d_model}: "
                    "set `d_k` and `d_v`, the width of a head, or another number of heads"
                )

    def _check_names(self) -> None:
        for name, choices in (
            ("norm_position", NORM_POSITIONS),
            ("position_encoding", POSITION_ENCODINGS),
            ("activation_function", tuple(ACT2FN)),
            ("attention_score", ("scaled_dot_product",)),
        ):
            self._check(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        self._check("attention_window", self.attention_window is None, "None: every position sees the whole sequence")

    def _check_positions(self) -> None:
        if self.position_encoding != "learned" and self.d_model % 2:
            raise ValueError(
                f"`d_model`={self.d_model} is odd, but `position_encoding`={self.position_encoding!r} pairs each sine "
                'with a cosine: use an even `d_model`, or `position_encoding="learned"`'
            )
        if self.position_encoding == "learned" and self.position_offset >= self.max_position_embeddings:
            raise ValueError(
                f"`position_offset`={self.position_offset} leaves no room in `max_position_embeddings`="
                f"{self.max_position_embeddings} learned positions: raise the second"
            )

    def _check_vocabulary(self) -> None:
        target_size = self.target_vocab_size
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"`decoder_vocab_size`={self.decoder_vocab_size} differs from `vocab_size`={self.vocab_size}: "
                "set both alike, or `share_encoder_decoder_embeddings=False` for two vocabularies"
            )
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            # Padding stands on both sides, the others on the target's.
            size = min(self.vocab_size, target_size) if name == "pad_token_id" else target_size
            ids = value if name == "eos_token_id" and isinstance(value, (list, tuple)) else [value]
            is_right = value is None or all(_is_whole(token_id, 0) and token_id < size for token_id in ids)
            self._check(name, is_right, f"an entry of the vocabulary, 0 to {size - 1}, or None")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


__all__ = ["VanillaTransformerConfig"]
