"""The first thing to run: train a small model on the built-in corpus, translate, print BLEU. No download.

python -m training.quickstart [--option value ...]
"""

import sys
from pathlib import Path

from training.errors import UsageError, run_command, tell
from training.recipe import parse_recipe
from training.train import TrainedModel, train

RECIPE = Path(__file__).resolve().parent.parent / "hub_configs" / "quickstart"
SHOWN = 5


def report(trained: TrainedModel) -> str:
    """BLEU with its signature, some translations of unseen sentences, and how to use the folder."""
    results, test = trained.results, trained.corpus.test
    examples = [source for source, _ in test[:SHOWN]]
    lines = [
        f"BLEU {results['test_bleu']:.1f} on {len(test)} unseen sentences  {results['bleu_signature']}",
        f"trained in {results['train_runtime'] / 60:.1f} minutes",
        "",
    ]
    for source, translation in zip(examples, trained.trainer.translate(examples), strict=True):
        lines += [f"  {source}", f"  → {translation}", ""]
    folder = str(trained.folder)
    lines += [
        f"The model is in {folder}. To use it from Python:",
        "  import vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        f'  model, tokenizer = (auto.from_pretrained("{folder}") for auto in (AutoModelForSeq2SeqLM, AutoTokenizer))',
        f'  print(*vanilla_transformer.translate(model, tokenizer, ["{examples[0]}"]))',
    ]
    return "\n".join(lines)


def main() -> None:
    recipe = parse_recipe([str(RECIPE), *sys.argv[1:]])
    if recipe.data.dataset != "builtin":
        raise UsageError(f"the quickstart is about the built-in corpus; other text: python -m training.train {RECIPE}")
    tell("Training a small English-German model on the built-in corpus: some minutes on a laptop.")
    print(report(train(recipe)))


if __name__ == "__main__":
    run_command(main)
