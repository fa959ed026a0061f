"""What `training.yaml` and the command line say together."""

from pathlib import Path

import pytest

from tests.recipes import SMALL_TRAINING, run_module, write_recipe
from training.errors import UsageError
from training.recipe import NO_EFFECT, Recipe, parse_recipe


def parse(folder: Path, training: str = "", *options: str) -> Recipe:
    return parse_recipe([str(write_recipe(folder / "tiny", training=SMALL_TRAINING + training)), *options])


DATA_SET = "dataset: wmt/wmt14\ndataset_config: de-en\nstreaming: true\n"
FILES = "train_source: a.en\ntrain_target: a.de\nvalidation_source: v.en\nvalidation_target: v.de\n"


def test_text_files_of_the_command_line_replace_the_recipes_data_set(tmp_path: Path) -> None:
    data = parse(tmp_path, DATA_SET, "--train_source", "p.en", "q.en", "--train_target", "p.de", "q.de").data
    assert (data.dataset, data.dataset_config, data.streaming) == (None, None, True)
    assert (data.train_source, data.train_target) == (["p.en", "q.en"], ["p.de", "q.de"])


def test_held_out_files_of_the_command_line_leave_the_recipes_data_set(tmp_path: Path) -> None:
    data = parse(tmp_path, DATA_SET, "--test_source", "t.en", "--test_target", "t.de").data
    assert (data.dataset, data.dataset_config, data.test_source) == ("wmt/wmt14", "de-en", ["t.en"])


@pytest.mark.parametrize("recipe", [FILES, DATA_SET], ids=["text files", "another data set"])
def test_a_data_set_of_the_command_line_replaces_the_recipes_text(tmp_path: Path, recipe: str) -> None:
    data = parse(tmp_path, recipe, "--dataset", "builtin").data
    assert (data.dataset, data.dataset_config) == ("builtin", None)
    assert data.train_source == data.train_target == data.validation_source == data.validation_target == []


def test_the_configuration_stays_with_a_data_set_that_may_have_it(tmp_path: Path) -> None:
    """A mirror in a folder, with a sub-folder for it or flat, and another data set of the Hub."""
    (tmp_path / "mirror" / "de-en").mkdir(parents=True)
    (tmp_path / "mirror" / "de-en" / "train.jsonl").write_text('{"translation": {"de": "a", "en": "b"}}\n')
    expected = {tmp_path / "mirror": "de-en", tmp_path / "mirror" / "de-en": None, "wmt/wmt16": "de-en"}
    for number, (name, config) in enumerate(expected.items()):
        data = parse(tmp_path / str(number), DATA_SET, "--dataset", str(name)).data
        assert (data.dataset, data.dataset_config) == (str(name), config)


def test_both_on_the_command_line_stay(tmp_path: Path) -> None:
    """Which of them was meant nobody knows: loading the text refuses them."""
    data = parse(tmp_path, FILES, "--dataset", "builtin", "--train_source", "p.en").data
    assert (data.dataset, data.train_source) == ("builtin", ["p.en"])


