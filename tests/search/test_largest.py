"""The best tokens, sought in blocks of the vocabulary: what torch's `topk` gives."""

import pytest
import torch

from vanilla_transformer import beam_search_vanilla_transformer as engine
from vanilla_transformer.beam_search_vanilla_transformer import largest


@pytest.mark.parametrize("n", [1, 4, 9])
@pytest.mark.parametrize("vocabulary", [9, 127, 128, 1151, 1152, 1153, 5000])
def test_as_topk(vocabulary: int, n: int) -> None:
    """Whole blocks and a rest, and half of the tokens barred."""
    scores = torch.randn(3, 2, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    scores[1, :, : vocabulary // 2] = -torch.inf
    values, places = largest(scores, n)
    expected = scores.topk(n)
    assert values.equal(expected.values)
    finite = values.isfinite()
    assert places[finite].equal(expected.indices[finite])
    assert scores.gather(-1, places).equal(values)


def test_best_tokens_in_one_block_and_in_the_rest() -> None:
    scores = torch.zeros(1, 10 * engine.BLOCK + 5)
    best = [3, 5, 7, 10 * engine.BLOCK + 4]
    scores[0, best] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert largest(scores, 4)[1].tolist() == [best[::-1]]
