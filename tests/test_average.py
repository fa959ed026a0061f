"""Averaged checkpoints: the values, the choice of the last, and what is left alone (B47)."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig

from tests.recipes import run_module
from tests.tiny import tiny, tokenizer
from training import average
from training.average import average_checkpoints, average_weights, last_checkpoints
from training.errors import UsageError, run_command
from vanilla_transformer import VanillaTransformerForConditionalGeneration

STATE = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin")


def save_checkpoint(
    folder: Path,
    value: float | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    max_shard_size: str = "1GB",
    **changes: Any,
) -> Path:
    """A checkpoint as the trainer leaves it, filled with one value or random."""
    model = tiny(seed, **changes)
    if value is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
    model.generation_config = GenerationConfig(num_beams=3, max_length_margin=7, pad_token_id=0, eos_token_id=2)
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer().save_pretrained(folder)
    tokenizer().save_pretrained(folder / "target_tokenizer")
    (folder / "modeling_vanilla_transformer.py").write_text(f"# {folder.name}\n")
    for name in STATE:
        (folder / name).write_text("state")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def load(folder: Path) -> VanillaTransformerForConditionalGeneration:
    return VanillaTransformerForConditionalGeneration.from_pretrained(folder)


def edit(folder: Path, name: str, tensor: Tensor) -> None:
    save_file(load_file(folder / "model.safetensors") | {name: tensor}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("half", [1000, 1100])
def test_average_of_the_last_two_of_three(tmp_path: Path, half: int) -> None:
    """B47: values, ties, dtype and files, with one of the checkpoints in bfloat16."""
    for step, value in ((900, 1.0), (1000, 2.0), (1100, 3.0)):
        dtype = torch.bfloat16 if step == half else torch.float32
        save_checkpoint(tmp_path / "run" / f"checkpoint-{step}", value, dtype)
    before = contents(tmp_path / "run")
    out = tmp_path / "out"
    average_checkpoints(out, last_checkpoints(tmp_path / "run", 2))
    assert contents(tmp_path / "run") == before

    model = load(out)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(bool((parameter == 2.5).all()) for parameter in model.parameters())
    tied = (model.model.shared, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head)
    assert len({module.weight.data_ptr() for module in tied}) == 1

    last = tmp_path / "run" / "checkpoint-1100"
    assert set(contents(out)) == set(contents(last)) - set(STATE) | {"averaging.json"}
    copied = set(contents(out)) - {"averaging.json", "model.safetensors", "config.json"}
    assert {name: contents(out)[name] for name in copied} == {name: contents(last)[name] for name in copied}
    assert {"tokenizer.json", "target_tokenizer/tokenizer.json", "modeling_vanilla_transformer.py"} <= copied
    config = json.loads((last / "config.json").read_text())
    assert json.loads((out / "config.json").read_text()) == config | {"dtype": "float32"}
    assert json.loads((out / "averaging.json").read_text()) == {
        "checkpoints": ["checkpoint-1000", "checkpoint-1100"],
        "steps": [1000, 1100],
    }
    assert (model.generation_config.num_beams, model.generation_config.max_length_margin) == (3, 7)
    assert AutoTokenizer.from_pretrained(out)("w11").input_ids == [11]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("times", [1, 2])
def test_average_of_a_checkpoint_with_itself_is_that_checkpoint(
    tmp_path: Path, dtype: torch.dtype, times: int
) -> None:
    folder = save_checkpoint(tmp_path / "checkpoint-7", dtype=dtype)
    edit(folder, "model.shared.weight", -load_file(folder / "model.safetensors")["model.shared.weight"].abs() * 0.0)
    average_checkpoints(tmp_path / "out", [folder] * times)
    before, after = contents(folder), contents(tmp_path / "out")
    for name in ("model.safetensors", "config.json"):
        assert after[name] == before[name], name


def test_sums_keep_what_bfloat16_would_lose(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path / f"checkpoint-{i}", None, torch.bfloat16, seed=i) for i in range(20)]
    files = [load_file(folder / "model.safetensors") for folder in folders]
    means = average_weights(folders)
    assert means.keys() == files[0].keys()
    for name, mean in means.items():
        exact = np.mean([file[name].double().numpy() for file in files], axis=0, dtype=np.float64)
        assert mean.dtype == torch.bfloat16
        assert torch.equal(mean, torch.from_numpy(exact).to(torch.bfloat16)), name


def test_float32_means_are_those_of_numpy(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path / str(i), seed=i) for i in range(3)]
    files = [load_file(folder / "model.safetensors") for folder in folders]
    for name, mean in average_weights(folders).items():
        exact = np.mean([file[name].double().numpy() for file in files], axis=0, dtype=np.float64)
        np.testing.assert_allclose(mean.numpy(), exact, rtol=1e-6, atol=1e-8)


def test_integer_tensors_are_the_last_ones(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path / str(i), float(i)) for i in range(2)]
    for i, folder in enumerate(folders):
        edit(folder, "updates", torch.tensor([7 + i]))
    means = average_weights(folders)
    assert torch.equal(means["updates"], torch.tensor([8]))
    assert bool((means["model.shared.weight"] == 0.5).all())


def test_last_is_by_number_not_by_text(tmp_path: Path) -> None:
    for name in ("checkpoint-9000", "checkpoint-10000", "checkpoint-900", "checkpoint-best", "old-checkpoint-99999"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-20000").write_text("a file")
    assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint-9000", "checkpoint-10000"]
    assert [path.name for path in last_checkpoints(tmp_path, 1)] == ["checkpoint-10000"]
    with pytest.raises(UsageError, match=r"has 3 checkpoint-<step> folders, fewer than the 4 to average"):
        last_checkpoints(tmp_path, 4)
    with pytest.raises(UsageError, match="at least 1"):
        last_checkpoints(tmp_path, 0)
    with pytest.raises(UsageError, match=r"no folder .*absent"):
        last_checkpoints(tmp_path / "absent", 1)


def test_checkpoints_of_different_models_are_refused(tmp_path: Path) -> None:
    first = save_checkpoint(tmp_path / "first")
    wider = save_checkpoint(tmp_path / "wider", encoder_ffn_dim=40)
    with pytest.raises(UsageError) as shapes:
        average_checkpoints(tmp_path / "out", [first, wider])
    name = "model.encoder.layers.0.fc1.bias"
    assert str(shapes.value) == f"`{name}` is of shape [32] in {first} but of shape [40] in {wider}"
    deeper = save_checkpoint(tmp_path / "deeper", decoder_layers=3)
    for pair in ([first, deeper], [deeper, first]):
        with pytest.raises(UsageError, match=r"`model.decoder.layers.2.*missing in .*first"):
            average_checkpoints(tmp_path / "out", pair)
    assert not (tmp_path / "out").exists()


def test_sharded_checkpoints(tmp_path: Path) -> None:
    sharded = save_checkpoint(tmp_path / "sharded", 1.0, max_shard_size="10KB")
    assert len(list(sharded.glob("model-*-of-*.safetensors"))) > 1
    whole = save_checkpoint(tmp_path / "whole", 4.0)
    average_checkpoints(tmp_path / "out", [whole, sharded])
    assert all(bool((parameter == 2.5).all()) for parameter in load(tmp_path / "out").parameters())
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors*")] == ["model.safetensors"]


def test_average_goes_into_the_folder_of_the_run(tmp_path: Path) -> None:
    """The model there is replaced, shards too, and nothing else is touched."""
    run = save_checkpoint(tmp_path / "run", 9.0, max_shard_size="10KB")
    for step in (1, 2):
        save_checkpoint(run / f"checkpoint-{step}", float(step))
    before = contents(run)
    average_checkpoints(run, last_checkpoints(run, 2))
    after = contents(run)
    assert all(bool((parameter == 1.5).all()) for parameter in load(run).parameters())
    kept = [name for name in before if name.startswith("checkpoint-") or name in STATE]
    assert len(kept) > 3 * len(STATE)
    assert all(after[name] == before[name] for name in kept)
    shards = {name for name in before if "/" not in name and ".safetensors" in name}
    assert set(after) == set(before) - shards | {"model.safetensors", "averaging.json"}


def test_what_the_model_before_had_earned_goes(tmp_path: Path) -> None:
    """Scores and translations of other weights would pass for those of the average; numbers of training stay true."""
    run = save_checkpoint(tmp_path / "run", 9.0)
    checkpoint = save_checkpoint(run / "checkpoint-1", 1.0)
    training = {"train_loss": 5.5, "train_pairs": {"used": 7}}
    earned = {"eval_bleu": 31.2, "test_chrf": 40.0, "bleu_signature": "tok:13a", "averaged_checkpoints": ["x"]}
    (run / "all_results.json").write_text(json.dumps(training | earned))
    for name in ("eval_hypotheses.txt", "test_hypotheses.txt", "test_references.txt", "curves.png"):
        (run / name).write_text("text\n")
    average_checkpoints(run, [checkpoint])
    assert json.loads((run / "all_results.json").read_text()) == training
    assert {path.name for path in run.glob("*.txt")} == {"test_references.txt"}
    assert (run / "curves.png").is_file()


def test_nothing_is_left_to_load_of_another_kind_of_model(tmp_path: Path) -> None:
    """A target's tokenizer or decoding settings of the model before would be used with the new one."""
    out = save_checkpoint(tmp_path / "out", 9.0)
    (out / "notes.py").write_text("# somebody's\n")
    checkpoint = save_checkpoint(tmp_path / "checkpoint-1", 1.0)
    shutil.rmtree(checkpoint / "target_tokenizer")
    (checkpoint / "generation_config.json").unlink()
    average_checkpoints(out, [checkpoint])
    expected = set(contents(checkpoint)) | {"averaging.json", "notes.py"}
    assert set(contents(out)) == expected
    assert not (out / "target_tokenizer").exists()


