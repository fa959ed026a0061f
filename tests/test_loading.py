"""Loading a folder in the ways that transformers has: types, devices, shards, offloading, quantization, pickles."""

import ast
import importlib.util
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    BitsAndBytesConfig,
    HqqConfig,
    QuantoConfig,
    TorchAoConfig,
)

from tests import numpy_transformer
from tests.recipes import ROOT
from tests.tiny import SRC, TGT, pad, same, scale, tiny
from vanilla_transformer.errors import UsageError
from vanilla_transformer.model_folder import find_model

ROWS, WIDTH = 64, 16  # of the tiny model's table
TABLE = torch.from_numpy(numpy_transformer.positional_encoding(np.arange(ROWS), WIDTH))
SHARD = 20_000  # bytes of a file; the model has 55 kB


@pytest.fixture(scope="module")
def model() -> Any:
    return scale(tiny(), 3.0)


@pytest.fixture(scope="module")
def folders(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model as it may lie on a disk."""
    top = tmp_path_factory.mktemp("folders")
    model.save_pretrained(top / "float32")
    model.save_pretrained(top / "shards", max_shard_size=SHARD)
    scale(tiny(), 3.0).to(torch.bfloat16).save_pretrained(top / "bfloat16")
    model.save_pretrained(top / "pickle")
    (top / "pickle" / "model.safetensors").unlink()
    torch.save(model.state_dict(), top / "pickle" / "pytorch_model.bin")
    return {path.name: path for path in top.iterdir()}


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForSeq2SeqLM.from_pretrained(folder, **options)


@torch.no_grad()
def logits(model: Any) -> Tensor:
    return model(input_ids=SRC, decoder_input_ids=TGT).logits


def check(loaded: Any, expected: Any, dtype: torch.dtype = torch.float32) -> None:
    """One type everywhere; the table computed in full precision and rounded once; one matrix; the logits."""
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    assert loaded.config.dtype == loaded.dtype == dtype
    inner = loaded.model
    for stack in (inner.encoder, inner.decoder):
        assert stack.embed_positions.weight.dtype == dtype
        assert stack.embed_positions.weight.equal(TABLE.to(dtype))
    tied = (inner.shared, inner.encoder.embed_tokens, inner.decoder.embed_tokens, loaded.lm_head)
    assert len({module.weight.data_ptr() for module in tied}) == 1
    assert same(logits(loaded), logits(expected), 1e-6)


# Types


@pytest.mark.parametrize(
    ("kind", "asked", "dtype"),
    [
        ("float32", None, torch.float32),
        ("float32", "auto", torch.float32),
        ("float32", "float16", torch.float16),
        ("float32", "bfloat16", torch.bfloat16),
        ("float32", torch.float16, torch.float16),
        ("bfloat16", None, torch.bfloat16),
        ("bfloat16", "auto", torch.bfloat16),
        ("bfloat16", "float32", torch.float32),
        ("shards", "bfloat16", torch.bfloat16),
        ("pickle", torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)
def test_types(kind: str, asked: Any, dtype: torch.dtype, folders: dict[str, Path]) -> None:
    """`None` and "auto" mean the type that was saved; torch's default type stays what it was."""
    options = {} if asked is None else {"dtype": asked}
    expected = scale(tiny(), 3.0)
    if kind == "bfloat16":
        for parameter in expected.parameters():
            parameter.data = parameter.data.bfloat16().float()
    check(load(folders[kind], **options), expected.to(dtype), dtype)
    assert torch.get_default_dtype() == torch.float32


def test_an_unknown_type(folders: dict[str, Path]) -> None:
    with pytest.raises((AttributeError, ValueError), match="float17"):
        load(folders["float32"], dtype="float17")


# Files and devices


def test_shards(folders: dict[str, Path], model: Any) -> None:
    """The matrix of embeddings is in one of several files; the index names each parameter once."""
    files = sorted(path.name for path in folders["shards"].glob("*.safetensors"))
    assert len(files) > 1
    assert all((folders["shards"] / name).stat().st_size < 2 * SHARD for name in files)
    assert sum((folders["shards"] / name).stat().st_size for name in files) < 4 * model.num_parameters() * 1.5
    check(load(folders["shards"]), model)


@pytest.mark.parametrize("kind", ["float32", "shards", "pickle"])
@pytest.mark.parametrize(
    "options",
    [
        *({"device_map": device_map} for device_map in ("auto", "balanced", "cpu", {"": "cpu"})),
        {"device_map": {"model": "cpu", "lm_head": "cpu"}},
        {"low_cpu_mem_usage": True},  # what it asked for is what is always done
        {"use_safetensors": None},
    ],
    ids=str,
)
def test_devices(kind: str, options: dict[str, Any], folders: dict[str, Path], model: Any) -> None:
    loaded = load(folders[kind], **options)
    assert {tensor.device.type for tensor in (*loaded.parameters(), *loaded.buffers())} == {"cpu"}
    check(loaded, model)


def searched(model: Any) -> list[list[list[int]]]:
    """What both searches give."""
    ids, mask = pad([[11, 12, 13, 2], [14, 2], [15, 16, 2]])
    return [model.generate(ids, attention_mask=mask, num_beams=k, max_new_tokens=6).tolist() for k in (3, 1)]


@pytest.mark.parametrize("kind", ["float32", "shards"])
@pytest.mark.parametrize("kilobytes", [40, 30, 20, 10])
def test_a_model_that_does_not_fit(
    kilobytes: int, kind: str, folders: dict[str, Path], model: Any, tmp_path: Path
) -> None:
    """What there is no memory for stays on the disk, whole layers at a time, tied matrices together."""
    memory = {"cpu": kilobytes * 1000}
    loaded = load(folders[kind], device_map="auto", max_memory=memory, offload_folder=tmp_path)
    assert "disk" in loaded.hf_device_map.values()
    assert not any(re.search(r"layers\.\d+\.", name) for name in loaded.hf_device_map)
    assert same(logits(loaded), logits(model), 1e-6)
    assert searched(loaded) == searched(model)


@pytest.mark.parametrize("offload", ["cpu", "disk"])
def test_offloaded_after_loading(offload: str, folders: dict[str, Path], model: Any, tmp_path: Path) -> None:
    """accelerate takes every parameter away and brings it where its module is called."""
    loaded = load(folders["float32"])
    here = torch.device("cpu")
    if offload == "cpu":
        accelerate.cpu_offload(loaded, execution_device=here)
    else:
        accelerate.disk_offload(loaded, str(tmp_path), execution_device=here)
    assert {parameter.device.type for parameter in loaded.parameters()} == {"meta"}
    assert same(logits(loaded), logits(model), 1e-6)
    assert searched(loaded) == searched(model)


# Quantization by libraries that are not there


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("bitsandbytes", lambda: BitsAndBytesConfig(load_in_8bit=True)),
        ("bitsandbytes", lambda: BitsAndBytesConfig(load_in_4bit=True)),
        ("torchao", lambda: TorchAoConfig("int8_weight_only")),
        ("optimum-quanto", lambda: QuantoConfig(weights="int8")),
        ("hqq", lambda: HqqConfig()),
    ],
    ids=["8 bits", "4 bits", "torchao", "quanto", "hqq"],
)
def test_quantization_names_the_missing_package(
    package: str, make: Callable[[], Any], folders: dict[str, Path]
) -> None:
    """transformers' own words, before anything is loaded."""
    if importlib.util.find_spec(package.replace("optimum-", "")):
        pytest.skip(f"{package} is here")
    with pytest.raises((ImportError, ValueError), match=f"(?i){package}"):
        load(folders["float32"], quantization_config=make())


