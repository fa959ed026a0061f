"""Table 3 of the paper as recipes: each of its rows is the base recipe with one thing changed.

python -m training.table3 [FOLDER]     writes them anew, to hub_configs/ or another folder
"""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.errors import UsageError, run_command, tell
from training.files import check_folder, write_text

HUB_CONFIGS = Path(__file__).resolve().parent.parent / "hub_configs"
BASE_RECIPE = HUB_CONFIGS / "base-wmt14-en-de"
COMMENT_COLUMN = 28  # of training.yaml


@dataclass(frozen=True)
class Row:
    """A row of Table 3: what it changes, and what the paper measured.

    The table's letters stand for groups of rows; the numbers count the rows of a group from above.

    Attributes:
        name: letter and number.
        change: what the base model has in that row, in words.
        perplexity, bleu: on newstest2013, the development set; perplexity is per piece of the vocabulary.
        millions: parameters, in millions; `None` where the table has a blank.
        config: what config.json says in place of the base model's, or beside it.
        training: the lines of training.yaml that differ, as value and comment; `None` keeps the value.
        note: a further line for the card.
    """

    name: str
    change: str
    perplexity: float
    bleu: float
    millions: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)
    note: str = ""

    @property
    def folder(self) -> str:
        return f"table3-{self.name.lower()}"


def _heads(number: int, width: int) -> dict[str, int]:
    return {"encoder_attention_heads": number, "decoder_attention_heads": number, "d_k": width, "d_v": width}


def _layers(number: int) -> dict[str, int]:
    return {"encoder_layers": number, "decoder_layers": number}


def _ffn(width: int) -> dict[str, int]:
    return {"encoder_ffn_dim": width, "decoder_ffn_dim": width}


def _smoothing(epsilon: str) -> dict[str, tuple[str | None, str]]:
    comment = "paper, Table 3, row (D); dropout is in config.json (paper §5.4)"
    return {"label_smoothing_factor": (epsilon, comment)}


DROPOUT = {"label_smoothing_factor": (None, "paper §5.4; dropout is in config.json (paper, Table 3, row (D))")}

BASE = Row("base", "nothing", 4.92, 25.8, 65)
ROWS = (
    Row("A1", "1 attention head, d_k = d_v = 512", 5.29, 24.9, config=_heads(1, 512)),
    Row("A2", "4 attention heads, d_k = d_v = 128", 5.00, 25.5, config=_heads(4, 128)),
    Row("A3", "16 attention heads, d_k = d_v = 32", 4.91, 25.8, config=_heads(16, 32)),
    Row("A4", "32 attention heads, d_k = d_v = 16", 5.01, 25.4, config=_heads(32, 16)),
    Row("B1", "d_k = 16 (d_v stays 64)", 5.16, 25.1, 58, {"d_k": 16}),
    Row("B2", "d_k = 32 (d_v stays 64)", 5.01, 25.4, 60, {"d_k": 32}),
    Row("C1", "2 + 2 layers", 6.11, 23.7, 36, _layers(2)),
    Row("C2", "4 + 4 layers", 5.19, 25.3, 50, _layers(4)),
    Row("C3", "8 + 8 layers", 4.88, 25.5, 80, _layers(8)),
    Row("C4", "d_model 256, d_k = d_v = 32", 5.75, 24.5, 28, {"d_model": 256, "d_k": 32, "d_v": 32}),
    Row("C5", "d_model 1024, d_k = d_v = 128", 4.66, 26.0, 168, {"d_model": 1024, "d_k": 128, "d_v": 128}),
    Row("C6", "d_ff 1024", 5.12, 25.4, 53, _ffn(1024)),
    Row("C7", "d_ff 4096", 4.75, 26.2, 90, _ffn(4096)),
    Row("D1", "no dropout", 5.77, 24.6, config={"dropout": 0.0}, training=DROPOUT),
    Row("D2", "dropout 0.2", 4.95, 25.5, config={"dropout": 0.2}, training=DROPOUT),
    Row("D3", "no label smoothing", 4.67, 25.3, training=_smoothing("0.0")),
    Row("D4", "label smoothing 0.2", 5.47, 25.7, training=_smoothing("0.2")),
    Row(
        "E",
        "learned positions in place of sinusoids",
        4.92,
        25.7,
        config={"position_encoding": "learned"},
        note="The paper does not say how many positions it learned; here they are 1,024.\n",
    ),
)

