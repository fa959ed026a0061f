"""What the benchmarks share: rows of the table, work that takes turns, processes of their own, the machine."""

import multiprocessing
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
import transformers

from training.errors import tell
from training.run_facts import cpu_name

HEADER = "| work | ours | peer | ratio | bar |\n|---|---|---|---|---|"

P = ParamSpec("P")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """A line of the table; `bar` is the ratio, or the number of ours, that is wanted."""

    work: str
    ours: str
    peer: str = ""
    ratio: str = ""
    bar: str = ""

    def __str__(self) -> str:
        return f"| {self.work} | {self.ours} | {self.peer} | {self.ratio} | {self.bar} |"


@dataclass(frozen=True)
class Comparison:
    """What ours and the peer gave in each round."""

    ours: list[float]
    peer: list[float]

    def row(self, work: str, number: str, bar: str = "") -> Row:
        """The medians, written as `number` says, and the median of the rounds' ratios, ours to the peer's."""
        ours, peer = (number.format(statistics.median(side)) for side in (self.ours, self.peer))
        ratio = statistics.median(our / their for our, their in zip(self.ours, self.peer, strict=True))
        return Row(work, ours, peer, f"{ratio:.2f}", bar)


def take_turns(works: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """What each work returns, every work once a round: what slows a machine down for a while meets all of them."""
    results: dict[str, list[Result]] = {name: [] for name in works}
    for number in range(1, rounds + 1):
        for name, work in works.items():
            result = work()
            results[name].append(result)
            shown = f"{result:.4g}" if isinstance(result, float) else result
            tell(f"round {number} of {rounds}, {name}: {shown}")
    return results


def in_own_process(function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """What a function returns in a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def resident_bytes(peak: bool = False) -> int:
    """This process' memory, now or at most so far.

    On Linux it is read where the kernel keeps it for this program alone: `ru_maxrss` begins with the parent's.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM" if peak else "VmRSS"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> str:
    """Date, hardware and versions in one line."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{date.today()}, {cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {ram:.0f} GiB, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