# Pickles, which may hold code


class Intruder:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def write_pickle(path: Path, content: Any, how: str) -> None:
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))


def test_a_pickle_of_weights(folders: dict[str, Path], model: Any) -> None:
    check(load(folders["pickle"]), model)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_pickle_is_not_run(how: str, model: Any, tmp_path: Path) -> None:
    """Neither by transformers' loading nor by the commands', which read safetensors alone."""
    folder, mark = tmp_path / "model", tmp_path / "mark"
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    write_pickle(folder / "pytorch_model.bin", model.state_dict() | {"lm_head.weight": Intruder(mark)}, how)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load(folder)
    assert not mark.exists()
    with pytest.raises(UsageError, match="the model cannot be loaded") as refusal:
        find_model(str(folder)).load()
    assert "\n" not in str(refusal.value)
    assert not mark.exists()
    if how == "pickle":  # the trap is one
        pickle.loads((folder / "pytorch_model.bin").read_bytes())
        assert mark.exists()


RUNS_CODE = ("pickle.load", "pickle.loads", "yaml.load", "yaml.unsafe_load", "joblib.load", "eval", "exec")


def unsafe_reads(source: str) -> list[str]:
    """The calls in Python code that could run what a file holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            whole = options.get("weights_only", "False" if name == "torch.load" else "True") != "True"
            if name in RUNS_CODE or whole or options.get("allow_pickle", "False") != "False":
                found.append(name)
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("torch.load(path, weights_only=True)", []),
        ("torch.load(path)", ["torch.load"]),
        ("torch.load(path, map_location='cpu', weights_only=False)", ["torch.load"]),
        ("AutoModel.from_pretrained(path, weights_only=False)", ["AutoModel.from_pretrained"]),
        ("with open(path) as f:\n    x = pickle.load(f)", ["pickle.load"]),
        ("yaml.safe_load(text)", []),
        ("np.load(path, allow_pickle=True)", ["np.load"]),
    ],
)
def test_unsafe_reads_are_found(source: str, expected: list[str]) -> None:
    assert unsafe_reads(source) == expected


def test_no_file_is_read_unsafely() -> None:
    files = [*(ROOT / "vanilla_transformer").rglob("*.py"), *(ROOT / "training").rglob("*.py")]
    assert len(files) > 30
    found = {str(path.relative_to(ROOT)): unsafe_reads(path.read_text(encoding="utf-8")) for path in files}
    assert {name: calls for name, calls in found.items() if calls} == {}
