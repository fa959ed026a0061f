"""A recipe is a folder: `config.json`, `generation_config.json`, `training.yaml` and `README.md`."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import GenerationConfig, HfArgumentParser

from training.data import DataOptions
from training.errors import UsageError
from training.trainer import TranslationTrainingArguments
from vanilla_transformer import VanillaTransformerConfig

RECIPE_FILES = ("config.json", "generation_config.json", "training.yaml", "README.md")


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
        """The decoding settings of `generation_config.json`."""
        return GenerationConfig.from_pretrained(self.folder)


def parse_recipe(argv: list[str]) -> Recipe:
    """Read `RECIPE_DIR [--option value ...]`; an option of the command line goes over the recipe's `training.yaml`.

    Raises:
        UsageError: the folder is no recipe, or it sets an option that does not exist or a value that cannot be.
    """
    parser = HfArgumentParser(
        (DataOptions, TranslationTrainingArguments),
        prog="python -m training.train",
        description="Train, evaluate and save the model of a recipe. Every option can stand in its training.yaml.",
    )
    parser.add_argument("recipe", type=Path, help="folder with " + ", ".join(RECIPE_FILES))
    folder = parser.parse_args(argv).recipe
    missing = [name for name in RECIPE_FILES if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder} is not a recipe: it lacks {', '.join(missing)}")
    known = set(vars(parser.parse_args(argv)))
    parser.set_defaults(output_dir=str(Path("runs") / folder.resolve().name), **_training_options(folder, known))
    try:
        data, arguments, _ = parser.parse_args_into_dataclasses(argv)
    except ValueError as error:
        raise UsageError(f"{folder / 'training.yaml'} or the command line: {error}") from error
    return Recipe(folder, data, arguments)


def _training_options(folder: Path, known: set[str]) -> dict[str, Any]:
    path = folder / "training.yaml"
    try:
        options = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(options, dict):
        raise UsageError(f"{path}: must hold `option: value` lines")
    for name in options:
        if name not in known - {"recipe"}:
            closest = difflib.get_close_matches(str(name), known, n=1)
            raise UsageError(f"{path}: no option `{name}`" + (f"; did you mean `{closest[0]}`?" if closest else ""))
    return options
