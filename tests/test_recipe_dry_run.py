"""Every recipe's model, of its real size, takes one update on real text, at the rate of its first update."""

import gc
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from transformers import PreTrainedTokenizerBase, TrainerCallback

from tests.recipes import ROOT
from tests.test_recipes import RECIPES
from training.data import EncodedPairs, Pair, load_pairs
from training.recipe import parse_recipe
from training.tokenizer import train_tokenizer
from training.trainer import TranslationTrainer
from vanilla_transformer import VanillaTransformerForConditionalGeneration

WMT = ROOT.parent / "shared" / "data" / "wmt_sample"
SENTENCES = 400
# Of a recipe all stays but what makes a run long, and what is kept or translated on the way.
SHORT_RUN = {
    "max_batch_tokens": "128",
    "gradient_accumulation_steps": "1",
    "max_steps": "1",
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": "true",
    "disable_tqdm": "true",
}


class Sample(NamedTuple):
    """Tokenizers of source and target, and the sample in their ids."""

    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    pairs: EncodedPairs


@pytest.fixture(scope="session")
def sample() -> list[Pair]:
    if not WMT.is_dir():
        pytest.skip(f"no WMT sample in {WMT}")
    return load_pairs([str(WMT / "train.en.gz")], [str(WMT / "train.de.gz")])[:SENTENCES]


@pytest.fixture(scope="session")
def joint(sample: list[Pair]) -> Sample:
    """One vocabulary for both languages."""
    tokenizer = train_tokenizer((side for pair in sample for side in pair), 1000)
    return Sample(tokenizer, tokenizer, EncodedPairs(sample, tokenizer, tokenizer, max_length=64))


@pytest.fixture(scope="session")
def separate(sample: list[Pair]) -> Sample:
    """A vocabulary for each language, of different sizes."""
    source = train_tokenizer((source for source, _ in sample), 800)
    target = train_tokenizer((target for _, target in sample), 600)
    return Sample(source, target, EncodedPairs(sample, source, target, max_length=64))


class Rates(TrainerCallback):
    """The learning rate of each update."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **kwargs: Any) -> None:
        self.rates += [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("folder", RECIPES, ids=[path.name for path in RECIPES])
def test_first_update(folder: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    options = [part for name, value in SHORT_RUN.items() for part in (f"--{name}", value)]
    recipe = parse_recipe([str(folder), "--output_dir", str(tmp_path), "--average_last", "0", *options])
    encoded: Sample = request.getfixturevalue("joint" if recipe.data.joint_vocabulary else "separate")
    sizes = {"vocab_size": len(encoded.tokenizer), "decoder_vocab_size": len(encoded.target_tokenizer)}
    config = recipe.model_config(**sizes)
    torch.manual_seed(recipe.arguments.seed)
    model = VanillaTransformerForConditionalGeneration(config)
    assert model.lm_head.weight.shape == (len(encoded.target_tokenizer), config.d_model)
    before = {name: matrix.detach().clone() for name, matrix in model.named_parameters() if matrix.dim() == 2}
    rates = Rates()
    trainer = TranslationTrainer(
        model, recipe.arguments, encoded.tokenizer, encoded.pairs, target_tokenizer=encoded.target_tokenizer
    )
    trainer.add_callback(rates)
    loss = trainer.train().training_loss
    unchanged = [name for name, matrix in model.named_parameters() if name in before and matrix.equal(before[name])]
    del trainer, model, before
    gc.collect()

    # Where nothing is known yet each of V tokens is about equally likely.
    assert 0.8 < loss / math.log(len(encoded.target_tokenizer)) < 1.25
    written = yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))
    # Paper §5.3, equation 3 at n = 1.
    warmup = written["warmup_steps"]
    expected = written["learning_rate"] * config.d_model**-0.5 * min(1, warmup**-1.5)
    assert rates.rates == pytest.approx([expected] * len(rates.rates), rel=1e-9)
    assert rates.rates
    assert unchanged == []
