"""Finding out what a run's folder already holds, and whether the command given is the one that made it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME

from training.checkpoints import best_checkpoint, checkpoints, clear_leftovers, problem, read_json, set_aside
from training.errors import UsageError, tell
from training.files import write_text
from training.recipe import Recipe
from training.trainer import TranslationTrainingArguments
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.pipeline_vanilla_transformer import TARGET_TOKENIZER_FOLDER

OPTIONS = "training_options.json"
ANEW = "to start anew, remove {} or give another --output_dir"
# The tokenizers of a run are trained once, so these cannot change in it.
VOCABULARY_OPTIONS = ("vocab_size", "tokenizer_algorithm", "joint_vocabulary")
# Say how a run is started and not what it does.
NOT_COMPARED = ("output_dir", "resume_from_checkpoint", "preprocessing_num_workers")
# What saving and training write into a config.
NOT_OF_THE_RECIPE = ("architectures", "auto_map", "custom_pipelines", "dtype", "transformers_version", "use_cache")


def find_checkpoint(arguments: TranslationTrainingArguments) -> Path | None:
    """The checkpoint to continue from: the one that the options name, or the last whole one of the output folder.

    What a killed run left half written is removed; a damaged checkpoint is named on stderr and renamed.

    Raises:
        UsageError: the one named is not whole.
    """
    if arguments.resume_from_checkpoint:
        named = Path(arguments.resume_from_checkpoint)
        if wrong := problem(named):
            raise UsageError(f"--resume_from_checkpoint {named}: {wrong}")
        return named
    folder = Path(arguments.output_dir)
    if arguments.should_save:
        clear_leftovers(folder)
    for checkpoint in reversed(checkpoints(folder)):
        wrong = problem(checkpoint)
        if wrong is None:
            return checkpoint
        if arguments.should_save:
            tell(f"{checkpoint} is damaged: {wrong}; renamed to {set_aside(checkpoint).name}, trying the one before")
    return None


def check_continuable(checkpoint: Path, arguments: TranslationTrainingArguments) -> None:
    """A run that goes on from a whole checkpoint needs more than its weights.

    Raises:
        UsageError: it holds nothing else, or the best one before it, which is to be loaded at the end, is damaged.
    """
    anew = ANEW.format(arguments.output_dir)
    if not any(checkpoint.glob("optimizer*")):
        raise UsageError(f"{checkpoint} holds weights alone (`save_only_model`): {anew}")
    best = best_checkpoint(checkpoint) if arguments.load_best_model_at_end else None
    if best and (wrong := problem(best)):
        raise UsageError(
            f"{best}, the best checkpoint so far: {wrong}; `--load_best_model_at_end false` does without it; {anew}"
        )


def trained_updates(folder: Path) -> int:
    """The updates behind the finished model at the top of a run's folder; 0 where there is none.

    Raises:
        UsageError: the file that says so is damaged.
    """
    path = folder / TRAINER_STATE_NAME
    state = read_json(path)
    if path.exists() and not isinstance(state, dict):
        raise UsageError(
            f"{path} is damaged: without it the run goes on from its last checkpoint; {ANEW.format(folder)}"
        )
    return int(state.get("global_step", 0)) if state else 0


def stopped_early(folder: Path) -> bool:
    """Whether the finished model at the top of a run's folder ended before its last update, by early stopping."""
    state = read_json(folder / TRAINER_STATE_NAME)
    return isinstance(state, dict) and 0 < state.get("global_step", 0) < state.get("max_steps", 0)


def load_tokenizers(folder: Path) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """The tokenizers of source and target kept with a model or a checkpoint; one for both where it is one.

    Raises:
        UsageError: a file of theirs, or `config.json`, is missing or damaged.
    """
    separate = folder / TARGET_TOKENIZER_FOLDER
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return tokenizer, AutoTokenizer.from_pretrained(separate) if separate.is_dir() else tokenizer
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{folder}: its tokenizer or config.json cannot be read ({reason})") from error


def run_options(recipe: Recipe, train_pairs: int | None) -> dict[str, Any]:
    """What a run is made of, as it is kept in its folder: its options and, but for a stream, its training pairs."""
    options = {**json.loads(recipe.arguments.to_json_string()), **asdict(recipe.data), "train_pairs": train_pairs}
    return {name: value for name, value in options.items() if name not in NOT_COMPARED}


def write_options(folder: Path, options: dict[str, Any]) -> None:
    """Keep the options of a run that starts."""
    write_text(folder / OPTIONS, json.dumps(options, indent=2) + "\n")


def compare_options(folder: Path, options: dict[str, Any]) -> None:
    """Name on stderr what differs from the options that the run in a folder was started with.

    Raises:
        UsageError: an option of the vocabulary differs.
    """
    before = read_json(folder / OPTIONS)
    if not isinstance(before, dict):
        return
    changed = [name for name in options if name in before and options[name] != before[name]]
    for name in VOCABULARY_OPTIONS:
        if name in changed:
            raise UsageError(
                f"`{name}` is {options[name]}, but {before[name]} in the run in {folder}: {ANEW.format(folder)}"
            )
    if changed:
        differences = ", ".join(f"{name} {options[name]} (before: {before[name]})" for name in changed)
        tell(f"{folder} was begun with other options: {differences}")


def check_model(config: VanillaTransformerConfig, folder: Path, run_folder: Path) -> None:
    """The model of the recipe must be the one kept in a folder.

    Raises:
        UsageError: it is another.
    """
    kept = VanillaTransformerConfig.from_pretrained(folder).to_dict()
    for name, value in config.to_dict().items():
        if name not in NOT_OF_THE_RECIPE and kept.get(name) != value:
            raise UsageError(
                f"config.json: `{name}` is {value}, but {kept.get(name)} in {folder}: {ANEW.format(run_folder)}"
            )
