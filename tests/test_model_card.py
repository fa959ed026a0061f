"""The card that a run's folder gives, word for word; that the Hub's client reads it; the cards of the recipes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from transformers import GenerationConfig

from tests.recipes import ROOT, write_recipe
from tests.tiny import tiny
from training.errors import UsageError
from training.finished_run import FinishedRun
from training.model_card import MARKER, model_card, recipe_text
from training.recipe import parse_recipe
from training.run_facts import device_name, run_facts, write_facts
from training.table3 import BASE_RECIPE, ROWS, recipe_files

HUB_CONFIGS = ROOT / "hub_configs"
RECIPES = sorted(path.parent for path in HUB_CONFIGS.glob("*/config.json"))

BLEU, CHRF = "nrefs:1|tok:13a|version:2.6.0", "nrefs:1|nc:6|version:2.6.0"
RECIPE_CARD = """\
---
language:
- en
---

# news-en-de

A small model for news.

## Training

```
# one machine
python -m training.train news-en-de
```

| | BLEU |
|---|---|
| the paper | 27.3 |
| this recipe | not trained yet |
"""
FILES: dict[str, Any] = {
    "training_options.json": {
        "dataset": "wmt/wmt14",
        "dataset_config": "de-en",
        "source_lang": "en",
        "target_lang": "de",
        "validation_source": ["/home/somebody/val.en.gz"],
        "tokenized": False,
        "tokenizer_algorithm": "bpe",
        "joint_vocabulary": True,
        "streaming": False,
        "max_length": 256,
        "max_batch_tokens": 3125,
        "gradient_accumulation_steps": 2,
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-9,
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "learning_rate": 1.0,
        "lr_scheduler_type": "noam",
        "warmup_steps": 4000,
        "label_smoothing_factor": 0.1,
        "bf16": True,
        "fp16": False,
        "seed": 1,
    },
    "all_results.json": {
        "train_pairs": {
            "used": 4508785,
            "with an empty side": 0,
            "longer than 256 tokens": 12,
            "over 3125 tokens": 5,
        },
        "train_runtime": 43449.6,
        "test_bleu": 27.3049,
        "test_chrf": 56.789,
        "test_perplexity": 4.5678,
        "eval_bleu": 25.8,
        "eval_chrf": 54.321,
        "eval_perplexity": 4.92,
        "bleu_signature": BLEU,
        "chrf_signature": CHRF,
    },
    "trainer_state.json": {"global_step": 100000, "max_steps": 100000, "epoch": 11.26, "log_history": []},
    "averaging.json": {"checkpoints": ["checkpoint-98500", "checkpoint-100000"], "steps": [98500, 100000]},
    "run_facts.json": {
        "recipe": "news-en-de",
        "recipe_card": RECIPE_CARD,
        "hub_dataset": "wmt/wmt14",
        "hardware": "NVIDIA H200",
        "processes": 8,
        "versions": {"torch": "2.13.0", "transformers": "5.24.0", "vanilla_transformer": "0.1.0"},
    },
}
CARD = f"""\
---
datasets:
- wmt/wmt14
language:
- en
- de
library_name: transformers
license: cc-by-4.0
metrics:
- bleu
- chrf
pipeline_tag: translation
tags:
- vanilla_transformer
- attention-is-all-you-need
model-index:
- name: news
  results:
  - task:
      type: translation
    dataset:
      name: wmt/wmt14
      type: wmt/wmt14
      config: de-en
      split: test
    metrics:
    - type: bleu
      value: 27.3
      name: BLEU
      args:
        signature: {BLEU}
    - type: chrf
      value: 56.79
      name: chrF
      args:
        signature: {CHRF}
  - task:
      type: translation
    dataset:
      name: val.en.gz
      type: text
      split: validation
    metrics:
    - type: bleu
      value: 25.8
      name: BLEU
      args:
        signature: {BLEU}
    - type: chrf
      value: 54.32
      name: chrF
      args:
        signature: {CHRF}
---

<!-- Made by `python -m training.publish`, which makes it anew. To keep your changes, remove this line. -->

# news

Translates English (`en`) into German (`de`). The Transformer of *Attention Is All You Need* (2017) with 2 + 2 \
layers, d_model 16, 2 heads and d_ff 32: 12,000 parameters. Unlike the paper's it has `norm_position: pre`.

## How to use it

