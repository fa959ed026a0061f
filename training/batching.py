"""Batches by tokens: "sentence pairs were batched together by approximate sequence length" (paper §5.1)."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

# Both lengths tell groups apart only where each still fills this many batches: in smaller groups the same pairs would
# meet every epoch, and text made of patterns, alike in length and in words, would be learnt badly.
MIXED_BATCHES = 16


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of pairs of like length in which rows times longest, padding counted, fits a budget on each side.

    Every pair that fits the budget comes exactly once an epoch; which pairs of like length go together, and the order
    of the batches, are new every epoch and the same for a seed and an epoch. `len()` is exact. Like
    length is that of the longer side; in a large corpus, of millions of pairs, that of the other side too.

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
        longer = np.maximum(source, target)
        fits = longer <= max_batch_tokens
        if not fits.any():
            raise ValueError(f"none of {len(source)} pairs fits `max_batch_tokens`={max_batch_tokens}: raise it")
        self.skipped = int((~fits).sum())
        self.seed = seed
        self.shuffle = shuffle
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.source, self.target, self.longer = source, target, longer
        self.usable = np.flatnonzero(fits)
        self.groups = self._groups_of_like_length(max_batch_tokens)
        self.starts = self._batch_starts(max_batch_tokens)

    def _groups_of_like_length(self, max_batch_tokens: int) -> NDArray[np.int64]:
        """The group of each usable pair, numbered from the shortest up.

        A group is of one length on the longer side, and of like length on the other where `MIXED_BATCHES` allow it.
        """
        longer, difference = self.longer[self.usable], (self.source - self.target)[self.usable]
        ordered = np.lexsort((difference, longer))
        lengths, first, pairs = np.unique(longer[ordered], return_index=True, return_counts=True)
        parts = np.maximum(1, pairs * lengths // (MIXED_BATCHES * max_batch_tokens))
        place = np.arange(len(ordered)) - np.repeat(first, pairs)
        part = place * np.repeat(parts, pairs) // np.repeat(pairs, pairs)
        groups = np.empty_like(ordered)
        groups[ordered] = np.repeat(np.cumsum(parts) - parts, pairs) + part
        return groups

    def _in_groups(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The usable pairs group by group, longest first; those of one group in the given order."""
        return self.usable[order[np.argsort(-self.groups[order], kind="stable")]]

    def _batch_starts(self, max_batch_tokens: int) -> list[int]:
        """Where each batch starts among the pairs in groups: the same in every epoch, as a group has one length."""
        lengths = self.longer[self._in_groups(np.arange(len(self.usable)))]
        starts = [0]
        while (end := starts[-1] + max_batch_tokens // int(lengths[starts[-1]])) < len(lengths):
            starts.append(end)
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
        order = rng.permutation(len(self.usable)) if self.shuffle else np.arange(len(self.usable))
        return np.split(self._in_groups(order), self.starts[1:])

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        batches = self._batches(rng)
        order = rng.permutation(len(batches)) if self.shuffle else np.arange(len(batches))
        for i in np.resize(order, len(self) * self.num_replicas)[self.rank :: self.num_replicas]:
            yield batches[i].tolist()

    def __len__(self) -> int:
        return -(-len(self.starts) // self.num_replicas)
