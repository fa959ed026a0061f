"""What the files of a finished run's folder know of the run, for those who tell of it or pass it on."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME

from training.average import INDEX, RESULTS, WEIGHTS
from training.checkpoints import read_json
from training.continuing import OPTIONS
from training.errors import UsageError
from training.run_facts import FACTS
from training.score import averaged_checkpoints, decoding_settings
from vanilla_transformer import VanillaTransformerConfig

SPLITS = {"test": "test", "eval": "validation"}  # by the prefix of their results
PICTURE = "curves.png"  # of `training.curves`, which needs matplotlib


@dataclass(frozen=True)
class FinishedRun:
    """What a run's folder holds; of a file that is not there, nothing.

    Attributes:
        config: the model's, all fields.
        decoding: the settings that `training.score` tells; `None` without a generation config.
        averaged: the names of the checkpoints that the model is the average of; empty where it is none.
        options, results, state, facts: `training_options.json`, `all_results.json`, `trainer_state.json` and
            `run_facts.json`.
    """

    folder: Path
    config: dict[str, Any]
    decoding: dict[str, Any] | None
    averaged: list[str]
    options: dict[str, Any]
    results: dict[str, Any]
    state: dict[str, Any]
    facts: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Read a folder with a model.

        Raises:
            UsageError: `config.json`, `generation_config.json` or `averaging.json` is damaged.
        """
        try:
            config = VanillaTransformerConfig.from_pretrained(folder).to_dict()
        except (OSError, TypeError, ValueError) as error:
            raise UsageError(f"{folder / 'config.json'}: {str(error).strip().splitlines()[0]}") from error
        decoding, averaged = decoding_settings(folder), averaged_checkpoints(folder)
        held = [read_json(folder / name) for name in (OPTIONS, RESULTS, TRAINER_STATE_NAME, FACTS)]
        known = [content if isinstance(content, dict) else {} for content in held]
        return cls(folder, config, decoding, averaged or [], *known)

    @property
    def languages(self) -> list[str]:
        """Codes of source and target, one where they are the same."""
        sides = (self.options.get("source_lang"), self.options.get("target_lang"))
        return list(dict.fromkeys(side for side in sides if side))

    @property
    def corpus(self) -> str:
        """What the training text is called, without the folders of the machine that it was on."""
        if name := self.options.get("dataset"):
            return str(self.facts.get("hub_dataset") or Path(name).name)
        return _file_names(self.options.get("train_source", []))

    @property
    def scored(self) -> list[str]:
        """The prefixes of the results of the texts that were translated."""
        return [prefix for prefix in SPLITS if f"{prefix}_bleu" in self.results]

    def own_text(self, prefix: str) -> str:
        """The names of the files with the text of these results; "" where it is the training's data set's own."""
        return _file_names(self.options.get(f"{SPLITS[prefix]}_source", []))

    def parameters(self) -> int:
        """The numbers in the weights; what is stored once for several names counts once.

        Raises:
            UsageError: a file of weights is missing or cannot be read.
        """
        return sum(_numbers(self.folder / name) for name in weight_files(self.folder))


def weight_files(folder: Path) -> list[str]:
    """The names of the safetensors files that `from_pretrained` would read; none where there are no weights."""
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    index = read_json(folder / INDEX)
    return sorted(set(index.get("weight_map", {}).values())) if isinstance(index, dict) else []


def _numbers(path: Path) -> int:
    try:
        with safe_open(path, framework="pt") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _file_names(paths: Iterable[str]) -> str:
    return ", ".join(Path(path).name for path in paths)