With torch and transformers (5.17 or newer, below 6) and nothing else:

```python
from transformers import pipeline

translator = pipeline("translation", model="user/news", trust_remote_code=True)
for translation in translator(["A first text.", "A second text."]):
    print(translation["translation_text"])
```

`trust_remote_code=True` runs the Python files of this repository. `AutoModelForSeq2SeqLM` and `AutoTokenizer` load it
too, with the same option.

## Scores

| text | sentences | BLEU | chrF | perplexity |
|---|---|---|---|---|
| test: wmt/wmt14 | 3 | 27.30 | 56.79 | 4.57 |
| validation: val.en.gz | - | 25.80 | 54.32 | 4.92 |

BLEU and chrF by sacrebleu, of translations made as said under Decoding; perplexity is per token of the
vocabulary, end token counted. The signatures:

- BLEU: `{BLEU}`
- chrF: `{CHRF}`

Two commands in a checkout of the project give such scores. MODEL is this repository or a copy of it, SOURCES and
REFERENCES are the text, a sentence a line:

```
vanilla-transformer translate MODEL < SOURCES > hypotheses.txt
python -m training.score hypotheses.txt REFERENCES --target-lang de
```

## Limits

- One direction: English into German. Of other languages it makes nonsense, not errors.
- It translates one sentence at a time and knows nothing of the others: split paragraphs first.
- It knows its training text alone. Words and kinds of text that are rare there it translates badly.
- A translation can read well and be wrong, and nothing in the output says so: names, numbers and negations \
deserve a look.
- What is one-sided or offensive in the training text can come back in a translation. This was not examined.
- It was trained on texts of at most 256 tokens and has never seen a longer one.

## The recipe

Trained by the recipe `news-en-de`. What this run did is in the sections below; the recipe says of itself:

A small model for news.

### Training

```
# one machine
python -m training.train news-en-de
```

| | BLEU |
|---|---|
| the paper | 27.3 |

## Data

Training text: wmt/wmt14, configuration de-en.

| pairs | number |
|---|---|
| used | 4,508,785 |
| left out, with an empty side | 0 |
| left out, longer than 256 tokens | 12 |
| left out, over 3125 tokens | 5 |

## Tokenizer

Subwords of bytes by byte-pair encoding, trained on the training text: 50 entries for both sides. Text is not \
normalised, and no character is unknown.

## Training

|  |  |
|---|---|
| updates | 100,000 (11.26 epochs) |
| tokens an update | at most 50,000 a side, padding counted (3,125 × 8 processes × 2 accumulated) |
| optimizer | `adamw_torch_fused`, β 0.9 and 0.98, ε 1e-09 |
| learning rate | 1 × the paper's schedule (§5.3), warm-up 4,000 |
| label smoothing | 0.1 |
| precision | bf16, mixed |
| seed | 1 |
| dropout | 0.3 |
| weights | the average of 2 checkpoints, checkpoint-98500 to checkpoint-100000 |
| time | 12 h 4 min |
| hardware | NVIDIA H200, 8 of it |
| versions | torch 2.13.0, transformers 5.24.0, vanilla_transformer 0.1.0 |

![Loss, learning rate and BLEU over the updates](curves.png)

## Decoding

Beam search with 4 beams. Of two translations that one is better whose log-probability divided by ((5 + L) / 6)^0.6 \
is higher; L is its length in tokens, end token counted. A translation has at most 50 tokens more than its source. \
`generation_config.json` has these settings; an argument of a call goes over them.

## Citation

```bibtex
@inproceedings{{vaswani2017attention,
  title = {{Attention Is All You Need}},
  author = {{Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and \
Gomez, Aidan N. and Kaiser, {{\\L}}ukasz and Polosukhin, Illia}},
  booktitle = {{Advances in Neural Information Processing Systems}},
  volume = {{30}},
  year = {{2017}}
}}

@software{{vanilla_transformer,
  title = {{vanilla\\_transformer: the Transformer of Attention Is All You Need as a Hugging Face model}},
  version = {{0.1.0}}
}}
```
"""


def write_run(folder: Path, files: dict[str, Any] | None = None, **model: Any) -> Path:
    """A model, changed by `model`, and the JSON files of a run."""
    changes: dict[str, Any] = {"norm_position": "pre", "dropout": 0.3}
    made = tiny(**changes | model)
    made.generation_config = GenerationConfig(
        num_beams=4, length_penalty=0.6, length_penalty_kind="gnmt", max_length_margin=50
    )
    made.save_pretrained(folder)
    for name, content in (FILES if files is None else files).items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def changed(name: str, **values: Any) -> dict[str, Any]:
    """The run's files, values of one changed."""
    return {**FILES, name: FILES[name] | values}


