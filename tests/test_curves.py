"""The picture of a run: it shows what the log says, appears whole, and leaves out what there is not."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from tests.recipes import ROOT, run_module
from training import curves
from training.curves import draw_curves, figure
from training.errors import run_command

LOG: list[dict[str, float]] = [
    {"step": 100, "loss": 7.8, "learning_rate": 0.0004, "grad_norm": 2.6, "epoch": 0.4},
    {"step": 200, "loss": 6.1, "learning_rate": 0.0008, "grad_norm": 0.9, "epoch": 0.8},
    {"step": 200, "eval_loss": 4.1, "eval_bleu": 6.3, "eval_perplexity": 62.7, "eval_runtime": 43.9},
    {"step": 300, "loss": 5.7, "learning_rate": 0.0006, "grad_norm": 0.8, "epoch": 1.2},
    {"step": 310, "eval_loss": 3.9, "eval_bleu": 20.5, "eval_perplexity": 49.4, "eval_runtime": 41.0},
    {"step": 310, "train_loss": 6.5, "train_runtime": 2908.7, "total_flos": 55787857526784.0},
    {"step": 310, "test_loss": 1.9, "test_bleu": 35.3},
]


def drawn(log: list[dict[str, float]]) -> Figure:
    found = figure(log)
    assert found is not None
    return found


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of each line of a panel, by its label."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]
        for line in axes.get_lines()
    }


def test_panels_show_the_values_of_the_log() -> None:
    loss, rate, bleu = drawn(LOG).axes
    assert lines(loss) == {
        "training, smoothed": [(100, 7.8), (200, 6.1), (300, 5.7)],
        "validation, negative log-likelihood": [(200, 4.1), (310, 3.9)],
    }
    assert lines(rate) == {"learning rate": [(100, 0.0004), (200, 0.0008), (300, 0.0006)]}
    assert lines(bleu) == {"validation BLEU": [(200, 6.3), (310, 20.5)]}


def test_axes_are_named_and_two_lines_have_a_legend() -> None:
    loss, rate, bleu = drawn(LOG).axes
    assert [axes.get_ylabel() for axes in (loss, rate, bleu)] == ["loss, nats per token", "learning rate", "BLEU"]
    assert [axes.get_xlabel() for axes in (loss, rate, bleu)] == ["", "", "update"]
    assert loss.get_xlim() == rate.get_xlim() == bleu.get_xlim()
    legend = loss.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["training, smoothed", "validation, negative log-likelihood"]
    assert rate.get_legend() is None
    assert bleu.get_legend() is None


@pytest.mark.parametrize(
    ("keys", "panels"),
    [
        (("loss", "learning_rate"), ["loss, nats per token", "learning rate"]),
        (("eval_loss", "eval_bleu"), ["loss, nats per token", "BLEU"]),
        (("learning_rate",), ["learning rate"]),
    ],
)
def test_panels_without_data_are_left_out(keys: tuple[str, ...], panels: list[str]) -> None:
    found = drawn([{key: entry[key] for key in ("step", *keys) if key in entry} for entry in LOG]).axes
    assert [axes.get_ylabel() for axes in found] == panels
    assert [axes.get_xlabel() for axes in found] == [""] * (len(panels) - 1) + ["update"]
    assert [axes.get_legend() for axes in found] == [None] * len(panels)


def test_values_that_are_not_finite_are_left_out() -> None:
    log = [
        {"step": 1, "loss": math.nan, "learning_rate": math.nan, "eval_bleu": 1.5},
        {"step": 2, "loss": 3.0, "learning_rate": math.inf},
        {"step": 3, "loss": -math.inf, "eval_loss": math.inf},
    ]
    loss, bleu = drawn(log).axes
    assert lines(loss) == {"training, smoothed": [(2, 3.0)]}
    assert loss.get_legend() is None
    assert lines(bleu) == {"validation BLEU": [(1, 1.5)]}


def test_a_single_point_can_be_seen(tmp_path: Path) -> None:
    draw_curves([{"step": 7, "eval_bleu": 12.5}], tmp_path / "curves.png")
    pixels = imread(tmp_path / "curves.png")[..., :3]
    blue = (np.abs(pixels - np.array([0x1F, 0x77, 0xB4]) / 255) < 0.02).all(axis=-1)
    assert blue.sum() > 20


def test_points_are_marked_where_they_are_few() -> None:
    def marker(count: int) -> object:
        log: list[dict[str, float]] = [{"step": step, "eval_bleu": step / 10} for step in range(count)]
        return drawn(log).axes[0].get_lines()[0].get_marker()

    assert [marker(count) for count in (1, 50, 51, 1000)] == [".", ".", "", ""]


@pytest.mark.parametrize("last", [1, 3])
def test_updates_are_whole_numbers(last: int) -> None:
    (axes,) = drawn([{"step": step, "loss": 2.0 / step} for step in range(1, last + 1)]).axes
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == list(range(1, last + 1))


def test_file_is_a_png_of_the_figure(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    path.write_text("an older picture")
    draw_curves(LOG, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(path)
    assert pixels.shape[:2] == (1080, 1050)  # 7.2 x 7 inches
    canvas = FigureCanvasAgg(expected := drawn(LOG))
    expected.set_dpi(150)
    canvas.draw()
    np.testing.assert_allclose(pixels, np.asarray(canvas.buffer_rgba()) / 255, atol=1e-6)
    assert os.listdir(tmp_path) == ["curves.png"]


def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Any, **options: Any) -> None:
        Path(path).write_bytes(b"\x89PNG")
        raise OSError("no space")

    path = tmp_path / "curves.png"
    draw_curves(LOG, path)
    whole = path.read_bytes()
    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="no space"):
        draw_curves(LOG[:2], path)
    assert path.read_bytes() == whole
    with pytest.raises(OSError, match="no space"):
        draw_curves(LOG, tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()


@pytest.mark.parametrize("log", [[], [{"step": 3, "train_loss": 2.0}], [{"step": 3, "loss": math.nan}]])
def test_nothing_to_draw_writes_nothing(tmp_path: Path, log: list[dict[str, float]]) -> None:
    assert figure(log) is None
    draw_curves(log, tmp_path / "curves.png")
    assert os.listdir(tmp_path) == []


def test_command_draws_the_log_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    log = [*LOG, {"step": 400, "loss": math.nan}]
    (tmp_path / "run" / "trainer_state.json").write_text(json.dumps({"global_step": 400, "log_history": log}))
    done = run_module("training.curves", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "run/curves.png\n"), done.stderr
    draw_curves(log, tmp_path / "expected.png")
    np.testing.assert_array_equal(imread(tmp_path / "run" / "curves.png"), imread(tmp_path / "expected.png"))
    assert sorted(os.listdir(tmp_path / "run")) == ["curves.png", "trainer_state.json"]


NOT_ONE = "run/trainer_state.json is not the state of a run: "
NO_ENTRY = NOT_ONE + "entry 2 of `log_history` is not one of a log"
START = '{"log_history": [{"step": 1, "loss": 2.0}, '


@pytest.mark.parametrize(
    ("run_dir", "state", "message"),
    [
        ("absent", b"", "no folder absent"),
        ("empty", b"", "empty has no trainer_state.json: give the output folder of a run"),
        ("run", b"{", NOT_ONE + "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("run", b"\xff", NOT_ONE + "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("run", b"[]", NOT_ONE + "it has no list `log_history`"),
        ("run", b'{"log_history": {}}', NOT_ONE + "it has no list `log_history`"),
        ("run", (START + "3]}").encode(), NO_ENTRY),
        ("run", (START + '{"loss": 1.0}]}').encode(), NO_ENTRY),
        ("run", (START + '{"step": "2", "loss": 1.0}]}').encode(), NO_ENTRY),
        ("run", (START + '{"step": 2, "eval_bleu": null}]}').encode(), NO_ENTRY),
        ("run", b'{"log_history": []}', "run/trainer_state.json has no loss, learning rate or BLEU to draw"),
    ],
)
def test_command_ends_with_status_2_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_dir: str,
    state: bytes,
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trainer_state.json").write_bytes(state)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["curves", run_dir])
    with pytest.raises(SystemExit) as end:
        run_command(curves.main)
    assert end.value.code == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert os.listdir(tmp_path / "run") == ["trainer_state.json"]


def test_pyplot_stays_away_and_training_starts_without_matplotlib() -> None:
    code = """
import io, sys
import training.trainer
print("matplotlib" in sys.modules)
from training.curves import figure
figure([{"step": 1, "loss": 2.0}]).savefig(io.BytesIO())
print("matplotlib" in sys.modules, "matplotlib.pyplot" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue False\n"
