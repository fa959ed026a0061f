"""Speed and memory as ratios to named peers.

python -m tests.benchmarks [NAME ...] [--rounds N] [--quick] [--list]

Ours and the peers take turns in one run, and the ratio is the median of the rounds': on a noisy machine a ratio can be
trusted where a second cannot. The table goes to stdout, progress to stderr; bars are ratios to be reached, and nothing
fails below them.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import transformers

from training.errors import run_command, tell

from . import data, decoding, loading, memory, training
from .measure import HEADER, Row, machine
from .setting import FULL, QUICK, Sizes, require_text


class Group(NamedTuple):
    """Benchmarks that are run together: their rows, the rounds they need, the corpora they read."""

    rows: Callable[[Sizes, int], Iterator[Row]]
    rounds: int
    corpora: tuple[str, ...]
    about: str


GROUPS = {
    "training": Group(training.rows, 3, ("wmt_sample",), "real target tokens a second, fp32 and bf16"),
    "memory": Group(memory.rows, 1, ("wmt_sample",), "peak memory of training"),
    "data": Group(data.rows, 3, data.CORPORA, "encoding text, planning batches"),
    "loading": Group(loading.rows, 5, (), "importing the package, loading a model"),
    "decoding": Group(decoding.rows, 3, ("wmt_sample",), "translation: speed, memory, latency"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Speed and memory against peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--rounds", type=int, help="of each comparison; default: what the group needs")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: shows that all of it runs")
    parser.add_argument("--list", action="store_true", help="name the groups and end")
    options = parser.parse_args()
    names = options.names or list(GROUPS)
    if unknown := [name for name in names if name not in GROUPS]:
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: 1 or more")
    if options.list:
        for name, group in GROUPS.items():
            print(f"{name:<10}{group.about}")
        return
    for corpus in (corpus for name in names for corpus in GROUPS[name].corpora):
        require_text(corpus)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"{machine()}\n\n{HEADER}", flush=True)
    for name in names:
        tell(name)
        rounds = options.rounds or (1 if options.quick else GROUPS[name].rounds)
        for row in GROUPS[name].rows(QUICK if options.quick else FULL, rounds):
            print(row, flush=True)


if __name__ == "__main__":
    run_command(main)
