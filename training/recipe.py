"""A recipe is a folder: `config.json`, `generation_config.json`, `training.yaml` and `README.md`."""

import difflib
import json
import math
from argparse import SUPPRESS, Namespace
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from transformers import GenerationConfig, HfArgumentParser

from training.data import DataOptions
from training.errors import UsageError
from training.trainer import TranslationTrainingArguments
from training.translation_dataset import may_have_configuration
from vanilla_transformer import VanillaTransformerConfig

JSON_FILES = ("config.json", "generation_config.json")
RECIPE_FILES = (*JSON_FILES, "training.yaml", "README.md")
DATA_SET = ("dataset", "dataset_config")
TEXT_FILES = tuple(f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target"))
# Options that only go wrong in training, or make no sense: from the first number to below the second.
RANGES = {
    "gradient_accumulation_steps": (1, math.inf),
    "label_smoothing_factor": (0, 1),
    "learning_rate": (0, math.inf),
    "weight_decay": (0, math.inf),
    "adam_beta1": (0, 1),
    "adam_beta2": (0, 1),
    "adam_epsilon": (0, math.inf),
    "dataloader_num_workers": (0, math.inf),
    "seed": (0, 2**32),
}
# Fields of the base class that change nothing here, and what there is instead.
DECODING = "generation_config.json says how to translate"
BATCHES = "batches are made by `max_batch_tokens`"
EVALUATION = "`eval_strategy` says when to evaluate, and each evaluation has loss, BLEU and chrF"
PRECISION = "`bf16` or `fp16` sets the precision of the whole run"
NO_EFFECT = {
    "generation_config": DECODING,
    "generation_max_length": DECODING,
    "generation_num_beams": DECODING,
    "per_device_train_batch_size": BATCHES,
    "per_device_eval_batch_size": BATCHES,
    "dataloader_drop_last": BATCHES,
    "train_sampling_strategy": BATCHES,
    "eval_accumulation_steps": BATCHES,
    "do_eval": EVALUATION,
    "predict_with_generate": EVALUATION,
    "prediction_loss_only": EVALUATION,
    "bf16_full_eval": PRECISION,
    "fp16_full_eval": PRECISION,
}
NOT_GIVEN = object()


@dataclass
class Recipe:
    """What a run does: the folder, its options with the command line's over them."""

    folder: Path
    data: DataOptions
    arguments: TranslationTrainingArguments

    def model_config(self, **sizes: int) -> VanillaTransformerConfig:
        """The model of `config.json`, for vocabularies of the sizes given.

        Raises:
            UsageError: the file describes a model that cannot be.
        """
        try:
            return VanillaTransformerConfig.from_pretrained(self.folder, **sizes)
        except ValueError as error:
            raise UsageError(f"{self.folder / 'config.json'}: {error}") from error

    def generation_config(self) -> GenerationConfig:
        """The decoding settings of `generation_config.json`.

        Raises:
            UsageError: the file holds a value that cannot be.
        """
        try:
            return GenerationConfig.from_pretrained(self.folder)
        except ValueError as error:
            raise UsageError(f"{self.folder / 'generation_config.json'}: {' '.join(str(error).split())}") from error


class _Parser(HfArgumentParser):
    def add_argument(self, *names: Any, **settings: Any) -> Any:
        if names[0].removeprefix("--") in NO_EFFECT:
            settings["help"] = SUPPRESS
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """One line, where argparse prints the names of all options first."""
        raise UsageError(message)


def parse_recipe(argv: list[str]) -> Recipe:
    """Read `RECIPE_DIR [--option value ...]`; an option of the command line goes over the recipe's `training.yaml`.

    Training text on the command line, files or a data set, takes the place of the recipe's, whichever that has; a data
    set also that of its held-out files. The recipe's `dataset_config` stays with another data set that may have it.

    Raises:
        UsageError: the folder is no recipe, or it sets an option that does not exist or a value that cannot be.
    """
    parser = _Parser(
        (DataOptions, TranslationTrainingArguments),
        prog="python -m training.train",
        description="Train, evaluate and save the model of a recipe. Every option can stand in its training.yaml.",
    )
    parser.add_argument("recipe", type=Path, help="folder with " + ", ".join(RECIPE_FILES))
    known = vars(parser.parse_args(argv))
    folder = known.pop("recipe")
    missing = [name for name in RECIPE_FILES if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder} is not a recipe: it lacks {', '.join(missing)}")
    for name in JSON_FILES:
        _check_json(folder / name)
    options = _training_options(parser, folder, set(known))
    parsed = vars(parser.parse_args(argv, Namespace(**dict.fromkeys(known, NOT_GIVEN))))
    given = {name: parsed[name] for name in known if parsed[name] is not NOT_GIVEN}
    for name in (*options, *given):
        if name in NO_EFFECT:
            raise UsageError(f"`{name}` has no effect here: {NO_EFFECT[name]}")
    replaced: tuple[str, ...] = ()
    if "dataset" in given:
        config = options.get("dataset_config")
        kept = config is not None and may_have_configuration(given["dataset"], config)
        replaced = TEXT_FILES if kept else (*DATA_SET, *TEXT_FILES)
    elif "train_source" in given or "train_target" in given:
        replaced = DATA_SET
    options = {name: value for name, value in options.items() if name not in replaced}
    try:
        data, arguments = parser.parse_dict({"output_dir": f"runs/{folder.resolve().name}", **options, **given})
        _check_ranges(arguments)
    except ValueError as error:
        raise UsageError(f"{folder / 'training.yaml'} or the command line: {error}") from error
    return Recipe(folder, data, arguments)


def _check_json(path: Path) -> None:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error})") from error
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: must hold `{{...}}`, settings by their names")


