"""`python -m training.train` from end to end, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes import SMALL_TRAINING, run_module, write_recipe, write_text
from training.errors import UsageError
from training.recipe import parse_recipe
from training.train import train

SOURCE = [f"the cat number {i} sleeps" for i in range(60)]
TARGET = [f"die Katze Nummer {i} schläft" for i in range(60)]


def text_options(folder: Path, source: list[str] = SOURCE, target: list[str] = TARGET) -> list[str]:
    return [
        *("--train_source", write_text(folder / "train.en", source)),
        *("--train_target", write_text(folder / "train.de", target)),
        *("--validation_source", write_text(folder / "val.en", [*SOURCE[:4], "", "a\u2028b"])),
        *("--validation_target", write_text(folder / "val.de", [*TARGET[:4], "", "c\u2028d"])),
    ]


@pytest.mark.parametrize("separate", [False, True], ids=["joint vocabulary", "one vocabulary each"])
def test_text_files_to_a_folder_that_loads(tmp_path: Path, separate: bool) -> None:
    recipe = write_recipe(tmp_path / "tiny", share_encoder_decoder_embeddings=not separate)
    options = ["--joint_vocabulary", "false"] if separate else []
    done = run_module("training.train", str(recipe), *text_options(tmp_path), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "tiny"

    results = json.loads((folder / "all_results.json").read_text())
    assert json.loads(done.stdout) == results
    for name in ("train_runtime", "train_loss", "eval_loss", "eval_perplexity", "eval_bleu", "eval_runtime"):
        assert isinstance(results[name], float), name
    assert 0 <= results["train_padding_share"] < 0.5
    assert results["train_target_tokens_per_second"] > 0
    assert results["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert "train: 60 pairs used, 0 with an empty side left out, 0 longer than 256 tokens left out" in done.stderr
    assert "eval: 5 pairs used, 1 with an empty side left out, 0 over 512 tokens left out" in done.stderr

    hypotheses = (folder / "eval_hypotheses.txt").read_bytes()
    assert hypotheses.count(b"\n") == 6
    assert hypotheses.split(b"\n")[4] == b""
    scored = run_module(
        "training.score", str(folder / "eval_hypotheses.txt"), str(tmp_path / "val.de"), "--json", cwd=tmp_path
    )
    assert json.loads(scored.stdout)["bleu"]["score"] == pytest.approx(results["eval_bleu"])

    # A fresh process without this project reads it all.
    target = "target_tokenizer" if separate else "."
    code = f"""
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
folder = {str(folder)!r}
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
target = AutoTokenizer.from_pretrained(folder + "/" + {target!r}, trust_remote_code=True)
assert "vanilla_transformer" not in sys.modules
assert (model.config.vocab_size, model.config.decoder_vocab_size) == (len(tokenizer), len(target))
assert tokenizer.model_max_length == model.config.max_position_embeddings == 128
assert (model.generation_config.num_beams, model.generation_config.max_length_margin) == (2, 5)
ids = tokenizer({SOURCE[0]!r}, return_tensors="pt")
print(target.batch_decode(model.generate(**ids), skip_special_tokens=True)[0].replace("\\n", " "))
"""
    environment = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules"), "PATH": "/usr/bin:/bin"}
    fresh = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout.removesuffix("\n") == hypotheses.decode().split("\n")[0]


def test_two_runs_give_the_same_files(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny")
    options = text_options(tmp_path)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        done = run_module("training.train", str(recipe), *options, "--output_dir", str(folder), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "tokenizer.json", "eval_hypotheses.txt", "config.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_checkpoints_evaluations_and_decoding_settings(tmp_path: Path) -> None:
    """B29: a run that saves and evaluates on the way keeps its decoding settings, in every checkpoint."""
    recipe = write_recipe(tmp_path / "tiny")
    options = ["--eval_strategy", "steps", "--eval_steps", "2", "--save_strategy", "steps", "--save_steps", "2"]
    options += ["--max_steps", "4", "--load_best_model_at_end", "--metric_for_best_model", "bleu"]
    done = run_module("training.train", str(recipe), *text_options(tmp_path), *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "tiny"
    for part in (".", "checkpoint-2", "checkpoint-4"):
        settings = json.loads((folder / part / "generation_config.json").read_text())
        assert (settings["num_beams"], settings["max_length_margin"]) == (2, 5)
        assert json.loads((folder / part / "config.json").read_text())["auto_map"].keys() == {
            "AutoConfig",
            "AutoModel",
            "AutoModelForSeq2SeqLM",
        }
        assert (folder / part / "modeling_vanilla_transformer.py").is_file()
    history = json.loads((folder / "trainer_state.json").read_text())
    assert [entry["step"] for entry in history["log_history"] if "eval_bleu" in entry] == [2, 4, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": "max_step: 3\n"}, r"training.yaml: no option `max_step`; did you mean `max_steps`?"),
        ({"training": "max_steps: [3\n"}, "training.yaml: not YAML"),
        ({"training": "- 3\n"}, "training.yaml: must hold `option: value` lines"),
        ({"training": SMALL_TRAINING + "tokenizer_algorithm: sentencepiece\n"}, "sentencepiece"),
        ({"training": SMALL_TRAINING + "joint_vocabulary: false\n"}, "share_encoder_decoder_embeddings"),
        ({"training": SMALL_TRAINING + "target_lang: ja\n"}, "pip install 'sacrebleu[ja]'"),
        ({"training": SMALL_TRAINING + "lr_scheduler_type: nomad\n"}, "nomad"),
        ({"training": "vocab_size: 7\n"}, "vocab_size"),
        ({"encoder_attention_heads": 3}, "config.json: `encoder_attention_heads`=3 does not divide `d_model`=32"),
        ({"pad_token_id": 3}, "config.json: `pad_token_id` is 3, but 0 in the tokenizer"),
    ],
)
def test_a_bad_recipe_ends_with_status_2_and_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """The line names the file and the thing, and comes before training."""
    recipe = write_recipe(tmp_path / "tiny", **change)  # type: ignore[arg-type]
    done = run_module("training.train", str(recipe), *text_options(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_bad_text_ends_with_status_2_and_one_line(tmp_path: Path) -> None:
    """B40: ten lines against nine, both named."""
    recipe = write_recipe(tmp_path / "tiny")
    done = run_module("training.train", str(recipe), *text_options(tmp_path, SOURCE[:10], TARGET[:9]), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "train.en has 10 lines but" in done.stderr
    assert "train.de has 9" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_batch_tokens", "2"], "train: none of 60 pairs fits `max_batch_tokens`=2"),
        (
            ["--max_length", "1"],
            "train: none of 0 pairs fits `max_batch_tokens`=512: raise it; 0 with an empty side left out, 60 longer",
        ),
    ],
)
def test_nothing_left_to_train_on_is_said_before_training(tmp_path: Path, options: list[str], message: str) -> None:
    done = run_module(
        "training.train", str(write_recipe(tmp_path / "tiny")), *text_options(tmp_path), *options, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {message}" in done.stderr


@pytest.mark.parametrize("name", ["file", "file/below/it", "n" * 300])
def test_an_output_folder_that_cannot_be_is_said_before_any_work(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / "file", ["text"])
    options = ["--output_dir", str(tmp_path / name), "--train_source", "not/there", "--train_target", "not/there"]
    with pytest.raises(UsageError, match=f"^{tmp_path / name}: cannot be written .*: give another folder$"):
        train(parse_recipe([str(write_recipe(tmp_path / "tiny")), *options]))


def test_an_output_folder_is_not_made_before_the_text_is_read(tmp_path: Path) -> None:
    options = ["--output_dir", str(tmp_path / "a" / "b"), "--train_source", "not/there", "--train_target", "not/there"]
    with pytest.raises(UsageError, match=r"^not/there: no such file$"):
        train(parse_recipe([str(write_recipe(tmp_path / "tiny")), *options]))
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_evaluation_without_held_out_text_is_refused(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny", training=SMALL_TRAINING + "eval_strategy: epoch\n")
    done = run_module("training.train", str(recipe), *text_options(tmp_path)[:4], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `eval_strategy: epoch` needs --validation_source, --validation_target\n"


def test_a_folder_that_is_no_recipe_is_named(tmp_path: Path) -> None:
    done = run_module("training.train", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path} is not a recipe: it lacks config.json" in done.stderr


def test_help_explains_options_with_defaults(tmp_path: Path) -> None:
    done = run_module("training.train", "--help", cwd=tmp_path)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "factor of the paper's schedule, or rate of another (default: 1.0)" in text
    assert "(default: 4096)" in text
