"""What a user may add to a search: processors and criteria that it has to heed, options that it does not know."""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, MaxLengthCriteria, StoppingCriteria

from tests.tiny import tokenizer


class OnlyEvenAfterOdd(LogitsProcessor):
    """A rule that looks at the tokens so far."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        banned = (torch.arange(scores.shape[1]) % 2 == 1) & (input_ids[:, -1:] % 2 == 1)
        return scores.masked_fill(banned, -torch.inf)


class RowsDiffer(LogitsProcessor):
    """A rule that depends on the row, and counts the rows: all hypotheses of five sentences."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = len(scores)
        assert len(input_ids) == rows
        assert rows % 5 == 0
        return scores - 0.1 * torch.arange(rows)[:, None] * torch.arange(scores.shape[1]).remainder(3)


def own_words(sentence: int, prefix: Tensor) -> list[int]:
    """A rule that depends on the sentence and on what it has so far."""
    return [2, *range(3 + sentence, 50, 2 + len(prefix) % 2)]


PROCESSORS: list[dict[str, Any]] = [
    {"min_length": 6},
    {"min_new_tokens": 4},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_repetition_penalty": 1.5},
    {"bad_words_ids": [[7], [22, 22], [29], [41, 35]]},
    {"sequence_bias": [[[5], 3.0], [[22, 22], -2.0]]},
    {"forced_bos_token_id": 17},
    {"forced_eos_token_id": 2},
    {"forced_eos_token_id": [2, 5]},
    {"suppress_tokens": [5, 22, 29, 41]},
    {"begin_suppress_tokens": [2, 22]},
    {"exponential_decay_length_penalty": (3, 1.5)},
    {"renormalize_logits": True, "suppress_tokens": [5, 22]},
    {"remove_invalid_values": True},
    {"prefix_allowed_tokens_fn": own_words},
    {"logits_processor": [OnlyEvenAfterOdd()]},
    {"logits_processor": [RowsDiffer()], "no_repeat_ngram_size": 2},
]


class FinishedAtAMultiple(StoppingCriteria):
    """Ends a hypothesis by its last token."""

    def __init__(self, of: int) -> None:
        self.of = of

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return input_ids[:, -1] % self.of == self.of - 1


class FinishedByRow(StoppingCriteria):
    """Ends the hypotheses of a sentence after so many tokens as it has number; counts rows."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        assert scores is None or isinstance(scores, tuple)
        sentence = torch.arange(len(input_ids)) // (len(input_ids) // 5)
        return input_ids.shape[1] > 3 + sentence


class FinishedAfterFour(StoppingCriteria):
    """Ends everything, and says so with one truth value, which transformers takes too."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] == 5


class FinishedAtTheSecondEnd(StoppingCriteria):
    """Ends everything when there are two end tokens in the batch: it looks at sentences that have ended too."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids.eq(2).sum() > 1


CRITERIA: dict[str, dict[str, Any]] = {
    "last token": {"stopping_criteria": [FinishedAtAMultiple(4)]},
    "most tokens": {
        "stopping_criteria": [FinishedAtAMultiple(2), FinishedAtAMultiple(3), FinishedAtAMultiple(5)],
        "length_penalty": 4.0,
    },
    "row": {"stopping_criteria": [FinishedByRow()]},
    "both": {"stopping_criteria": [FinishedAtAMultiple(4), FinishedByRow()]},
    "one truth value": {"stopping_criteria": [FinishedAfterFour()]},
    "others": {"stopping_criteria": [FinishedAtTheSecondEnd()]},
    "length": {"stopping_criteria": [MaxLengthCriteria(4)]},
    "two lengths": {"stopping_criteria": [MaxLengthCriteria(6), MaxLengthCriteria(4)]},
    "no time": {"max_time": 0.0},
    "much time": {"max_time": 1000.0},
}
# With these transformers' own search runs, and finds the same.
SAME_TEXT: dict[str, dict[str, Any]] = {
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "output_logits": {"output_logits": True, "return_dict_in_generate": True},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "cache_implementation": {"cache_implementation": "static"},
    "use_cache": {"use_cache": False},
    "tokenizer": {"tokenizer": tokenizer()},
    "penalty_alpha": {"penalty_alpha": 0.6},
    "dola_layers": {"dola_layers": "low"},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 2},
    "decoder_attention_mask": {
        "decoder_input_ids": torch.tensor([[1, 9, 8]] * 5),
        "decoder_attention_mask": torch.ones((5, 3), dtype=torch.long),
    },
}
