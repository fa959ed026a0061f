"""When a hypothesis ends: its sentence's own limits, the end tokens, what a user adds; and what then follows it.

Shapes in comments: B sentences, K hypotheses of each (consecutive rows in transformers), T tokens, V vocabulary size.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria


class StoppingRules:
    """What `generate` was asked for about the end of a hypothesis, for searches of this model.

    Args:
        stopping_criteria: as transformers prepares them.
        prompt_length: decoder tokens that are there before the first new one.
        limits: (B,), most new tokens of each sentence; `None`: those of `config` hold for all.
        minimums: (B,), fewest new tokens of each sentence, end token counted; `None`: there is no least number.
    """

    def __init__(
        self,
        stopping_criteria: StoppingCriteriaList,
        config: GenerationConfig,
        prompt_length: int,
        sentences: int,
        limits: Tensor | None,
        minimums: Tensor | None,
        device: torch.device,
    ) -> None:
        ends = [criterion.eos_token_id for criterion in stopping_criteria if type(criterion) is EosTokenCriteria]
        self.ends: Tensor = ends[0].to(device) if ends else torch.empty(0, dtype=torch.long, device=device)
        self.criteria = [c for c in stopping_criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)]
        longest = [criterion.max_length for criterion in stopping_criteria if type(criterion) is MaxLengthCriteria]
        room = min(longest, default=config.max_length) - prompt_length
        self.limits = torch.full((sentences,), room, device=device)
        if limits is not None:
            self.limits = limits.to(device).clamp(max=room)
        self.minimums = torch.zeros_like(self.limits) if minimums is None else minimums.to(device)

    def bar_early_ends(self, scores: Tensor, new: int, part: slice = slice(None)) -> None:
        """Let no hypothesis end with `new` tokens where more are wanted.

        `scores` (B, K, V), of a part of the sentences, are changed in place.
        """
        minimums = self.minimums[part]
        if new < int(minimums.max()):
            early = (new < minimums)[:, None, None]
            scores[..., self.ends] = scores[..., self.ends].masked_fill(early, -torch.inf)

    def ending(self, tokens: Tensor, new: int) -> Tensor:
        """Which hypotheses (B, K, T), of `new` tokens behind the prompt, end: (B, K)."""
        ending = torch.isin(tokens[:, :, -1], self.ends) | (new >= self.limits)[:, None]
        for criterion in self.criteria:
            ended = torch.as_tensor(criterion(tokens.flatten(0, 1), None), device=ending.device)
            ending = ending | (ended.view_as(ending) if ended.dim() else ended)
        return ending

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences, by their indices."""
        self.limits, self.minimums = self.limits[sentences], self.minimums[sentences]


class LengthLimitForEachSentence(StoppingCriteria):
    """Ends a hypothesis at its own sentence's limit, so that a translation does not depend on its neighbours.

    Args:
        limits: (sentences,), the most new tokens of each, end token included.
        prompt_length: decoder tokens that are there before the first new one.
    """

    def __init__(self, limits: Tensor, prompt_length: int) -> None:
        self.limits = limits
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """(rows, T) -> (rows,), true where the limit is reached; a sentence's hypotheses are consecutive rows."""
        rows_per_sentence = input_ids.shape[0] // self.limits.shape[0]
        limits = self.limits.to(input_ids.device).repeat_interleave(rows_per_sentence)
        return input_ids.shape[1] - self.prompt_length >= limits


class MinimumLengthForEachSentence(LogitsProcessor):
    """Allows no end token before a sentence's own least number of new tokens, end token included.

    Args:
        minimums: (sentences,).
        prompt_length: decoder tokens that are there before the first new one.
        ends: ids of the end tokens.
    """

    def __init__(self, minimums: Tensor, prompt_length: int, ends: list[int]) -> None:
        self.minimums = minimums
        self.prompt_length = prompt_length
        self.ends = ends

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(rows, T) and (rows, V) -> (rows, V); a sentence's hypotheses are consecutive rows."""
        minimums = self.minimums.to(scores.device).repeat_interleave(input_ids.shape[0] // self.minimums.shape[0])
        early = (input_ids.shape[1] - self.prompt_length + 1 < minimums)[:, None]
        scores = scores.clone()
        scores[:, self.ends] = scores[:, self.ends].masked_fill(early, -torch.inf)
        return scores


def pad_after_end(new: Tensor, limits: Tensor | None, end: int | list[int] | None, pad: int | None) -> None:
    """Write padding after each row's first end token, and past its limit, in the new tokens (rows, T), in place.

    transformers' beam search fills finished rows with the end token where the padding id is 0.
    """
    if pad is None:
        return
    is_end = torch.isin(new, torch.tensor([] if end is None else end, device=new.device, dtype=new.dtype))
    finished = is_end.cumsum(dim=-1) - is_end.long() > 0
    if limits is not None:
        limits = limits.to(new.device).repeat_interleave(new.shape[0] // limits.shape[0])
        finished |= torch.arange(new.shape[1], device=new.device) >= limits[:, None]
    new.masked_fill_(finished, pad)


def padding_id(config: GenerationConfig) -> int:
    """What follows a hypothesis that is shorter than others; transformers takes the end token where none is set."""
    return 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)


def stack(rows: list[Tensor], length: int, fill: int) -> Tensor:
    """Rows (n, T) of different lengths, cut or filled to one, one behind the other."""
    return torch.cat([F.pad(row, (0, length - row.shape[1]), value=fill) for row in rows])
