"""Every folder of hub_configs/ is a recipe that loads."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig

import vanilla_transformer
from tests.recipes import ROOT
from training.recipe import RECIPE_FILES, parse_recipe

RECIPES = sorted(path.parent for path in (ROOT / "hub_configs").glob("*/config.json"))


@pytest.mark.parametrize("folder", RECIPES, ids=[path.name for path in RECIPES])
def test_recipe_loads(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(RECIPE_FILES)
    recipe = parse_recipe([str(folder)])
    assert recipe.arguments.output_dir == f"runs/{folder.name}"
    config = AutoConfig.from_pretrained(folder)
    assert isinstance(config, vanilla_transformer.VanillaTransformerConfig)
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(config)
    assert model.num_parameters() > 0
    decoding = GenerationConfig.from_pretrained(folder)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        assert getattr(decoding, name) == getattr(config, name), name
    assert decoding.max_length_margin == 50


@pytest.mark.parametrize("folder", RECIPES, ids=[path.name for path in RECIPES])
def test_every_option_has_a_comment(folder: Path) -> None:
    """A recipe is its own manual: each line that sets something says why, on it or above it."""
    lines = (folder / "training.yaml").read_text().splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if line.strip() and not line.startswith("#"):
            assert "#" in line or above.startswith("#"), line


def test_the_two_recipes_of_the_contract_are_there() -> None:
    assert {"quickstart", "multi30k-en-de-tiny"} <= {path.name for path in RECIPES}
    tiny = AutoConfig.from_pretrained(ROOT / "hub_configs" / "multi30k-en-de-tiny")
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.d_model, tiny.encoder_ffn_dim) == (4, 4, 128, 256)
    assert (tiny.decoder_ffn_dim, tiny.encoder_attention_heads, tiny.decoder_attention_heads) == (256, 4, 4)