# "no checkpoint averaging" is in the caption of Table 3: a checkpoint is there to continue from.
UNAVERAGED: Mapping[str, tuple[str | None, str]] = {
    "save_strategy": (None, "to continue from; none are averaged (paper, caption of Table 3)"),
    "save_steps": (None, "as the base recipe"),
    "save_total_limit": ("2", "the last and the one before"),
    "eval_strategy": (None, "translates the validation set, newstest2013, on which Table 3 is measured (paper §6.2)"),
}


def write_recipes(folder: Path) -> list[Path]:
    """Write the recipe of every row into a folder of its own in `folder`: their paths.

    Raises:
        UsageError: the base recipe lacks what a row changes, or a file is in the way.
    """
    recipes = {row.folder: recipe_files(row) for row in ROWS}
    for name in recipes:
        check_folder(folder / name)
    for name, files in recipes.items():
        for file, text in files.items():
            write_text(folder / name / file, text)
    return [folder / name for name in recipes]


def recipe_files(row: Row, base: Path = BASE_RECIPE) -> dict[str, str]:
    """The four files of a row's recipe by name, made from the base recipe's.

    Raises:
        UsageError: the base recipe lacks what the row changes.
    """
    config = json.loads((base / "config.json").read_text(encoding="utf-8")) | dict(row.config)
    return {
        "config.json": json.dumps(config, indent=2) + "\n",
        "generation_config.json": (base / "generation_config.json").read_text(encoding="utf-8"),
        "training.yaml": _training(row, base / "training.yaml"),
        "README.md": _metadata(base / "README.md") + _card(row),
    }


def _training(row: Row, path: Path) -> str:
    options = path.read_text(encoding="utf-8").split("\n", 1)[1]  # without the title
    options, found = re.subn(r"^average_last:.*\n", "", options, flags=re.MULTILINE)
    if not found:
        raise UsageError(f"{path}: no line `average_last: …` to leave out")
    for name, (value, comment) in {**UNAVERAGED, **row.training}.items():
        line = re.search(rf"^{name}: *([^ \n]+).*$", options, flags=re.MULTILINE)
        if line is None:
            raise UsageError(f"{path}: no line `{name}: …` to change")
        setting = f"{name}: {line[1] if value is None else value}"
        changed = f"{setting.ljust(COMMENT_COLUMN - 1)} # {comment}"
        options = options[: line.start()] + changed + options[line.end() :]
    title = f"# Table 3 of the paper, row {row.name}: the base model for WMT14 English-German, but with {row.change}."
    return f"{title}\n# `python -m training.table3` makes this file from that of {path.parent.name}.\n{options}"


def _metadata(card: Path) -> str:
    """The block of YAML at the beginning of a card, from which the Hub knows what a model is.

    Raises:
        UsageError: there is none.
    """
    block = re.match(r"---\n.*?^---\n", card.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    if block is None:
        raise UsageError(f"{card}: no block of metadata between two lines `---` to begin with")
    return block[0] + "\n"


def _card(row: Row) -> str:
    return f"""\
# {row.folder}

Table 3 of the paper, row {row.name}: the base model for WMT14 English-German (`{BASE_RECIPE.name}`), but with
{row.change}. 100,000 updates, no checkpoints averaged, 4 beams.
{row.note}
```
accelerate launch --num_processes 8 -m training.train hub_configs/{row.folder}
```

| | newstest2013: perplexity | BLEU | parameters, in millions |
|---|---|---|---|
{_numbers(f"the paper, row {row.name}", row)}
{_numbers("the paper, base", BASE)}
| this recipe | not trained yet | not trained yet | - |

Perplexity is per piece of the vocabulary: it compares only with that of text cut into the same pieces. The paper's
counts of parameters are those of a vocabulary of 40,960; this recipe's is one of 37,000 (paper §5.1). newstest2013 has
3,000 pairs. The last line of this is BLEU with compounds split, as in the paper's Table 2; of Table 3 it does not say:

```
python -m training.score runs/{row.folder}/eval_hypotheses.txt runs/{row.folder}/eval_references.txt --target-lang de
```
"""


def _numbers(what: str, row: Row) -> str:
    return f"| {what} | {row.perplexity:.2f} | {row.bleu:.1f} | {'-' if row.millions is None else row.millions} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.table3", description="Write the recipes of Table 3 from the base recipe."
    )
    parser.add_argument("folder", type=Path, nargs="?", default=HUB_CONFIGS, help="where to; default: hub_configs/")
    recipes = write_recipes(parser.parse_args().folder)
    tell(f"wrote {len(recipes)} recipes, {recipes[0]} to {recipes[-1]}")


if __name__ == "__main__":
    run_command(main)
