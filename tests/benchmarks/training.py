"""Training speed: real target tokens a second on real text, base shape."""

from collections.abc import Iterator
from functools import partial

from training.errors import tell

from .measure import Comparison, Row, take_turns
from .runs import Batching, Plan, Run, Setting
from .setting import Sizes

BARS: dict[tuple[bool, Batching], str] = {
    (False, "random"): "≥ 1.6",
    (False, "grouped"): "≥ 1.4",
    (True, "random"): "≥ 2.2",
    (True, "grouped"): "≥ 1.8",
}
PEERS: dict[Batching, str] = {"random": "random batches", "grouped": "grouped by length"}


def rows(sizes: Sizes, rounds: int) -> Iterator[Row]:
    """Token batches against both ways in which transformers makes batches, in float32 and in bfloat16."""
    setting = Setting(sizes)
    plans: dict[Batching, Plan] = {batching: setting.plan(batching) for batching in ("ours", *PEERS)}
    for batching, plan in plans.items():
        tell(f"{batching}: {plan}")
    for bf16 in (False, True):
        precision = "bf16" if bf16 else "fp32"
        runs = {batching: setting.run(batching, bf16, plan) for batching, plan in plans.items()}
        for run in runs.values():
            run.train(run.plan.sample(1))  # the optimizer's state comes with its first update
        speeds = take_turns({f"{name}, {precision}": _speed(run, sizes) for name, run in runs.items()}, rounds)
        for peer, name in PEERS.items():
            compared = Comparison(speeds[f"ours, {precision}"], speeds[f"{peer}, {precision}"])
            work = f"training, {precision}, Marian with {name}"
            yield compared.row(work, "{:.0f} tok/s", BARS[bf16, peer])


def _speed(run: Run, sizes: Sizes) -> partial[float]:
    return partial(run.tokens_per_second, sizes.updates)
