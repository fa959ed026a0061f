"""A recipe small enough to train in a test, and the commands run as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
ON_CPU = ["--use_cpu"] if torch.accelerator.is_available() else []  # the default where there is nothing else

SMALL_MODEL = {
    "model_type": "vanilla_transformer",
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
}
SMALL_DECODING = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "num_beams": 2}
SMALL_TRAINING = "vocab_size: 400\nmax_batch_tokens: 512\nmax_steps: 3\nwarmup_steps: 10\nlogging_steps: 1\n"


def write_recipe(
    folder: Path, training: str = SMALL_TRAINING, decoding: dict[str, object] | None = None, **model: object
) -> Path:
    """A recipe folder with the small model, changed by `model`, and the lines of `training.yaml`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**SMALL_MODEL, **model}))
    (folder / "generation_config.json").write_text(json.dumps(decoding or {**SMALL_DECODING, "max_length_margin": 5}))
    (folder / "training.yaml").write_text(training)
    (folder / "README.md").write_text("# A recipe for tests\n")
    return folder


def write_text(path: Path, lines: list[str]) -> str:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return str(path)


def module_environment() -> dict[str, str]:
    """This checkout on the path and no network."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def run_module(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ...` from `cwd`, with this checkout on the path and no network."""
    command = [sys.executable, "-m", module, *arguments]
    environment = {**module_environment(), "HF_DATASETS_CACHE": str(cwd / "datasets_cache")}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
