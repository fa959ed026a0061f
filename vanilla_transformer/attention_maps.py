"""Where a translation looked in its source: the decoder's attention to the encoder's output, piece by piece."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class AttentionMap:
    """The attention of one sentence's translation.

    Attributes:
        source, target: the pieces of both, as they stand in the vocabulary, end tokens included.
        attention: (target, source), the mean over the heads of the last layer, rounded to 4 digits; a row sums to 1.
        alignment: (source, target) indices: for each target piece the source piece that it attends to most.
    """

    source: list[str]
    target: list[str]
    attention: list[list[float]]
    alignment: list[tuple[int, int]]


@torch.no_grad()
def attention_map(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    target_ids: Sequence[int],
    target_tokenizer: PreTrainedTokenizerBase | None = None,
) -> AttentionMap:
    """The attention with which `model` predicts a translation, by one pass over all its tokens; empty without tokens.

    Args:
        model: in evaluation mode.
        target_ids: as `Hypothesis.ids` has them, without start token.
        target_tokenizer: the target's, where it is not the source's.
    """
    if not target_ids:
        return AttentionMap([], [], [], [])
    source_ids = tokenizer(sentence, verbose=False)["input_ids"]
    start = model.generation_config.decoder_start_token_id
    output = model(
        input_ids=torch.tensor([source_ids], device=model.device),
        decoder_input_ids=torch.tensor([[start, *target_ids[:-1]]], device=model.device),
        output_attentions=True,
        use_cache=False,
    )
    weights = output.cross_attentions[-1][0].double().mean(dim=0)  # (target, source)
    return AttentionMap(
        tokenizer.convert_ids_to_tokens(source_ids),
        (target_tokenizer or tokenizer).convert_ids_to_tokens(list(target_ids)),
        [[round(weight, 4) for weight in row] for row in weights.tolist()],
        list(zip(weights.argmax(dim=1).tolist(), range(len(target_ids)), strict=True)),
    )