def _training_options(parser: _Parser, folder: Path, known: set[str]) -> dict[str, Any]:
    """The options of `training.yaml`, each with the value that the same text on the command line has."""
    path = folder / "training.yaml"
    try:
        options = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(options, dict):
        raise UsageError(f"{path}: must hold `option: value` lines")
    hints = get_type_hints(DataOptions) | get_type_hints(TranslationTrainingArguments)
    for name, value in options.items():
        if name not in known:
            closest = difflib.get_close_matches(str(name), known, n=1)
            raise UsageError(f"{path}: no option `{name}`" + (f"; did you mean `{closest[0]}`?" if closest else ""))
        if value is None:
            if parser.get_default(name) is not None:
                raise UsageError(f"{path}: `{name}` has no value: give it one, or remove the line")
        elif isinstance(value, list | dict):
            if type(value) not in _kinds(hints[name]):
                raise UsageError(f"{path}: `{name}` must be one value, got {value}")
            options[name] = [str(item) for item in value] if isinstance(value, list) else value
        else:
            try:
                options[name] = vars(parser.parse_args([str(folder), f"--{name}={value}"]))[name]
            except UsageError as error:
                raise UsageError(f"{path}: {error}") from error
    return options


def _kinds(hint: Any) -> set[Any]:
    """The types that a type hint allows, a list or dict whatever it holds."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return {get_origin(kind) or kind for kind in kinds}


def _check_ranges(arguments: TranslationTrainingArguments) -> None:
    for name, (least, bound) in RANGES.items():
        value = getattr(arguments, name)
        if not least <= value < bound:
            below = "" if bound == math.inf else f" and below {bound}"
            raise ValueError(f"`{name}` must be at least {least}{below}, got {value:g}")
    if arguments.save_steps <= 0:
        raise ValueError(
            f"`save_steps` must be above 0, got {arguments.save_steps:g}; `save_strategy: no` saves nothing"
        )
    if arguments.max_steps <= 0 and arguments.num_train_epochs <= 0:
        raise ValueError(f"`num_train_epochs` must be above 0, got {arguments.num_train_epochs:g}")
