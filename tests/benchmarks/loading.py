"""Time until a model is there: importing the code, loading the paper's base model from disk."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from .measure import Comparison, Row, take_turns
from .setting import Sizes, our_model, peer_model

IMPORTS = {
    "ours": "import vanilla_transformer",
    "Marian": "from transformers import MarianConfig, MarianModel, MarianMTModel, MarianPreTrainedModel",
}
TIMES = 5  # loads of one measurement
TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def rows(sizes: Sizes, rounds: int) -> Iterator[Row]:
    """Importing in a fresh process each time; loading the same shape with the same vocabulary."""
    ours, peer = take_turns({name: partial(importing, code) for name, code in IMPORTS.items()}, rounds).values()
    more = statistics.median(our - their for our, their in zip(ours, peer, strict=True))
    our_time, peer_time = (f"{statistics.median(side):.2f} s" for side in (ours, peer))
    work = "importing the package, or the same names of Marian"
    yield Row(work, our_time, peer_time, f"{more:+.2f} s", "≤ +0.15 s")
    with tempfile.TemporaryDirectory() as folder:
        works = {}
        for name, make in (("ours", our_model), ("Marian", peer_model)):
            model = make(sizes, sizes.decoding_vocab_size)
            model.save_pretrained(Path(folder) / name)
            works[name] = partial(loading, type(model), Path(folder) / name)
        speeds = take_turns(works, rounds)
    yield Comparison(*speeds.values()).row("loading from disk, models a second", "{:.2f}", "≥ 1")


def importing(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", TIMED.format(code)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def loading(model: type[PreTrainedModel], folder: Path) -> float:
    """Models a second, each read whole: weights that nothing has used yet may still be on the disk."""
    start = time.perf_counter()
    for _ in range(TIMES):
        for parameter in model.from_pretrained(folder).parameters():
            parameter.sum()
    return TIMES / (time.perf_counter() - start)
