"""What is compared, and on what: the two models, their sizes, the text."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase

from training.data import Pair, load_pairs
from training.errors import UsageError
from training.tokenizer import train_tokenizer
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

TEXT = Path(__file__).parents[3] / "shared" / "data"


@dataclass(frozen=True)
class Sizes:
    """The paper's base model on a small vocabulary; what is trained on; how much of it is measured."""

    d_model: int = 512
    layers: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    vocab_size: int = 8000
    pairs: int = 30_000
    max_batch_tokens: int = 2048
    updates: int = 5
    encoded_pairs: int = 200_000
    planned_pairs: int = 4_500_000
    decoding_vocab_size: int = 32_000
    lines: int = 96
    wide_rows: int = 4


FULL = Sizes()
QUICK = Sizes(64, 1, 2, 128, 1000, 1000, 256, 3, 2000, 100_000, 1000, 8, 1)


def require_text(name: str) -> Path:
    """The folder of a corpus.

    Raises:
        UsageError: it is not there.
    """
    folder = TEXT / name
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; it is part of no checkout")
    return folder


def load_text(name: str, sizes: Sizes) -> tuple[list[Pair], PreTrainedTokenizerBase]:
    """English-German pairs and a joint BPE tokenizer made from them."""
    folder = require_text(name)
    pairs = load_pairs([str(folder / "train.en.gz")], [str(folder / "train.de.gz")])[: sizes.pairs]
    return pairs, train_tokenizer((line for pair in pairs for line in pair), sizes.vocab_size)


def our_model(sizes: Sizes, vocab_size: int) -> PreTrainedModel:
    """This project's model with random weights, in the choices that are Marian's."""
    torch.manual_seed(0)
    shape = _shape(sizes, vocab_size)
    config = VanillaTransformerConfig(**shape, position_encoding="sinusoidal_concat", layer_norm_eps=1e-5)
    return VanillaTransformerForConditionalGeneration(config)


def peer_model(sizes: Sizes, vocab_size: int) -> PreTrainedModel:
    """transformers' Marian with random weights."""
    torch.manual_seed(0)
    return MarianMTModel(MarianConfig(**_shape(sizes, vocab_size), forced_eos_token_id=None))


def _shape(sizes: Sizes, vocab_size: int) -> dict[str, int | float | bool | str]:
    return {
        "vocab_size": vocab_size,
        "d_model": sizes.d_model,
        "encoder_layers": sizes.layers,
        "decoder_layers": sizes.layers,
        "encoder_ffn_dim": sizes.ffn_dim,
        "decoder_ffn_dim": sizes.ffn_dim,
        "encoder_attention_heads": sizes.heads,
        "decoder_attention_heads": sizes.heads,
        "dropout": 0.1,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
