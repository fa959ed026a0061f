"""A run's curves over its updates, as a picture: loss, learning rate and BLEU.

python -m training.curves RUN_DIR
"""

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from training.errors import UsageError, run_command

STATE, PICTURE = "trainer_state.json", "curves.png"
# For each panel the name of its vertical axis, and what it shows: key of the log -> name in the legend.
PANELS = {
    "loss, nats per token": {"loss": "training, smoothed", "eval_loss": "validation, negative log-likelihood"},
    "learning rate": {"learning_rate": "learning rate"},
    "BLEU": {"eval_bleu": "validation BLEU"},
}
MOST_MARKED = 50  # a line of more points is drawn without a mark at each


def figure(log_history: Sequence[Mapping[str, float]]) -> Figure | None:
    """The curves of `trainer.state.log_history`: a panel for each quantity that has a finite value, or `None`."""
    panels = {
        label: {name: points for key, name in keys.items() if (points := _points(log_history, key))}
        for label, keys in PANELS.items()
    }
    panels = {label: lines for label, lines in panels.items() if lines}
    if not panels:
        return None
    drawing = Figure(figsize=(7.0, 0.6 + 2.2 * len(panels)), layout="constrained")
    FigureCanvasAgg(drawing)
    column = drawing.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (label, lines) in zip(column, panels.items(), strict=True):
        _draw_panel(axes, label, lines)
    column[-1].set_xlabel("update")
    return drawing


def draw_curves(log_history: Sequence[Mapping[str, float]], path: Path) -> None:
    """Write the picture of `figure` as a PNG, whole or not at all; nothing where there is nothing to draw."""
    drawing = figure(log_history)
    if drawing is not None:
        _write(drawing, path)


def read_log(run_dir: Path) -> list[dict[str, float]]:
    """The log in the `trainer_state.json` of a run's folder.

    Raises:
        UsageError: there is none, or it holds something else.
    """
    if not run_dir.is_dir():
        raise UsageError(f"no folder {run_dir}")
    path = run_dir / STATE
    if not path.is_file():
        raise UsageError(f"{run_dir} has no {STATE}: give the output folder of a run")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not the state of a run: {error}") from error
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list):
        raise UsageError(f"{path} is not the state of a run: it has no list `log_history`")
    for number, entry in enumerate(log, start=1):
        if not _is_entry(entry):
            raise UsageError(f"{path} is not the state of a run: entry {number} of `log_history` is not one of a log")
    return log


def _is_entry(entry: object) -> bool:
    """Whether this has an update, and numbers where numbers are drawn."""
    drawn = ["step", *(key for keys in PANELS.values() for key in keys)]
    return (
        isinstance(entry, dict)
        and "step" in entry
        and all(isinstance(entry[key], int | float) for key in drawn if key in entry)
    )


def _points(log_history: Sequence[Mapping[str, float]], key: str) -> list[tuple[float, float]]:
    """Update and value of each entry that has a finite value of this name."""
    return [(entry["step"], entry[key]) for entry in log_history if key in entry and math.isfinite(entry[key])]


def _draw_panel(axes: Axes, label: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for name, points in lines.items():
        updates, values = zip(*points, strict=True)
        axes.plot(updates, values, label=name, marker="." if len(points) <= MOST_MARKED else "")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    if len(lines) > 1:
        axes.legend()


def _write(drawing: Figure, path: Path) -> None:
    """Write to a temporary name, then rename."""
    temporary = path.with_name(path.name + ".tmp")
    drawing.savefig(temporary, format="png", dpi=150)
    os.replace(temporary, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.curves",
        description=f"Draw loss, learning rate and BLEU of a run into {PICTURE} of its folder.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help=f"output folder of a run, with {STATE}")
    run_dir: Path = parser.parse_args().run_dir
    drawing = figure(read_log(run_dir))
    if drawing is None:
        raise UsageError(f"{run_dir / STATE} has no loss, learning rate or BLEU to draw")
    _write(drawing, run_dir / PICTURE)
    print(run_dir / PICTURE)


if __name__ == "__main__":
    run_command(main)
