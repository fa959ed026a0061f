"""What the tests against other translation models share: their weights, their output, and their decoding."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from vanilla_transformer import VanillaTransformerForConditionalGeneration


def copy_weights(
    model: VanillaTransformerForConditionalGeneration, other: nn.Module, renamed: dict[str, str] | None = None
) -> None:
    """Give `other` the model's weights, name by name; `renamed` says which are called otherwise there.

    Only tables of positions may be left as they are.
    """
    names = renamed or {}
    state = {names.get(name, name): tensor for name, tensor in model.state_dict().items()}
    keys = other.load_state_dict(state, strict=False)
    assert not keys.unexpected_keys
    assert all(name.endswith("embed_positions.weight") for name in keys.missing_keys), keys.missing_keys


def translate(model: Any, source: Tensor, mask: Tensor, end: int, pad: int, **settings: Any) -> Tensor:
    """What `model.generate` makes of the sources (B, S), with padding after each row's first end token."""
    model.generation_config = GenerationConfig(
        eos_token_id=end,
        pad_token_id=pad,
        decoder_start_token_id=model.config.decoder_start_token_id,
        bos_token_id=model.config.bos_token_id,
        **settings,
    )
    sequences = model.generate(source, attention_mask=mask)
    new = sequences[:, 1:]  # the start token may be the end token
    is_end = new == end
    finished = is_end.cumsum(dim=1) - is_end.long() > 0
    return torch.cat((sequences[:, :1], new.masked_fill(finished, pad)), dim=1)


def assert_same_translations(ours: Tensor, theirs: Tensor, pad: int) -> None:
    """Token for token; a row may only be longer by padding."""
    width = max(ours.shape[1], theirs.shape[1])
    padded = [nn.functional.pad(rows, (0, width - rows.shape[1]), value=pad) for rows in (ours, theirs)]
    assert padded[0].tolist() == padded[1].tolist()