def test_the_quickstart_is_about_its_corpus(tmp_path: Path) -> None:
    done = run_module("training.quickstart", "--train_source", "p.en", "--train_target", "p.de", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the quickstart is about the built-in corpus; other text: python -m")


def test_values_of_a_recipe_are_those_of_the_same_text_on_the_command_line(tmp_path: Path) -> None:
    recipe = parse(
        tmp_path,
        "train_source: hyp.txt\ntrain_target: [2014, b]\nmax_ratio:\nadam_epsilon: 1e-9\nseed: 0x10\n"
        "report_to: [tensorboard, wandb]\nlr_scheduler_kwargs: {num_cycles: 2}\nwarmup_steps: 7\nstreaming: 1\n",
        "--max_steps=5",
    )
    assert (recipe.data.train_source, recipe.data.train_target) == (["hyp.txt"], ["2014", "b"])
    assert (recipe.data.max_ratio, recipe.data.streaming) == (None, True)
    arguments = recipe.arguments
    assert (arguments.adam_epsilon, arguments.seed, arguments.warmup_steps, arguments.max_steps) == (1e-9, 16, 7.0, 5)
    assert arguments.report_to == ["tensorboard", "wandb"]
    assert arguments.lr_scheduler_kwargs == {"num_cycles": 2}
    assert arguments.output_dir == "runs/tiny"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_steps: 2.5", "training.yaml: argument --max_steps/--max-steps: invalid int value: '2.5'"),
        ("vocab_size: 400.5", "training.yaml: argument --vocab_size/--vocab-size: invalid int value: '400.5'"),
        ("streaming: perhaps", "training.yaml: argument --streaming: Truthy value expected: got perhaps"),
        ("vocab_size:", "training.yaml: `vocab_size` has no value: give it one, or remove the line"),
        ("validation_source:", "training.yaml: `validation_source` has no value"),
        ("max_steps: [3]", "training.yaml: `max_steps` must be one value, got [3]"),
        ("seed: {a: 1}", "training.yaml: `seed` must be one value, got {'a': 1}"),
        ("label_smoothing_factor: 1.5", "`label_smoothing_factor` must be at least 0 and below 1, got 1.5"),
        ("learning_rate: .nan", "`learning_rate` must be at least 0, got nan"),
        ("gradient_accumulation_steps: 0", "`gradient_accumulation_steps` must be at least 1, got 0"),
        ("seed: -1", "`seed` must be at least 0 and below 4294967296, got -1"),
        ("dataloader_num_workers: -1", "`dataloader_num_workers` must be at least 0, got -1"),
        ("save_steps: 0", "`save_steps` must be above 0, got 0; `save_strategy: no` saves nothing"),
        ("max_steps: -3\nnum_train_epochs: 0", "`num_train_epochs` must be above 0, got 0"),
    ],
)
def test_values_that_cannot_be_are_named_before_anything_is_read(tmp_path: Path, line: str, message: str) -> None:
    recipe = write_recipe(tmp_path / "tiny", training=line + "\n")
    with pytest.raises(UsageError) as caught:
        parse_recipe([str(recipe)])
    assert message in str(caught.value)
    assert str(recipe / "training.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1))"),
        (b"", "not JSON (Expecting value: line 1 column 1 (char 0))"),
        (b'{"\xff": 1}', "not JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[1]", "must hold `{...}`, settings by their names"),
    ],
)
def test_a_settings_file_that_is_no_json_object(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = write_recipe(tmp_path / "tiny") / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        parse_recipe([str(path.parent)])
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_decoding_settings_that_cannot_be(tmp_path: Path) -> None:
    recipe = parse_recipe([str(write_recipe(tmp_path / "tiny", decoding={"max_new_tokens": 0}))])
    with pytest.raises(UsageError, match=r"generation_config\.json: `max_new_tokens` must be greater than 0"):
        recipe.generation_config()


@pytest.mark.parametrize("name", NO_EFFECT)
def test_an_option_without_effect_is_refused_wherever_it_stands(tmp_path: Path, name: str) -> None:
    value = "sequential" if name == "train_sampling_strategy" else "1"
    message = f"^`{name}` has no effect here: {NO_EFFECT[name]}$"
    with pytest.raises(UsageError, match=message):
        parse(tmp_path / "recipe", f"{name}: {value}\n")
    with pytest.raises(UsageError, match=message):
        parse(tmp_path / "command line", "", f"--{name}", value)


def test_an_option_without_effect_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_recipe(["--help"])
    shown = capsys.readouterr().out
    assert "--max_batch_tokens" in shown
    assert [name for name in NO_EFFECT if f"--{name} " in shown] == []


def test_a_bad_option_of_the_command_line_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^argument --max_steps/--max-steps: invalid int value: 'x'$"):
        parse(tmp_path, "", "--max_steps", "x")
    with pytest.raises(UsageError, match=r"^unrecognized arguments: --maxsteps 3$"):
        parse_recipe([str(tmp_path / "tiny"), "--maxsteps", "3"])
