"""Batches by tokens: "sentence pairs were batched together by approximate sequence length" (paper §5.1)."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of pairs of like length in which rows times longest, padding counted, fits a budget on each side.

    Every pair that fits the budget comes exactly once an epoch; which pairs of one length go together, and the order
    of the batches, are new every epoch and the same for a seed and an epoch. `len()` is exact.

    Of several processes each plans the same list of batches and takes every `num_replicas`-th of it, all equally many:
    where the batches do not come out even, the first of the epoch come again at its end.

    Args:
        source_lengths, target_lengths: tokens of each pair, end tokens counted.
        max_batch_tokens: the budget of a batch on either side.
        seed: of the order.
        shuffle: `False` gives the longest pairs first, in the same order every time.
        num_replicas, rank: how many processes there are, and which of them this is, from 0.

    Attributes:
        skipped: pairs that are longer than the budget and never come.

    Raises:
        ValueError: the two sides differ in number, or no pair fits the budget.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | NDArray[np.int32],
        target_lengths: Sequence[int] | NDArray[np.int32],
        max_batch_tokens: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        source = np.asarray(source_lengths, dtype=np.int64)
        target = np.asarray(target_lengths, dtype=np.int64)
        if len(source) != len(target):
            raise ValueError(f"{len(source)} source lengths, but {len(target)} target lengths")
        fits = np.maximum(source, target) <= max_batch_tokens
        if not fits.any():
            raise ValueError(f"none of {len(source)} pairs fits `max_batch_tokens`={max_batch_tokens}: raise it")
        self.skipped = int((~fits).sum())
        self.seed = seed
        self.shuffle = shuffle
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.source = source
        self.target = target
        self.usable = np.flatnonzero(fits)
        # Only the order among equals changes from epoch to epoch, so where a batch ends does not.
        self.starts = self._batch_starts(self._by_length(self.usable), max_batch_tokens)

    def _by_length(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the longer side, longest first; pairs of one length stay as they come.

        Not by the shorter side too: batches of pairs that are alike in both are alike in what they say, and text made
        of patterns is then learnt badly.
        """
        return indices[np.argsort(-np.maximum(self.source[indices], self.target[indices]), kind="stable")]

    def _batch_starts(self, ordered: NDArray[np.int64], max_batch_tokens: int) -> list[int]:
        starts = [0]
        longest_source = longest_target = 0
        for i, (source, target) in enumerate(
            zip(self.source[ordered].tolist(), self.target[ordered].tolist(), strict=True)
        ):
            longest_source, longest_target = max(longest_source, source), max(longest_target, target)
            if (i + 1 - starts[-1]) * max(longest_source, longest_target) > max_batch_tokens:
                starts.append(i)
                longest_source, longest_target = source, target
        return starts

    def target_tokens(self) -> int:
        """Real target tokens of an epoch, all processes together."""
        return int(self.target[self.usable].sum())

    def padding_share(self) -> float:
        """The share of the epoch's positions, on both sides, that hold no token; it hardly differs between epochs."""
        ordered = np.concatenate(self._batches(np.random.default_rng((self.seed, self.epoch))))
        rows = np.diff([*self.starts, len(ordered)])
        sides = [side[ordered] for side in (self.source, self.target)]
        padded = sum(int((rows * np.maximum.reduceat(side, self.starts)).sum()) for side in sides)
        return 1 - sum(int(side.sum()) for side in sides) / padded

    def set_epoch(self, epoch: int) -> None:
        """Choose the order that the next iteration gives."""
        self.epoch = epoch

    def _batches(self, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """The batches of an epoch, longest pairs first."""
        indices = rng.permutation(self.usable) if self.shuffle else self.usable
        return np.split(self._by_length(indices), self.starts[1:])

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        batches = self._batches(rng)
        order = rng.permutation(len(batches)) if self.shuffle else np.arange(len(batches))
        for i in np.resize(order, len(self) * self.num_replicas)[self.rank :: self.num_replicas]:
            yield batches[i].tolist()

    def __len__(self) -> int:
        return -(-len(self.starts) // self.num_replicas)
