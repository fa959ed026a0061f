"""Average checkpoints of one model into a model that `from_pretrained` loads (paper §6.1).

python -m training.average OUTPUT_DIR --last 5 RUN_DIR
python -m training.average OUTPUT_DIR CHECKPOINT CHECKPOINT ...
"""

import argparse
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm

from training.checkpoints import read_json
from training.errors import UsageError, run_command
from training.files import check_folder, read_object, write_text

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer* special_tokens_map.json added_tokens.json vocab* merges.txt *.spm *.model target_tokenizer/*"
COPIED = ["config.json", "generation_config.json", "*.py", *TOKENIZER.split()]
# Left from the model before, these would be loaded although the averaged one does not have them.
REPLACED = ["generation_config.json", INDEX, "model-*-of-*.safetensors", *TOKENIZER.split()]
RESULTS = "all_results.json"


def last_checkpoints(run_dir: Path, n: int) -> list[Path]:
    """The `n` folders `checkpoint-<step>` of a run with the highest steps, oldest first.

    Raises:
        UsageError: there are fewer, or `n` is below 1.
    """
    if n < 1:
        raise UsageError(f"cannot average the last {n} checkpoints: at least 1 is needed")
    if not run_dir.is_dir():
        raise UsageError(f"no folder {run_dir}")
    steps = {path: step for path in run_dir.iterdir() if path.is_dir() and (step := _step(path)) is not None}
    if len(steps) < n:
        raise UsageError(f"{run_dir} has {len(steps)} checkpoint-<step> folders, fewer than the {n} to average")
    return sorted(steps, key=steps.__getitem__)[-n:]


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of each tensor; what is stored once for several names, as a tied matrix is, counts once.

    Sums are in float32 or wider. A mean has the dtype of its tensors or, where they differ, the narrowest that holds
    them all (float32 for float32 and bfloat16). Integer tensors are the last checkpoint's. Memory holds the averaged
    model and a few tensors more.

    Raises:
        UsageError: a checkpoint has no readable safetensors weights, or names or shapes of tensors differ.
    """
    with ExitStack() as stack:
        opened = [_open_weights(folder, stack) for folder in checkpoints]
        for folder, weights in zip(checkpoints, opened, strict=True):
            for name in sorted(opened[0].keys() | weights.keys()):
                first, shape = (_shape(found, name) for found in (opened[0], weights))
                if shape != first:
                    raise UsageError(f"`{name}` is {first} in {checkpoints[0]} but {shape} in {folder}")
        return {name: _mean(name, opened) for name in tqdm(opened[-1], "Averaging", unit=" tensors", disable=None)}


def average_checkpoints(output_dir: Path, checkpoints: Sequence[Path]) -> None:
    """Write the averaged model into a folder, which may exist, in place of the model there.

    Configs, tokenizers and code are the last checkpoint's; `averaging.json` says what was averaged. The new files are
    first written whole under other names, so that an interruption leaves the old model as it was. What the model
    there had earned goes with it: scores and translations; the training command makes them again.

    Raises:
        UsageError: as `average_weights`; or the folder is one of the checkpoints, or the last has no `config.json`.
    """
    if output_dir.resolve() in [folder.resolve() for folder in checkpoints]:
        raise UsageError(f"{output_dir} is one of the checkpoints to average: give another folder for the result")
    check_folder(output_dir)
    weights = average_weights(checkpoints)
    last = checkpoints[-1]
    config = read_object(last / "config.json")
    if config is None:
        raise UsageError(f"{last} has no config.json")
    output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".averaging-", dir=output_dir) as temporary:
        new = Path(temporary)
        for path in {path for pattern in COPIED for path in last.glob(pattern) if path.is_file()}:
            (new / path.relative_to(last)).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, new / path.relative_to(last))
        dtype = _dtype(weights)
        if config.get("dtype", dtype) != dtype:
            write_text(new / "config.json", json.dumps(config | {"dtype": dtype}, indent=2) + "\n")
        record = {"checkpoints": _names(checkpoints), "steps": [_step(folder) for folder in checkpoints]}
        write_text(new / "averaging.json", json.dumps(record, indent=2) + "\n")
        save_file(weights, new / WEIGHTS, metadata={"format": "pt"})
        files = [path.relative_to(new) for path in new.rglob("*") if path.is_file()]
        _remove_results(output_dir)
        for file in sorted(files, key=lambda file: file.name == WEIGHTS):  # the weights last
            (output_dir / file).parent.mkdir(exist_ok=True)
            os.replace(new / file, output_dir / file)
    for stale in {path for pattern in REPLACED for path in output_dir.glob(pattern) if path.is_file()}:
        if stale.relative_to(output_dir) not in files:
            stale.unlink()
    if (target := output_dir / "target_tokenizer").is_dir() and not any(target.iterdir()):
        target.rmdir()  # an empty one would be loaded


def _remove_results(folder: Path) -> None:
    """Remove what is known of the model in a folder by its translations; what is known of its training stays."""
    results = read_json(folder / RESULTS)
    if isinstance(results, dict):
        training = {name: value for name, value in results.items() if name.startswith("train_")}
        write_text(folder / RESULTS, json.dumps(training, indent=4, sort_keys=True))
    for hypotheses in folder.glob("*_hypotheses.txt"):
        hypotheses.unlink()


def _names(checkpoints: Sequence[Path]) -> list[str]:
    return [folder.resolve().name for folder in checkpoints]


def _step(checkpoint: Path) -> int | None:
    found = re.fullmatch(r"checkpoint-([0-9]+)", checkpoint.resolve().name)
    return int(found[1]) if found else None


def _open_weights(folder: Path, stack: ExitStack) -> dict[str, safe_open]:
    """For each tensor of a checkpoint the file, open, that holds it."""
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}")
    if (folder / WEIGHTS).is_file():
        paths = [folder / WEIGHTS]
    elif (folder / INDEX).is_file():
        shards = (read_object(folder / INDEX) or {}).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UsageError(f"{folder / INDEX}: has no `weight_map`: save the model anew with `save_pretrained`")
        paths = [folder / shard for shard in sorted(set(shards.values()))]
    elif any(folder.glob("pytorch_model*.bin")):
        raise UsageError(f"{folder} has weights in .bin files only: save them as safetensors with `save_pretrained`")
    else:
        raise UsageError(f"{folder} has no {WEIGHTS}; --last N averages the checkpoints inside the folder of a run")
    weights: dict[str, safe_open] = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        weights.update(dict.fromkeys(file.keys(), file))
    return weights


def _shape(weights: dict[str, safe_open], name: str) -> str:
    return f"of shape {list(weights[name].get_slice(name).get_shape())}" if name in weights else "missing"


def _mean(name: str, opened: Sequence[dict[str, safe_open]]) -> Tensor:
    last: Tensor = opened[-1][name].get_tensor(name)
    if not last.is_floating_point():
        return last
    dtype, total = last.dtype, last.to(torch.promote_types(last.dtype, torch.float32))
    for weights in opened[:-1]:
        tensor = weights[name].get_tensor(name)
        dtype, total = torch.promote_types(dtype, tensor.dtype), total + tensor
    return (total / len(opened)).to(dtype)


def _dtype(weights: dict[str, Tensor]) -> str:
    """The dtype for the config to name: `from_pretrained` casts to that."""
    dtypes = [tensor.dtype for tensor in weights.values() if tensor.is_floating_point()]
    return str(reduce(torch.promote_types, dtypes)).removeprefix("torch.")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.average",
        usage="%(prog)s [-h] OUTPUT_DIR (--last N RUN_DIR | CHECKPOINT ...)",
        description="Average checkpoints of one model into a model that from_pretrained loads.",
    )
    out_help = "folder of the result; a model there goes, with its scores and translations"
    parser.add_argument("output_dir", metavar="OUTPUT_DIR", type=Path, help=out_help)
    parser.add_argument("folders", metavar="CHECKPOINT", nargs="+", type=Path, help="folders to average, or RUN_DIR")
    last_help = "average the N checkpoint-<step> folders of RUN_DIR with the highest steps (default: those given)"
    parser.add_argument("--last", metavar="N", type=int, help=last_help)
    arguments = parser.parse_args()
    checkpoints: list[Path] = arguments.folders
    if arguments.last is not None:
        if len(checkpoints) > 1:
            raise UsageError("--last takes one RUN_DIR: give that, or checkpoints without --last")
        checkpoints = last_checkpoints(checkpoints[0], arguments.last)
    average_checkpoints(arguments.output_dir, checkpoints)
    print(f"{arguments.output_dir}: average of {len(checkpoints)} checkpoints ({', '.join(_names(checkpoints))})")


if __name__ == "__main__":
    run_command(main)