def card_of(folder: Path, **options: Any) -> str:
    return model_card(FinishedRun.read(folder), "user/news", **options)


def test_card_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "test_hypotheses.txt").write_text("eins\n\nzwei\u2028drei\n", encoding="utf-8")
    (tmp_path / "curves.png").touch()
    assert card_of(tmp_path, licence="cc-by-4.0") == CARD


def test_the_client_reads_what_was_written(tmp_path: Path) -> None:
    card = card_of(write_run(tmp_path), licence="cc-by-4.0")
    read = ModelCard(card)
    assert str(read) == card
    assert read.data.get("license") == "cc-by-4.0"
    results = read.data.get("eval_results")
    found = [(result.dataset_split, result.metric_type, result.metric_value) for result in results]
    expected = [
        ("test", "bleu", 27.3),
        ("test", "chrf", 56.79),
        ("validation", "bleu", 25.8),
        ("validation", "chrf", 54.32),
    ]
    assert found == expected
    assert [result.metric_args for result in results] == [{"signature": BLEU}, {"signature": CHRF}] * 2


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """Of a folder with a model alone, as `training.average` may leave it."""
    card = card_of(write_run(tmp_path, {}))
    assert re.findall(r"^## (.*)$", card, flags=re.MULTILINE) == [
        *("How to use it", "Limits", "Training", "Decoding", "Citation"),
    ]
    assert ModelCard(card).data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["vanilla_transformer", "attention-is-all-you-need"],
    }
    assert f"{MARKER}\n\n# news\n\nThe Transformer of" in card
    assert "|  |  |\n|---|---|\n| dropout | 0.3 |\n\n## Decoding" in card
    assert "- No licence is named, so none is given.\n" in card
    assert "None" not in card


OPTIONS, RESULTS, STATE, FACTS = "training_options.json", "all_results.json", "trainer_state.json", "run_facts.json"


@pytest.mark.parametrize(
    "name, values, line",
    [
        (OPTIONS, {"dataset": None, "train_source": ["/home/somebody/a.en", "b.en.gz"], "dataset_config": None},
         "Training text: a.en, b.en.gz."),
        (OPTIONS, {"streaming": True}, "Training text: wmt/wmt14, configuration de-en, read as a stream."),
        (OPTIONS, {"tokenized": True},
         "python -m training.score hypotheses.txt REFERENCES --target-lang de --tokenized"),
        (OPTIONS, {"tokenized": True},
         "The training text was tokens with spaces between them. A text must be prepared in the same way, and a "
         "translation is such tokens too."),
        (OPTIONS, {"joint_vocabulary": False, "tokenizer_algorithm": "unigram"},
         "Subwords of bytes by a unigram language model, trained on the training text: 50 entries for the source, 40 "
         "for the target. Text is not normalised, and no character is unknown."),
        (OPTIONS, {"weight_decay": 0.01, "max_grad_norm": 25.0, "adam_epsilon": 1e-8},
         "| optimizer | `adamw_torch_fused`, β 0.9 and 0.98, ε 1e-08, weight decay 0.01, gradients clipped to 25 |"),
        (OPTIONS, {"lr_scheduler_type": "cosine", "learning_rate": 5e-4},
         "| learning rate | 0.0005, schedule `cosine`, warm-up 4,000 |"),
        (OPTIONS, {"bf16": False}, "| precision | float32 |"),
        (STATE, {"global_step": 6000}, "| updates | 6,000 (11.26 epochs), ended by early stopping |"),
        (RESULTS, {"train_runtime": 400.4}, "| time | 6 min 40 s |"),
        (RESULTS, {"train_runtime": 59.4}, "| time | 59 s |"),
        (RESULTS, {"train_pairs": {"used": 7, "epoch": 2}}, "| used | 7 |\n\n## Tokenizer"),
        (FACTS, {"hub_dataset": None}, "Training text: wmt14, configuration de-en."),
        (FACTS, {"processes": 1}, "| hardware | NVIDIA H200 |"),
        (FACTS, {"processes": 1},
         "| tokens an update | at most 6,250 a side, padding counted (3,125 × 1 process × 2 accumulated) |"),
        (FACTS, {"recipe_card": ""},
         "Trained by the recipe `news-en-de`. What this run did is in the sections below."),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_what_a_file_says(name: str, values: dict[str, Any], line: str, tmp_path: Path) -> None:
    separate: dict[str, Any] = {
        "decoder_vocab_size": 40,
        "tie_word_embeddings": False,
        "share_encoder_decoder_embeddings": False,
    }
    card = card_of(write_run(tmp_path, changed(name, **values), **separate))
    assert f"\n{line}\n" in card
    assert "/home" not in card


def test_run_from_before_facts_were_kept(tmp_path: Path) -> None:
    card = card_of(write_run(tmp_path, {name: content for name, content in FILES.items() if name != FACTS}))
    assert "\n| tokens an update | at most 6,250 a side and process, padding counted |\n" in card
    assert "## The recipe" not in card
    assert "| hardware" not in card


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"num_beams": 1, "max_length_margin": 5},
         "Greedy: the most probable token each time. A translation has at most 5 tokens more than its source. "),
        ({"num_beams": 6, "length_penalty": 1.5},
         "Beam search with 6 beams. Of two translations that one is better whose log-probability divided by L^1.5 is "
         "higher; L is its length in tokens, end token counted. "),
        ({"max_length_margin": 5, "no_repeat_ngram_size": 3, "coverage_penalty": 0.2, "pad_token_id": 0},
         "Greedy: the most probable token each time. A translation has at most 5 tokens more than its source. "
         "Set besides: `coverage_penalty: 0.2`, `no_repeat_ngram_size: 3`. "),
    ],
)  # fmt: skip
def test_decoding(settings: dict[str, Any], text: str, tmp_path: Path) -> None:
    GenerationConfig(**settings).save_pretrained(write_run(tmp_path))
    assert f"\n\n{text}`generation_config.json` has these settings" in card_of(tmp_path)


