"""Every folder of hub_configs/ is a recipe that loads; those of the paper's tables say what the tables say."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig

import vanilla_transformer
from tests.parity.test_parameter_counts import FIRST_CODE_VOCABULARY
from tests.recipes import ROOT, run_module
from training.errors import UsageError
from training.recipe import RECIPE_FILES, parse_recipe
from training.table3 import BASE, BASE_RECIPE, ROWS, Row, recipe_files, write_recipes

HUB_CONFIGS = ROOT / "hub_configs"
RECIPES = sorted(path.parent for path in HUB_CONFIGS.glob("*/config.json"))
# Beams, length penalty and tokens beyond the source's length: the paper's (§6.1), and what has others of its own.
PAPER_DECODING = (4, 0.6, 50)
OTHER_DECODING = {
    "multi30k-en-de-tiny": (5, 1.0, 50),
    "parsing-wsj": (21, 0.3, 300),  # paper §6.3
    "parsing-wsj-semi": (21, 0.3, 300),
}
each_recipe = pytest.mark.parametrize("folder", RECIPES, ids=[path.name for path in RECIPES])
each_row = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


@each_recipe
def test_recipe_loads(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(RECIPE_FILES)
    recipe = parse_recipe([str(folder)])
    assert recipe.arguments.output_dir == f"runs/{folder.name}"
    config = AutoConfig.from_pretrained(folder)
    assert isinstance(config, vanilla_transformer.VanillaTransformerConfig)
    assert config.share_encoder_decoder_embeddings == recipe.data.joint_vocabulary
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(config)
    assert model.num_parameters() > 0


@each_recipe
def test_decoding(folder: Path) -> None:
    decoding = GenerationConfig.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        assert getattr(decoding, name) == getattr(config, name), name
    settings = (decoding.num_beams, decoding.length_penalty, decoding.max_length_margin)
    assert settings == OTHER_DECODING.get(folder.name, PAPER_DECODING)


@each_recipe
def test_every_option_has_a_comment(folder: Path) -> None:
    """A recipe is its own manual: each line that sets something says why, on it or above it."""
    lines = (folder / "training.yaml").read_text(encoding="utf-8").splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if line.strip() and not line.startswith("#"):
            assert "#" in line or above.startswith("#"), line


@each_recipe
def test_list_of_recipes_names_each(folder: Path) -> None:
    """One line a recipe in hub_configs/README.md, which links to it."""
    lines = (HUB_CONFIGS / "README.md").read_text(encoding="utf-8").splitlines()
    assert sum(f"[{folder.name}]({folder.name})" in line for line in lines) == 1


def test_list_of_recipes_names_no_other() -> None:
    text = (HUB_CONFIGS / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(([\w-]+)\)", text) + re.findall(r"hub_configs/([a-z][\w-]*)", text)
    assert set(named) == {path.name for path in RECIPES}


def printed_options() -> list[str]:
    """What the cards and their list say behind `training.train`, and options that stand alone, behind a recipe."""
    pages = [HUB_CONFIGS / "README.md", *(folder / "README.md" for folder in RECIPES)]
    blocks = [
        block for page in pages for block in re.findall(r"^```\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    ]
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [line.partition(" -m training.train ")[2] for line in lines if " -m training.train " in line]
    return list(
        dict.fromkeys(commands + [f"hub_configs/quickstart {line}" for line in lines if line.startswith("--")])
    )


@pytest.mark.parametrize("options", printed_options())
def test_printed_commands_can_be_read(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = parse_recipe(shlex.split(options.replace("--ddp_backend gloo", "")))  # which needs a launcher's processes
    assert recipe.folder.parent.name == "hub_configs"
    assert bool(recipe.arguments.fsdp) == ("--fsdp" in options)


@pytest.mark.parametrize("folder", [path for path in RECIPES if "wmt14" in path.name or "table3" in path.name])
def test_card_of_a_papers_recipe_says_how_to_score_its_run(folder: Path) -> None:
    """With the run's own translations and references, of the test set or, for Table 3, the development set."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    prefix = "eval" if "table3" in folder.name else "test"
    files = [f"runs/{folder.name}/{prefix}_{side}.txt" for side in ("hypotheses", "references")]
    assert re.findall(r"runs/\S+", card) == files
    language = parse_recipe([str(folder)]).data.target_lang
    assert re.search(rf"^python -m training\.score .*(\\\n.*)?--target-lang {language}\b", card, flags=re.MULTILINE)


def test_the_two_recipes_of_the_contract_are_there() -> None:
    assert {"quickstart", "multi30k-en-de-tiny"} <= {path.name for path in RECIPES}
    tiny = AutoConfig.from_pretrained(HUB_CONFIGS / "multi30k-en-de-tiny")
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.d_model, tiny.encoder_ffn_dim) == (4, 4, 128, 256)
    assert (tiny.decoder_ffn_dim, tiny.encoder_attention_heads, tiny.decoder_attention_heads) == (256, 4, 4)


def test_table_3_has_all_rows() -> None:
    """The recipes and the table hold each other together."""
    names = "A1 A2 A3 A4 B1 B2 C1 C2 C3 C4 C5 C6 C7 D1 D2 D3 D4 E"
    assert [row.name for row in ROWS] == names.split()
    assert {path.name for path in RECIPES if path.name.startswith("table3-")} == {row.folder for row in ROWS}


