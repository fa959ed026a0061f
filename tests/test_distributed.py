"""Two processes (gloo, on the CPU) train as one does with the same batches in an update, and end together."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import fsdp_step
from tests.recipes import ON_CPU, ROOT, SMALL_TRAINING, module_environment, write_recipe, write_text
from tests.signal_one import SIGNALS
from tests.tiny import tiny
from training.checkpoints import checkpoints

SOURCE = [f"the cat number {i} sleeps" + " well" * (i % 9) for i in range(97)]
TARGET = [f"die Katze Nummer {i} schläft" + " gut" * (i % 7) for i in range(97)]


def command(folder: Path, processes: int, *options: str) -> list[str]:
    """The command line of a run of so many processes, its text beside the folder."""
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    argv = [sys.executable, *(launcher if processes > 1 else []), "-m", "training.train", str(folder.parent / "tiny")]
    argv += ["--output_dir", str(folder), *ON_CPU, *options]
    for side, lines in (("source", SOURCE), ("target", TARGET)):
        argv += [f"--train_{side}", write_text(folder.parent / f"train.{side}", lines)]
        argv += [f"--validation_{side}", write_text(folder.parent / f"val.{side}", lines[:11])]
    return argv


def train(folder: Path, processes: int, *options: str) -> dict[str, object]:
    """Run the command on so many processes; the results, and what each update logged."""
    environment = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command(folder, processes, *options),
        cwd=folder.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    state = json.loads((folder / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return {"results": json.loads((folder / "all_results.json").read_text()), "losses": losses, "stdout": done.stdout}


def test_two_processes_are_one_with_twice_the_batches(tmp_path: Path) -> None:
    """Losses, weights, NLL and translations agree; results are printed once."""
    write_recipe(tmp_path / "tiny", training=SMALL_TRAINING.replace("max_steps: 3", "max_steps: 6"), dropout=0.0)
    one = train(tmp_path / "one", 1, "--max_batch_tokens", "64", "--gradient_accumulation_steps", "2")
    two = train(tmp_path / "two", 2, "--max_batch_tokens", "64")
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, rtol=1e-5, atol=1e-5)
    for name in ("eval_loss", "eval_bleu"):
        assert two["results"][name] == pytest.approx(one["results"][name], rel=1e-5)  # type: ignore[index]
    hypotheses = [(tmp_path / name / "eval_hypotheses.txt").read_bytes() for name in ("one", "two")]
    assert hypotheses[0] == hypotheses[1]
    assert json.loads(str(two["stdout"])) == two["results"]


def test_uneven_last_batches_do_not_hang(tmp_path: Path) -> None:
    """An epoch whose batches do not divide by the processes ends on all of them, and the next one starts."""
    write_recipe(tmp_path / "tiny", training=SMALL_TRAINING.replace("max_steps: 3\n", ""), dropout=0.0)
    trained = train(tmp_path / "run", 2, "--max_batch_tokens", "96", "--num_train_epochs", "2")
    updates = len(trained["losses"])  # type: ignore[arg-type]
    assert updates == 2 * 6


def test_sigterm_ends_all_after_the_same_update_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Both processes save and end; the final weights are those of the run that was never ended."""
    training = SMALL_TRAINING.replace("max_steps: 3", "max_steps: 40") + "save_steps: 1\n"
    write_recipe(tmp_path / "tiny", training=training)
    train(tmp_path / "unbroken", 2)
    folder = tmp_path / "run"
    process = subprocess.Popen(command(folder, 2), env=module_environment(), stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while len(checkpoints(folder)) < 2:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    process.terminate()  # the launcher, which sends it on
    error = process.communicate(timeout=120)[1]
    last = checkpoints(folder)[-1]
    assert f"SIGTERM: saved {last}; the same command continues from there\n" in error
    assert last.name != "checkpoint-40"
    train(folder, 2)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "unbroken" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("ending", SIGNALS)
def test_a_signal_to_one_process_ends_all(ending: str, tmp_path: Path) -> None:
    """After the last update, and before it: all save, and the first says so."""
    write_recipe(tmp_path / "tiny")
    argv = command(tmp_path / "run", 2, "--save_strategy", "no")
    place = argv.index("training.train")
    argv[place : place + 1] = ["tests.signal_one", ending]
    done = subprocess.run(argv, env=module_environment(), capture_output=True, text=True, timeout=300, check=False)
    assert f"SIGTERM: {ending}" in done.stderr
    assert "exitcode  : 143" in done.stderr


@pytest.mark.parametrize(
    ("main", "processes", "expected"),
    [
        ("print('done')", "2", (0, "done\nleft\n", "")),
        ("raise UsageError('no')", "2", (2, "left\n", "error: no\n")),
        ("print('done')", "1", (0, "done\nafter\nleft\n", "")),
    ],
)
def test_one_of_several_processes_ends_with_its_command(main: str, processes: str, expected: tuple[Any, ...]) -> None:
    """With what is registered for the exit, but without the interpreter's end, which gloo's threads can disturb."""
    code = [
        "import atexit",
        "from training.errors import UsageError, run_command",
        "atexit.register(print, 'left')",
        f"def main(): {main}",
        "run_command(main)",
        "print('after')",
    ]
    environment = {**module_environment(), "WORLD_SIZE": processes}
    argv = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_a_sharded_model_takes_the_same_step() -> None:
    """FSDP: loss and gradient norm of a model whose parameters are cut over two processes are those of one."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    environment = {**module_environment(), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "fsdp_step.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loss, norm = map(float, done.stdout.split())
    model = tiny().train()
    assert loss == pytest.approx(fsdp_step.step(model, fsdp_step.whole_batch()), rel=1e-5)
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    assert norm == pytest.approx(torch.cat(gradients).norm().item(), rel=1e-5)