def test_an_interruption_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [save_checkpoint(tmp_path / f"checkpoint-{step}", float(step)) for step in (1, 2)]
    out = save_checkpoint(tmp_path / "out", 9.0)
    before = contents(out)

    def fail(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half a mod")
        raise KeyboardInterrupt

    monkeypatch.setattr(average, "save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        average_checkpoints(out, folders)
    assert contents(out) == before
    assert all(bool((parameter == 9.0).all()) for parameter in load(out).parameters())


def test_a_checkpoint_is_never_the_output(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path / f"checkpoint-{step}", float(step)) for step in (1, 2)]
    before = contents(tmp_path)
    (tmp_path / "link").symlink_to(folders[0], target_is_directory=True)
    for out in (folders[0], tmp_path / "link", tmp_path / "checkpoint-2" / ".." / "checkpoint-1"):
        with pytest.raises(UsageError, match="is one of the checkpoints to average"):
            average_checkpoints(out, folders)
    (tmp_path / "link").unlink()
    assert contents(tmp_path) == before


def test_unreadable_checkpoints_are_refused(tmp_path: Path) -> None:
    good = save_checkpoint(tmp_path / "checkpoint-1", 1.0)
    cut = save_checkpoint(tmp_path / "checkpoint-2", 1.0) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(UsageError, match=r"checkpoint-2/model.safetensors cannot be read: "):
        average_checkpoints(tmp_path / "out", [good, cut.parent])
    for damaged in ("{", "[]"):
        (good / "config.json").write_text(damaged)
        with pytest.raises(UsageError, match=r"checkpoint-1/config.json: "):
            average_checkpoints(tmp_path / "out", [good])
    (good / "config.json").unlink()
    with pytest.raises(UsageError, match=r"checkpoint-1 has no config.json"):
        average_checkpoints(tmp_path / "out", [good])
    with pytest.raises(UsageError, match="cannot be written"):
        average_checkpoints(cut, [good])
    with pytest.raises(UsageError, match=r"model.safetensors.*: cannot be written"):
        average_checkpoints(cut / "sub" / "sub", [good])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("index", "message"),
    [("{", "cannot be read as JSON"), ("[]", "holds no JSON object"), ("{}", "has no `weight_map`: save the model")],
)
def test_damaged_index_is_refused(tmp_path: Path, index: str, message: str) -> None:
    sharded = save_checkpoint(tmp_path / "sharded", 1.0, max_shard_size="10KB")
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UsageError, match=rf"sharded/model.safetensors.index.json: {message}"):
        average_checkpoints(tmp_path / "out", [sharded])
    assert not (tmp_path / "out").exists()


