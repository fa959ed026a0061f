"""Memory of training: the peak of a process that trains on the largest update of an epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from .measure import Comparison, Row, in_own_process, resident_bytes, take_turns
from .runs import Batching, Setting
from .setting import Sizes

UPDATES = 3  # of one batch; from the second on, the optimizer's state is there while gradients are computed
BAR = "≤ 0.80"


@dataclass(frozen=True)
class Case:
    """A training; `same_batch` gives the peer the very batch that ours trains on."""

    name: str
    batching: Batching
    bf16: bool = False
    same_batch: bool = False


@dataclass(frozen=True)
class Peak:
    """Gigabytes of a process at most: all of it, and what training added to imports, text and model."""

    whole: float
    training: float

    def __str__(self) -> str:
        return f"{self.training:.3f} GB of {self.whole:.3f} GB"


CASES = (
    (
        Case("ours", "ours"),
        Case("the same update", "random", same_batch=True),
        Case("random batches", "random"),
        Case("grouped by length", "grouped"),
    ),
    (
        Case("ours", "ours", bf16=True),
        Case("the same update", "random", bf16=True, same_batch=True),
    ),
)


def rows(sizes: Sizes, rounds: int) -> Iterator[Row]:
    """The largest update of ours against the same one in Marian, and against the largest of the peer's epochs."""
    for ours, *peers in CASES:
        works = {case.name: partial(in_own_process, measure, case, sizes) for case in (ours, *peers)}
        peaks = take_turns(works, rounds)
        for peer in peers:
            what = f"{'bf16' if ours.bf16 else 'fp32'}, Marian with {peer.name}"
            sides = peaks[ours.name], peaks[peer.name]
            added = Comparison(*([peak.training for peak in side] for side in sides))
            yield added.row(f"memory added by training, {what}", "{:.2f} GB", BAR)
            whole = Comparison(*([peak.whole for peak in side] for side in sides))
            yield whole.row(f"memory of the process, {what}", "{:.2f} GB")


def measure(case: Case, sizes: Sizes) -> Peak:
    """Train on the largest batch of an epoch; to be called in a process of its own."""
    setting = Setting(sizes)
    plan = setting.plan("ours" if case.same_batch else case.batching).largest()
    run = setting.run(case.batching, case.bf16, plan)
    before = resident_bytes()
    run.train(plan, UPDATES)
    peak = resident_bytes(peak=True)
    return Peak(peak / 1e9, (peak - before) / 1e9)
