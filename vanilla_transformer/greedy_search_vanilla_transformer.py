"""Greedy search: at each step the most probable token. Finished sentences leave the batch."""

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from .incremental_decoder_vanilla_transformer import SharedSourceDecoder
from .stopping_vanilla_transformer import StoppingRules, padding_id, stack


def greedy_search(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    limits: Tensor | None = None,
    minimums: Tensor | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """Greedy search with the arguments that transformers' `generate` hands to a decoding method.

    Args:
        input_ids: (B, T), the start of each target.
        logits_processor, stopping_criteria: as transformers prepares them.
        limits, minimums: (B,), most and fewest new tokens of each sentence, end token counted; `None`: as
            `generation_config` says for all.
        model_kwargs: `encoder_outputs` and `attention_mask` of the source, of B rows.

    Returns:
        (B, T) token ids, padding behind the end.
    """
    sentences, length = input_ids.shape
    device, padding = input_ids.device, padding_id(generation_config)
    rules = StoppingRules(stopping_criteria, generation_config, length, sentences, limits, minimums, device)
    leaving = not logits_processor and not rules.criteria  # both may count rows
    most = length + int(rules.limits.max())
    states, mask = model_kwargs["encoder_outputs"][0], model_kwargs.get("attention_mask")
    decoder = SharedSourceDecoder(model.model.decoder, states, mask, most)

    tokens, ids = input_ids, torch.arange(sentences, device=device)  # of the sentences in the batch
    is_open = torch.ones(sentences, dtype=torch.bool, device=device)
    results = [input_ids] * sentences
    states, new = decoder.read_prompt(input_ids), 0
    while True:
        scores, new = model.project(states[:, -1:]).float(), new + 1  # (B, 1, V)
        rules.bar_early_ends(scores, new)
        scores = scores[:, 0]
        if logits_processor:
            scores = logits_processor(tokens, scores)
        best = scores.argmax(dim=-1, keepdim=True)
        if len(rules.ends):  # as in transformers: processors and criteria see what has ended too
            best = best.masked_fill(~is_open[:, None], padding)
        tokens = torch.cat((tokens, best), dim=1)
        ended = rules.ending(tokens[:, None], new)[:, 0]
        for row in (ended & is_open).nonzero()[:, 0]:
            results[int(ids[row])] = tokens[row][None]
        is_open = is_open & ~ended
        left = int(is_open.sum())
        if not left:
            return stack(results, tokens.shape[1], fill=padding)
        if leaving and left < len(is_open):
            kept = is_open.nonzero()[:, 0]
            tokens, ids, is_open = tokens[kept], ids[kept], is_open[kept]
            rules.keep(kept)
            decoder.keep(kept)
        position = torch.full((1, 1), length + new - 1, device=device)
        states = decoder.read(tokens[:, -1:], position, length + new)