def test_recipes_of_table_3_are_as_written(tmp_path: Path) -> None:
    for written in write_recipes(tmp_path):
        checked_in = HUB_CONFIGS / written.name
        for name in RECIPE_FILES:
            same = (written / name).read_bytes() == (checked_in / name).read_bytes()
            assert same, f"{checked_in / name}: change training/table3.py, then run python -m training.table3"
        assert sorted(path.name for path in written.iterdir()) == sorted(RECIPE_FILES)  # no temporary file left


def test_command_writes_the_recipes_of_table_3(tmp_path: Path) -> None:
    done = run_module("training.table3", "new", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {path.name for path in (tmp_path / "new").iterdir()} == {row.folder for row in ROWS}
    assert done.stderr == "wrote 18 recipes, new/table3-a1 to new/table3-e\n"


@pytest.mark.parametrize("below", ["", "sub"])
def test_a_file_in_the_folders_place(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(UsageError, match=r"file.*: cannot be written .*: give another folder$"):
        write_recipes(tmp_path / "file" / below)
    (tmp_path / ROWS[-1].folder).write_text("text")
    with pytest.raises(UsageError, match=r"table3-e: cannot be written .*: give another folder$"):
        write_recipes(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("option", ["average_last", "save_total_limit", "label_smoothing_factor"])
def test_row_needs_what_it_changes(option: str, tmp_path: Path) -> None:
    """A base recipe without the option that a row changes would give a recipe that is not the row's."""
    shutil.copytree(BASE_RECIPE, tmp_path / "base")
    training = tmp_path / "base" / "training.yaml"
    training.write_text(training.read_text(encoding="utf-8").replace(f"\n{option}:", "\n# "), encoding="utf-8")
    row = next(row for row in ROWS if row.name == "D3")
    with pytest.raises(UsageError, match=rf"training\.yaml: no line `{option}: …`"):
        recipe_files(row, tmp_path / "base")


@each_row
def test_row_changes_what_it_says_and_nothing_else(row: Row) -> None:
    base, recipe = (parse_recipe([str(folder)]) for folder in (BASE_RECIPE, HUB_CONFIGS / row.folder))
    assert differences(base.model_config().to_dict(), recipe.model_config().to_dict()) == dict(row.config)
    assert recipe.generation_config().to_dict() == base.generation_config().to_dict()
    assert vars(recipe.data) == vars(base.data)
    unaveraged = {"output_dir": f"runs/{row.folder}", "average_last": 0, "save_total_limit": 2}
    smoothing = {name: float(value) for name, (value, _) in row.training.items() if value is not None}
    assert differences(vars(base.arguments), vars(recipe.arguments)) == unaveraged | smoothing
    assert row.config or smoothing


def differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What `other` has in place of what `base` has; without what is new in every object."""
    return {name: value for name, value in other.items() if value != base.get(name) and name != "distributed_state"}


@pytest.mark.parametrize("row", [row for row in (BASE, *ROWS) if row.millions], ids=lambda row: row.name)
def test_parameters_are_those_of_table_3(row: Row) -> None:
    """Of the recipe's folder, in millions, at the vocabulary of the first public code."""
    recipe = parse_recipe([str(BASE_RECIPE if row is BASE else HUB_CONFIGS / row.folder)])
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(recipe.model_config(vocab_size=FIRST_CODE_VOCABULARY))
    assert round(model.num_parameters() / 1e6) == row.millions


@each_row
def test_cards_and_list_have_the_numbers_of_table_3(row: Row) -> None:
    millions = "-" if row.millions is None else str(row.millions)
    numbers = [f"{row.perplexity:.2f}", f"{row.bleu:.1f}", millions]
    for path, first in ((row.folder + "/README.md", f"the paper, row {row.name}"), ("README.md", f"[{row.folder}]")):
        lines = (HUB_CONFIGS / path).read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in lines if line.startswith(f"| {first}"))
        assert [cell.strip() for cell in line.strip("|").split("|")][-3:] == numbers


@pytest.mark.parametrize("name, vocabulary", [("parsing-wsj", 16_384), ("parsing-wsj-semi", 32_768)])
def test_parsing(name: str, vocabulary: int) -> None:
    """Paper §6.3: 4 layers, d_model 1024, 16K and 32K entries; what it does not say is the base model's."""
    written = json.loads((HUB_CONFIGS / name / "config.json").read_text(encoding="utf-8"))
    recipe, base = parse_recipe([str(HUB_CONFIGS / name)]), parse_recipe([str(BASE_RECIPE)])
    config = recipe.model_config()
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (4, 4, 1024)
    assert written["vocab_size"] == recipe.data.vocab_size == vocabulary
    for field in ("encoder_ffn_dim", "decoder_ffn_dim", "encoder_attention_heads", "decoder_attention_heads"):
        assert getattr(config, field) == getattr(base.model_config(), field), field
    for field in ("max_steps", "max_batch_tokens", "label_smoothing_factor", "average_last", "adam_beta2"):
        assert getattr(recipe.arguments, field) == getattr(base.arguments, field), field
    # Trees of the longest sentences that are trained on stay within the table of positions.
    assert recipe.data.max_length + 300 < config.max_position_embeddings