def test_command_averages_the_last_or_those_given(tmp_path: Path) -> None:
    for step, value in ((9000, 1.0), (10000, 2.0), (8000, 9.0)):
        save_checkpoint(tmp_path / "run" / f"checkpoint-{step}", value)
    done = run_module("training.average", "out/last", "--last", "2", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "out/last: average of 2 checkpoints (checkpoint-9000, checkpoint-10000)\n"
    assert all(bool((parameter == 1.5).all()) for parameter in load(tmp_path / "out" / "last").parameters())
    given = ("run/checkpoint-8000", "run/checkpoint-9000")
    done = run_module("training.average", "out/given", *given, cwd=tmp_path)
    assert done.stdout == "out/given: average of 2 checkpoints (checkpoint-8000, checkpoint-9000)\n"
    assert all(bool((parameter == 5.0).all()) for parameter in load(tmp_path / "out" / "given").parameters())
    done = run_module("training.average", "out", "--last", "4", "run", cwd=tmp_path)
    message = "error: run has 3 checkpoint-<step> folders, fewer than the 4 to average\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "no folder absent"),
        (["run"], "run has no model.safetensors; --last N averages the checkpoints inside the folder of a run"),
        (["--last", "0", "run"], "cannot average the last 0 checkpoints: at least 1 is needed"),
        (["--last", "1", "run", "pickled"], "--last takes one RUN_DIR: give that, or checkpoints without --last"),
        (["pickled"], "pickled has weights in .bin files only: save them as safetensors with `save_pretrained`"),
    ],
)
def test_command_ends_with_status_2_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "run" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["average", "out", *arguments])
    with pytest.raises(SystemExit) as end:
        run_command(average.main)
    assert end.value.code == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert not (tmp_path / "out").exists()
