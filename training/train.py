"""Train a recipe: text in, a folder out that `from_pretrained` loads.

python -m training.train RECIPE_DIR [--option value ...]
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from transformers import PreTrainedTokenizerBase, set_seed

from training.batching import TokenBatchSampler
from training.checkpoints import read_json
from training.continuing import (
    ANEW,
    check_continuable,
    check_model,
    compare_options,
    find_checkpoint,
    load_tokenizers,
    run_options,
    stopped_early,
    trained_updates,
    write_options,
)
from training.data import Corpus, EncodedPairs, load_corpus
from training.encoding import PairEncoder
from training.errors import UsageError, run_command, tell
from training.files import check_folder
from training.finishing import check_averaging, run_training
from training.recipe import Recipe, parse_recipe
from training.run_facts import run_facts, write_facts
from training.score import averaged_checkpoints, bleu_metric
from training.streaming import StreamedBatches
from training.tokenizer import train_tokenizer
from training.trainer import TranslationTrainer
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


@dataclass
class TrainedModel:
    """What a run made: everything is in `folder` too, but for the corpus."""

    folder: Path
    trainer: TranslationTrainer
    corpus: Corpus
    results: dict[str, Any]


def train(recipe: Recipe) -> TrainedModel:
    """Run a recipe: tokenizers, model, training, evaluation, the folder with the result.

    A folder that holds checkpoints is continued from the last whole one; a finished run is evaluated again.

    Raises:
        UsageError: something the user gave cannot be used; before training starts.
        SavingError: a result could not be written.
        InterruptionError: a signal ended training; a checkpoint was saved.
    """
    data, arguments = recipe.data, recipe.arguments
    # What is bad of these shows before any work.
    config, generation_config = recipe.model_config(), recipe.generation_config()
    if not data.joint_vocabulary and config.share_encoder_decoder_embeddings:
        raise UsageError("`joint_vocabulary: false` needs `share_encoder_decoder_embeddings: false` in config.json")
    bleu_metric(data.target_lang, data.tokenized)  # a missing tokenizer package too
    folder = Path(arguments.output_dir)
    check_folder(folder)
    set_seed(arguments.seed)
    corpus = load_corpus(data, arguments.seed)
    check_streaming(recipe)
    if arguments.eval_strategy != "no" and not corpus.validation:
        raise UsageError(
            f"`eval_strategy: {arguments.eval_strategy.value}` needs --validation_source, --validation_target"
        )

    checkpoint, trained = find_checkpoint(arguments), trained_updates(folder)
    kept = checkpoint or (folder if trained else None)
    tokenizer, target_tokenizer = (
        load_tokenizers(kept) if kept else train_tokenizers(recipe, corpus, config.max_position_embeddings)
    )
    config = recipe.model_config(vocab_size=len(tokenizer), decoder_vocab_size=len(target_tokenizer))
    check_special_ids(config, target_tokenizer)
    positions = learned_positions(config)
    max_length = min(data.max_length, positions or data.max_length)
    train_pairs = encode_training_text(recipe, corpus, tokenizer, target_tokenizer, max_length)
    options = run_options(recipe, None if isinstance(train_pairs, StreamedBatches) else len(train_pairs))
    if kept:
        compare_options(folder, options)
        check_model(config, kept, folder)
    held_out = {"eval": corpus.validation, "test": corpus.test}
    encoded = {name: EncodedPairs(pairs, tokenizer, target_tokenizer) for name, pairs in held_out.items() if pairs}
    if positions:
        check_lengths(encoded, positions)
    used = {"train": train_pairs, **encoded}
    counts = {
        name: report_pairs(name, pairs, arguments.max_batch_tokens)
        for name, pairs in used.items()
        if isinstance(pairs, EncodedPairs)
    }

    set_seed(arguments.seed)
    model = VanillaTransformerForConditionalGeneration(config)
    model.generation_config = generation_config
    trainer = TranslationTrainer(
        model=model,
        args=arguments,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        train_dataset=train_pairs,
        eval_dataset=encoded.get("eval"),
        pairs=held_out,
        target_lang=data.target_lang,
        tokenized=data.tokenized,
    )
    epochs, updates = trainer.planned()
    if trained >= updates or stopped_early(folder):
        tell(f"{folder} holds the finished run, which is evaluated again; {ANEW.format(folder)}")
        metrics = trainer.load_trained(folder)
    elif trained and not checkpoint:
        raise UsageError(
            f"{folder} holds a run of {trained} updates and no checkpoint to continue from: {ANEW.format(folder)}"
        )
    else:
        check_averaging(arguments, epochs, updates)
        if checkpoint:
            check_continuable(checkpoint, arguments)
            tell(f"continuing from {checkpoint}; {ANEW.format(folder)}")
        if arguments.should_save:
            write_options(folder, options)
            write_facts(folder, run_facts(recipe))
        metrics = run_training(trainer, folder, checkpoint)
    if isinstance(train_pairs, StreamedBatches):
        counts["train"] = report_stream(trainer, train_pairs, folder)
    metrics["train_pairs"] = counts["train"]
    if averaged := averaged_checkpoints(folder):
        metrics["averaged_checkpoints"] = averaged
    for name, dataset in encoded.items():
        metrics.update(trainer.evaluate(dataset, metric_key_prefix=name))
    metrics["bleu_signature"], metrics["chrf_signature"] = trainer.bleu_signature, trainer.chrf_signature
    metrics["transformers_version"] = transformers.__version__
    trainer.save_metrics("all", metrics, combined=False)
    trainer.save_state()
    if trainer.is_world_process_zero():
        from training.curves import PICTURE, draw_curves  # matplotlib is not needed before

        draw_curves(trainer.state.log_history, folder / PICTURE)
    return TrainedModel(folder, trainer, corpus, metrics)


def check_streaming(recipe: Recipe) -> None:
    """A stream has no end, so nothing can be told by its epochs.

    Raises:
        UsageError: something is.
    """
    arguments = recipe.arguments
    if not recipe.data.streaming:
        return
    if arguments.max_steps <= 0:
        raise UsageError("--streaming needs --max_steps: how long an epoch is, is not known before its end")
    for name in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(arguments, name) == "epoch":
            raise UsageError(f"--streaming needs `{name}: steps`: the end of an epoch passes unseen")


def encode_training_text(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> EncodedPairs | StreamedBatches:
    """The training text as ids, all at once and kept, or as it is used."""
    data, arguments = recipe.data, recipe.arguments
    if data.streaming:
        return StreamedBatches(
            corpus.train,
            PairEncoder(tokenizer, target_tokenizer, max_length, data.max_ratio),
            arguments.max_batch_tokens,
            data.shuffle_buffer_size,
            seed=arguments.seed if arguments.data_seed is None else arguments.data_seed,
            num_replicas=arguments.world_size,
            rank=arguments.process_index,
        )
    with arguments.main_process_first(desc="encoding"):  # the others read its cache
        return EncodedPairs(
            corpus.train,
            tokenizer,
            target_tokenizer,
            max_length,
            data.max_ratio,
            num_workers=data.preprocessing_num_workers,
        )


def learned_positions(config: VanillaTransformerConfig) -> int | None:
    """Most tokens of a side that the model takes; sinusoids have no end."""
    return config.max_position_embeddings - config.position_offset if config.position_encoding == "learned" else None


def check_lengths(held_out: dict[str, EncodedPairs], positions: int) -> None:
    """Held-out pairs are not left out for their length, so each must fit the positions that are learned.

    Raises:
        UsageError: one does not.
    """
    for name, pairs in held_out.items():
        longest = np.maximum(*pairs.lengths())
        for index in np.flatnonzero(longest > positions)[:1]:
            raise UsageError(
                f"{name}: pair {pairs.rows[index] + 1} has {longest[index]} tokens on a side, the model {positions} "
                "learned positions: shorten it, or raise `max_position_embeddings` in config.json"
            )


def train_tokenizers(
    recipe: Recipe, corpus: Corpus, max_length: int
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Tokenizers of source and target, trained on the training text; one for both where the vocabulary is joint."""
    data = recipe.data
    sides = ("source", "target")
    texts = [corpus.texts(*sides)] if data.joint_vocabulary else [corpus.texts(side) for side in sides]
    try:
        trained = [
            train_tokenizer(text, data.vocab_size, data.tokenizer_algorithm, model_max_length=max_length)  # type: ignore[arg-type]
            for text in texts
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    return trained[0], trained[-1]


def check_special_ids(config: VanillaTransformerConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """A model and a tokenizer that do not mean the same by an id would train to nonsense.

    Raises:
        UsageError: the special ids differ.
    """
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(config, name) != getattr(tokenizer, name):
            raise UsageError(
                f"config.json: `{name}` is {getattr(config, name)}, but {getattr(tokenizer, name)} in the tokenizer"
            )


def report_pairs(name: str, pairs: EncodedPairs, max_batch_tokens: int) -> dict[str, int]:
    """Say how many pairs are used and how many are not, and why; the same as a table.

    Raises:
        UsageError: none is left.
    """
    left_out = pairs.counts()
    try:
        over_budget = TokenBatchSampler(*pairs.lengths(), max_batch_tokens).skipped
    except ValueError as error:
        raise UsageError(f"{name}: {error}; {_told(left_out)}") from error
    left_out[f"over {max_batch_tokens} tokens"] = over_budget
    tell(f"{name}: {len(pairs) - over_budget} pairs used, {_told(left_out)}")
    return {"used": len(pairs) - over_budget, **left_out}


def report_stream(trainer: TranslationTrainer, pairs: StreamedBatches, folder: Path) -> dict[str, int]:
    """As `report_pairs` of what a stream has given so far, in whole blocks; of a finished run, what it said then."""
    position = trainer.stream_position()
    if not position.block:
        results = read_json(folder / "all_results.json") or {}
        return dict(results.get("train_pairs", {}))
    left_out = pairs.counts(position)
    tell(f"train: {position.used} pairs used in whole blocks, {_told(left_out)}")
    return {"used": position.used, **left_out, "epoch": position.epoch}


def _told(left_out: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason} left out" for reason, count in left_out.items())


def main() -> None:
    trained = train(parse_recipe(sys.argv[1:]))
    if trained.trainer.is_world_process_zero():
        print(json.dumps(trained.results, indent=2))


if __name__ == "__main__":
    run_command(main)