def test_model_unlike_the_papers(tmp_path: Path) -> None:
    card = card_of(
        write_run(tmp_path, d_k=4, position_encoding="learned", norm_position="post", encoder_attention_heads=4)
    )
    assert "4 + 2 heads" in card
    assert " Unlike the paper's it has `position_encoding: learned`, `d_k: 4`.\n" in card
    assert "\n- No text can have more than 64 tokens, on either side.\n" in card
    assert "Unlike" not in card_of(write_run(tmp_path / "paper", norm_position="post"))


def test_languages_are_codes_that_the_hub_takes(tmp_path: Path) -> None:
    files = changed("training_options.json", source_lang="pt-BR", target_lang="trees")
    card = card_of(write_run(tmp_path, files))
    assert ModelCard(card).data.get("language") == ["pt"]
    assert "\n\nTranslates pt-BR (`pt-BR`) into trees (`trees`). The Transformer" in card


def test_one_language_is_no_direction(tmp_path: Path) -> None:
    card = card_of(write_run(tmp_path, changed("training_options.json", source_lang="en", target_lang="en")))
    assert ModelCard(card).data.get("language") == ["en"]
    assert "Translates " not in card
    assert "One direction" not in card


def test_branch_is_in_the_lines_to_copy(tmp_path: Path) -> None:
    card = card_of(write_run(tmp_path), revision="v2")
    assert 'pipeline("translation", model="user/news", revision="v2", trust_remote_code=True)' in card


def test_run_without_chrf(tmp_path: Path) -> None:
    """As runs kept it before they had chrF."""
    results = {name: value for name, value in FILES["all_results.json"].items() if "chrf" not in name}
    card = card_of(write_run(tmp_path, {**FILES, "all_results.json": results}))
    assert (
        "| text | sentences | BLEU | perplexity |\n|---|---|---|---|\n| test: wmt/wmt14 | - | 27.30 | 4.57 |\n" in card
    )
    assert "\n\nBLEU by sacrebleu" in card
    assert "chrf" not in card.lower()


@pytest.mark.parametrize(
    "name, damage, error",
    [
        ("averaging.json", "{}", "has no list of `checkpoints`"),
        ("generation_config.json", "[]", "holds no JSON object"),
        ("config.json", '{"d_model": 15, "encoder_attention_heads": 2}', "config.json: "),
        ("model.safetensors", "no weights", "model.safetensors cannot be read"),
    ],
)
def test_damaged_file_is_named(name: str, damage: str, error: str, tmp_path: Path) -> None:
    (write_run(tmp_path) / name).write_text(damage)
    with pytest.raises(UsageError, match=re.escape(error)) as raised:
        card_of(tmp_path)
    assert "\n" not in str(raised.value)


