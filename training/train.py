"""Train a recipe: text in, a folder out that `from_pretrained` loads.

python -m training.train RECIPE_DIR [--option value ...]
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase, set_seed

from training.batching import TokenBatchSampler
from training.continuing import (
    ANEW,
    check_model,
    compare_options,
    find_checkpoint,
    load_tokenizers,
    run_options,
    trained_updates,
    write_options,
)
from training.data import Corpus, EncodedPairs, load_corpus
from training.errors import UsageError, run_command, tell
from training.finishing import averaged_checkpoints, check_averaging, run_training
from training.recipe import Recipe, parse_recipe
from training.score import bleu_metric
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
    config = recipe.model_config()  # a bad model shows before any work
    if not data.joint_vocabulary and config.share_encoder_decoder_embeddings:
        raise UsageError("`joint_vocabulary: false` needs `share_encoder_decoder_embeddings: false` in config.json")
    bleu_metric(data.target_lang)  # a missing tokenizer package too
    folder = Path(arguments.output_dir)
    set_seed(arguments.seed)
    corpus = load_corpus(data, arguments.seed)
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
    with arguments.main_process_first(desc="encoding"):  # the others read its cache
        train_pairs = EncodedPairs(
            corpus.train,
            tokenizer,
            target_tokenizer,
            data.max_length,
            data.max_ratio,
            num_workers=data.preprocessing_num_workers,
        )
    options = run_options(recipe, len(train_pairs))
    if kept:
        compare_options(folder, options)
        check_model(config, kept, folder)
    held_out = {"eval": corpus.validation, "test": corpus.test}
    encoded = {name: EncodedPairs(pairs, tokenizer, target_tokenizer) for name, pairs in held_out.items() if pairs}
    for name, pairs in {"train": train_pairs, **encoded}.items():
        report_pairs(name, pairs, arguments.max_batch_tokens)

    set_seed(arguments.seed)
    model = VanillaTransformerForConditionalGeneration(config)
    model.generation_config = recipe.generation_config()
    trainer = TranslationTrainer(
        model=model,
        args=arguments,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        train_dataset=train_pairs,
        eval_dataset=encoded.get("eval"),
        pairs=held_out,
        target_lang=data.target_lang,
    )
    epochs, updates = trainer.planned()
    if trained >= updates:
        tell(f"{folder} holds the finished run, which is evaluated again; {ANEW.format(folder)}")
        metrics = trainer.load_trained(folder)
    elif trained and not checkpoint:
        raise UsageError(
            f"{folder} holds a run of {trained} updates and no checkpoint to continue from: {ANEW.format(folder)}"
        )
    else:
        check_averaging(arguments, epochs, updates)
        if checkpoint:
            tell(f"continuing from {checkpoint}; {ANEW.format(folder)}")
        if arguments.should_save:
            write_options(folder, options)
        metrics = run_training(trainer, folder, checkpoint)
    plan = TokenBatchSampler(*train_pairs.lengths(), arguments.max_batch_tokens)
    metrics["train_target_tokens_per_second"] = metrics["epoch"] * plan.target_tokens() / metrics["train_runtime"]
    metrics["train_padding_share"] = plan.padding_share()
    if averaged := averaged_checkpoints(folder):
        metrics["averaged_checkpoints"] = averaged
    for name, dataset in encoded.items():
        metrics.update(trainer.evaluate(dataset, metric_key_prefix=name))
    metrics["bleu_signature"] = trainer.bleu_signature
    metrics["transformers_version"] = transformers.__version__
    trainer.save_metrics("all", metrics, combined=False)
    trainer.save_state()
    return TrainedModel(folder, trainer, corpus, metrics)


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


def report_pairs(name: str, pairs: EncodedPairs, max_batch_tokens: int) -> None:
    """Say how many pairs are used and how many are not, and why.

    Raises:
        UsageError: none is left.
    """
    left_out = [f"{count} {reason} left out" for reason, count in pairs.counts().items()]
    try:
        over_budget = TokenBatchSampler(*pairs.lengths(), max_batch_tokens).skipped
    except ValueError as error:
        raise UsageError(f"{name}: {error}; {', '.join(left_out)}") from error
    left_out.append(f"{over_budget} over {max_batch_tokens} tokens left out")
    tell(f"{name}: {len(pairs) - over_budget} pairs used, {', '.join(left_out)}")


def main() -> None:
    trained = train(parse_recipe(sys.argv[1:]))
    if trained.trainer.is_world_process_zero():
        print(json.dumps(trained.results, indent=2))


if __name__ == "__main__":
    run_command(main)
