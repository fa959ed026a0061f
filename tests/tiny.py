"""What the model's tests share: tiny models, a tokenizer for them, and what it means for two results to agree."""

import tempfile
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

SRC = torch.tensor([[11, 12, 13, 2]])
TGT = torch.tensor([[1, 9, 8]])
LABELS = torch.tensor([[9, 8, 2]])


def tiny_config(**changes: Any) -> VanillaTransformerConfig:
    settings: dict[str, Any] = {
        "vocab_size": 50,
        "d_model": 16,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 64,
        "dropout": 0.0,
    }
    return VanillaTransformerConfig(**settings | changes)


def tiny(seed: int = 0, attention: str = "sdpa", **changes: Any) -> VanillaTransformerForConditionalGeneration:
    """A random model without dropout, in eval mode."""
    torch.manual_seed(seed)
    config = tiny_config(**changes)
    config._attn_implementation = attention
    return VanillaTransformerForConditionalGeneration(config).eval()


@torch.no_grad()
def scale(
    model: VanillaTransformerForConditionalGeneration, factor: float = 6.0
) -> VanillaTransformerForConditionalGeneration:
    """The same model with every matrix multiplied, so that its outputs are not flat."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(factor)
    return model


@torch.no_grad()
def endless(seed: int = 0, **changes: Any) -> VanillaTransformerForConditionalGeneration:
    """A model that never predicts the padding, start or end token."""
    model = scale(tiny(seed, final_logits_bias=True, **changes))
    assert model.final_logits_bias is not None
    model.final_logits_bias[:, :3] = -1e4
    return model


def same(x: Tensor, y: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal shapes and no difference of `tolerance` or more; never true of NaN."""
    return x.shape == y.shape and bool((x.float() - y.float()).abs().max() < tolerance)


def reload(model: Any, **kwargs: Any) -> Any:
    """The model after saving to a folder and loading from it."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return type(model).from_pretrained(folder, **kwargs)


def pad(rows: list[list[int]], side: str = "right", value: int = 0, extra: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor with padding on a side, `extra` columns more than needed, and their mask."""
    width = max(map(len, rows)) + extra
    ids, mask = [], []
    for row in rows:
        fill, hidden = [value] * (width - len(row)), [0] * (width - len(row))
        ids.append(row + fill if side == "right" else fill + row)
        mask.append([1] * len(row) + hidden if side == "right" else hidden + [1] * len(row))
    return torch.tensor(ids), torch.tensor(mask)


def cache_of(outputs: Any) -> Any:
    """The cache of a model's outputs, under the name that the installed transformers gives it."""
    return outputs["cache"] if "cache" in outputs else outputs["past_key_values"]


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for each of the tiny model's ids."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 50))]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
