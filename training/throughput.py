"""How many tokens a run trains on, how many positions they take with padding, and how fast."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vanilla_transformer.loss_vanilla_transformer import IGNORED_LABEL


class Throughput:
    """Counts the batches of a run; all numbers are of all processes together, and of the whole run.

    Args:
        reduce: sums a tensor over the processes.

    Attributes:
        counts: of this process, the target tokens, the tokens of both sides, the positions of both sides.
    """

    def __init__(self, reduce: Callable[[Tensor], Tensor]) -> None:
        self.reduce = reduce
        self.counts = torch.zeros(3, dtype=torch.int64)
        self.before = torch.zeros(3, dtype=torch.int64)
        self.logged = torch.zeros(3, dtype=torch.int64)
        self.logged_at = time.monotonic()

    def keep(self) -> dict[str, Any]:
        """What a continued run needs to know. Every process must ask."""
        return {
            "totals": self.totals(),
            "logged": self.logged.tolist(),
            "seconds": time.monotonic() - self.logged_at,
        }

    def begin(self, kept: dict[str, Any] | None) -> None:
        """Start the clock, after what `keep` gave if the run is continued."""
        self.logged_at = time.monotonic()
        if kept is not None:
            self.before, self.logged = torch.tensor(kept["totals"]), torch.tensor(kept["logged"])
            self.logged_at -= kept["seconds"]

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count a batch: `input_ids` (B, S), `attention_mask` (B, S), `labels` (B, T). Nothing waits for a device."""
        labels: Tensor = batch["labels"]
        target = labels.ne(IGNORED_LABEL).sum()
        positions = torch.full_like(target, batch["input_ids"].numel() + labels.numel())
        counted = torch.stack((target, target + batch["attention_mask"].sum(), positions))
        self.counts = self.counts.to(counted.device) + counted

    def leave_out(self, seconds: float) -> None:
        """What took these seconds since the last line of the log was not training."""
        self.logged_at += seconds

    def totals(self) -> list[int]:
        """Target tokens, tokens and positions so far. Every process must ask."""
        summed: list[int] = (self.before + self.reduce(self.counts.clone()).cpu()).tolist()
        return summed

    def whole_run(self, seconds: float) -> dict[str, float]:
        """The rates of a run that took these seconds, evaluations and all. Every process must ask."""
        target, tokens, positions = self.totals()
        return {
            "train_target_tokens_per_second": target / max(seconds, 1e-9),
            "train_padding_share": _padding_share(tokens, positions),
        }

    def since_last_log(self) -> dict[str, float]:
        """Target tokens a second, and the share of positions that is padding. Every process must ask."""
        totals, now = torch.tensor(self.totals()), time.monotonic()
        target, tokens, positions = (totals - self.logged).tolist()
        seconds = max(now - self.logged_at, 1e-9)
        self.logged, self.logged_at = totals, now
        return {
            "target_tokens_per_second": target / seconds,
            "padding_share": _padding_share(tokens, positions),
        }


def _padding_share(tokens: int, positions: int) -> float:
    return 1 - tokens / positions if positions else 0.0
