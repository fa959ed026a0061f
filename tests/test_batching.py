"""Token batches (paper §5.1; B42)."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from training.batching import TokenBatchSampler


def lengths(n: int = 500, seed: int = 0) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(1, 61, n).tolist(), rng.integers(1, 61, n).tolist()


@pytest.mark.parametrize("budget", [61, 128, 1000, 100_000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_padded_size_fits_and_every_pair_comes_once(budget: int, shuffle: bool) -> None:
    source, target = lengths()
    sampler = TokenBatchSampler(source, target, budget, shuffle=shuffle)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(source)))
    assert len(batches) == len(sampler)
    assert sampler.skipped == 0
    for batch in batches:
        assert batch
        assert len(batch) * max(source[i] for i in batch) <= budget
        assert len(batch) * max(target[i] for i in batch) <= budget


def test_pairs_over_the_budget_are_counted_and_skipped() -> None:
    source, target = lengths()
    source[7], target[9] = 500, 500
    sampler = TokenBatchSampler(source, target, 128)
    seen = {i for batch in sampler for i in batch}
    assert sampler.skipped == 2
    assert seen == set(range(500)) - {7, 9}


def test_tokens_and_padding_of_an_epoch() -> None:
    source, target = lengths()
    source[7] = 500  # over the budget: not counted
    sampler = TokenBatchSampler(source, target, 128)
    real = padded = 0
    for batch in sampler:
        for side in (source, target):
            real += sum(side[i] for i in batch)
            padded += len(batch) * max(side[i] for i in batch)
    assert sampler.target_tokens() == sum(target) - target[7]
    assert sampler.padding_share() == pytest.approx(1 - real / padded)
    assert TokenBatchSampler([4, 4], [4, 4], 128).padding_share() == 0.0


def text_lengths(n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Lengths as of sentences: log-normal, the sides alike but for a fifth."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.lognormal(math.log(28), 0.6, n), 2, 256).astype(np.int32)
    return source, np.clip(source * rng.lognormal(0.0, 0.2, n), 2, 256).astype(np.int32)


def test_a_large_corpus_leaves_little_padding() -> None:
    """Both lengths tell pairs apart where there are many batches of each; a small corpus goes by the longer alone."""
    source, target = text_lengths(200_000)
    assert TokenBatchSampler(source, target, 512).padding_share() < 0.03
    assert TokenBatchSampler(source[:4000], target[:4000], 512).padding_share() > 0.07


def test_groups_are_large_enough_to_mix() -> None:
    """Of two pairs in one batch, few are in one batch in the next epoch too."""
    source, target = text_lengths(200_000)
    sampler = TokenBatchSampler(source, target, 512)
    batch_of = np.empty((2, len(source)), np.int64)  # epoch, pair → number of the batch
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(sampler):
            batch_of[epoch, batch] = number
    rows = np.bincount(batch_of[0])
    _, rows_again = np.unique(batch_of[0] * len(sampler) + batch_of[1], return_counts=True)
    together = (rows_again * (rows_again - 1)).sum() / (rows * (rows - 1)).sum()
    assert together < 1 / 16


def test_a_pair_as_long_as_the_budget_fits() -> None:
    assert list(TokenBatchSampler([128, 1], [1, 128], 128)) in ([[0], [1]], [[1], [0]])


def test_order_is_new_every_epoch_and_repeats_with_the_seed() -> None:
    source, target = lengths()

    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = TokenBatchSampler(source, target, 128, seed=seed)
        sampler.set_epoch(epoch)
        assert len(list(sampler)) == len(sampler)
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert order(1, 3) == order(1, 3)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    # Not only the order of the batches: which pairs of one length meet is new too.
    assert sorted(map(sorted, order(1, 0))) != sorted(map(sorted, order(1, 1)))


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_processes_share_one_plan_evenly(replicas: int) -> None:
    """Every process has the same number of batches, none of them empty; together they are the plan of one process."""
    source, target = lengths()
    whole = TokenBatchSampler(source, target, 128, seed=4)
    parts = [TokenBatchSampler(source, target, 128, seed=4, num_replicas=replicas, rank=r) for r in range(replicas)]
    shares = [list(part) for part in parts]
    assert {len(share) for share in shares} == {len(part) for part in parts} == {-(-len(whole) // replicas)}
    plan = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert plan[: len(whole)] == list(whole)
    assert plan[len(whole) :] == list(whole)[: len(plan) - len(whole)]


def test_more_processes_than_batches() -> None:
    shares = [list(TokenBatchSampler([3], [4], 128, num_replicas=4, rank=rank)) for rank in range(4)]
    assert shares == [[[0]]] * 4


def test_bad_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="none of 2 pairs fits `max_batch_tokens`=4"):
        TokenBatchSampler([5, 6], [7, 1], 4)
    with pytest.raises(ValueError, match="none of 0 pairs"):
        TokenBatchSampler([], [], 4)
    with pytest.raises(ValueError, match="2 source lengths, but 1 target"):
        TokenBatchSampler([1, 2], [1], 4)