def test_recipe_text_without_metadata_and_title() -> None:
    assert recipe_text("Plain words.\n") == "Plain words."
    assert recipe_text("# Title\n\n---\n\na\n\n---\n") == "---\n\na\n\n---"
    assert recipe_text("") == ""


def test_results_of_a_recipe_are_on_no_other_runs_card() -> None:
    """What its own run reached stands below a heading, or in a row, that no other card takes over."""
    card = "# A\n\nWords.\n\n| | BLEU |\n|---|---|\n| the paper | 27.3 |\n| this recipe | 26.9 |\n\n"
    assert recipe_text(card + "## Results\n\n12 minutes.\n\n### More\n\n13\n\n## Use\n\nSo.\n") == (
        "Words.\n\n| | BLEU |\n|---|---|\n| the paper | 27.3 |\n\n### Use\n\nSo."
    )
    for recipe in RECIPES:
        text = recipe_text((recipe / "README.md").read_text(encoding="utf-8"))
        assert not re.search(r"version:|\d+ min |AMD|40\.75|99\.3", text), recipe


def test_facts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path / "small")
    (recipe / "README.md").write_bytes("# Zürich\n".encode())
    facts = run_facts(parse_recipe([str(recipe), "--dataset", "wmt/wmt14", "--use_cpu", "true"]))
    threads = torch.get_num_threads()
    assert re.fullmatch(rf".+, {threads} thread{'s' * (threads > 1)}", facts.pop("hardware"))
    versions = facts.pop("versions")
    assert versions.pop("python").count(".") == 2
    assert versions == {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "vanilla_transformer": "0.1.0",
    }
    expected = {"recipe": "small", "recipe_card": "# Zürich\n", "hub_dataset": "wmt/wmt14", "processes": 1}
    assert facts == expected
    write_facts(tmp_path, facts)
    assert json.loads((tmp_path / "run_facts.json").read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize("name", ["builtin", "folder"])
def test_text_that_is_not_on_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert run_facts(parse_recipe([str(write_recipe(tmp_path / "small")), "--dataset", name]))["hub_dataset"] is None


def test_accelerators_have_their_makers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names: Callable[[torch.device], str] = {torch.device("cuda:1"): "NVIDIA H200"}.__getitem__
    monkeypatch.setattr(torch.cuda, "get_device_name", names)
    assert device_name(torch.device("cuda:1")) == "NVIDIA H200"
    assert device_name(torch.device("mps")) == "mps"


@pytest.mark.parametrize("folder", RECIPES, ids=[path.name for path in RECIPES])
def test_cards_of_the_recipes(folder: Path) -> None:
    """As they are, they are pages of the Hub, and their metadata says what their training.yaml does."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    card = ModelCard(text)
    assert str(card) == text
    options = yaml.safe_load((folder / "training.yaml").read_text(encoding="utf-8"))
    data = card.data.to_dict()
    assert data.pop("language") == list(dict.fromkeys([options["source_lang"], options["target_lang"]]))
    dataset = options.get("dataset", "builtin")
    assert data.pop("datasets", ["builtin"]) == [dataset]
    assert data.pop("tags")[:2] == ["vanilla_transformer", "attention-is-all-you-need"]
    # The text decides a licence: the project's own is that of its built-in corpus alone.
    licence = {"license": "apache-2.0"} if options.get("dataset") == "builtin" else {}
    assert data == {"library_name": "transformers", "pipeline_tag": "translation", **licence}
    assert card.text.startswith(f"\n# {folder.name}\n\n")
    command = "make quickstart" if folder.name == "quickstart" else f"training.train hub_configs/{folder.name}"
    assert re.search(rf"^.*{command}( \\)?$", card.text, flags=re.MULTILINE)


def test_rows_of_table_3_need_the_metadata_of_the_base_recipe(tmp_path: Path) -> None:
    for path in BASE_RECIPE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "README.md").write_text("# base\n")
    with pytest.raises(UsageError, match=r"README\.md: no block of metadata"):
        recipe_files(ROWS[0], tmp_path)
