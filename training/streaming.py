"""Token batches of a corpus that is read as it is used, for text that does not fit."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import datasets
from torch.utils.data import IterableDataset

from training.batching import TokenBatchSampler
from training.encoding import PairEncoder, Verdict
from training.errors import UsageError

Ids = dict[str, list[int]]
ENCODED_AT_ONCE = 1000


@dataclass(frozen=True)
class StreamPosition:
    """A place between two batches of a stream.

    Attributes:
        block: the number of the block, from 0.
        epoch: the pass over the corpus, from 0, in which the block is.
        pair: pairs of that pass before the block.
        batch: batches of the block that were taken.
        counts: pairs read before the block, by what became of them; the last: longer than the budget of a batch.
    """

    block: int = 0
    epoch: int = 0
    pair: int = 0
    batch: int = 0
    counts: tuple[int, ...] = field(default=(0,) * (len(Verdict) + 1))

    @property
    def used(self) -> int:
        """Pairs before the block that were in batches."""
        return self.counts[Verdict.USED] - self.counts[-1]


class StreamedBatches(IterableDataset[list[Ids]]):
    """The batches of `TokenBatchSampler` over one block of the corpus after another, pass after pass, without end.

    A block is as many pairs as the buffer holds, encoded and shuffled by themselves; a pass ends its last block. So a
    seed gives the same batches every time, and of several processes each reads everything and takes its share.

    Args:
        text: a stream with the columns `source` and `target`.
        encoder: encodes pairs, and leaves out those that break a rule.
        max_batch_tokens: the budget of a batch on either side.
        buffer_size: pairs of a block.
        seed: of the order.
        num_replicas, rank: how many processes there are, and which of them this is.

    Attributes:
        start: where iterating begins.

    Raises:
        UsageError: while iterating, a whole pass without a usable pair.
    """

    def __init__(
        self,
        text: datasets.IterableDataset,
        encoder: PairEncoder,
        max_batch_tokens: int,
        buffer_size: int,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.text = text
        self.encoder = encoder
        self.max_batch_tokens = max_batch_tokens
        self.buffer_size = buffer_size
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.start = StreamPosition()
        self._blocks: list[tuple[int, StreamPosition]] = []

    def __iter__(self) -> Iterator[list[Ids]]:
        given, position = 0, self.start
        self._blocks = []
        while True:
            first = position
            for pairs, counts in self._read_blocks(position.epoch, position.pair):
                self._blocks.append((given - position.batch, replace(position, batch=0)))
                for number, batch in enumerate(self._batches(pairs, position.block)):
                    if number >= position.batch:
                        given += 1
                        yield batch
                position = StreamPosition(
                    block=position.block + 1,
                    epoch=position.epoch,
                    pair=position.pair + sum(counts[: len(Verdict)]),
                    counts=tuple(before + now for before, now in zip(position.counts, counts, strict=True)),
                )
            if first.pair == 0 and position.used == first.used:
                raise UsageError(f"no pair of the corpus can be used: {self.counts(position)}")
            position = replace(position, epoch=position.epoch + 1, pair=0)

    def position_after(self, batches: int) -> StreamPosition:
        """Where the stream is after so many batches since it began; not before those asked for last."""
        while len(self._blocks) > 1 and self._blocks[1][0] <= batches:
            self._blocks.pop(0)
        if not self._blocks:
            return self.start
        first, position = self._blocks[0]
        return replace(position, batch=batches - first)

    def counts(self, position: StreamPosition) -> dict[str, int]:
        """How many pairs were left out of the blocks before a position, by what was wrong with them."""
        counts = {reason: position.counts[verdict] for verdict, reason in self.encoder.reasons().items()}
        return counts | {f"over {self.max_batch_tokens} tokens": position.counts[-1]}

    def _read_blocks(self, epoch: int, skipped: int) -> Iterator[tuple[list[Ids], list[int]]]:
        """The usable pairs of one block after another of a pass, and how many pairs met which verdict."""
        pairs: list[Ids] = []
        counts = [0] * (len(Verdict) + 1)
        size = min(ENCODED_AT_ONCE, self.buffer_size)
        for batch in self.text.skip(skipped).iter(batch_size=size):
            encoded = self.encoder(batch)
            for source, target, verdict in zip(*(encoded[n] for n in ("input_ids", "labels", "verdict")), strict=True):
                counts[verdict] += 1
                if verdict == Verdict.USED:
                    if max(len(source), len(target)) > self.max_batch_tokens:
                        counts[-1] += 1
                    else:
                        pairs.append({"input_ids": source, "labels": target})
                if sum(counts[: len(Verdict)]) == self.buffer_size:
                    yield pairs, counts
                    pairs, counts = [], [0] * (len(Verdict) + 1)
        if sum(counts):
            yield pairs, counts

    def _batches(self, pairs: list[Ids], block: int) -> Iterator[list[Ids]]:
        if not pairs:
            return
        sampler = TokenBatchSampler(
            [len(pair["input_ids"]) for pair in pairs],
            [len(pair["labels"]) for pair in pairs],
            self.max_batch_tokens,
            seed=self.seed,
            num_replicas=self.num_replicas,
            rank=self.rank,
        )
        sampler.set_epoch(block)
        for batch in sampler:
            yield [pairs[i] for i in batch]
