"""Saving, loading, the Auto classes, and the code that travels with a saved model."""

import copy
import importlib
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import vanilla_transformer
from tests.tiny import LABELS, SRC, TGT, reload, same, scale, tiny, tokenizer
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)

ROOT = Path(vanilla_transformer.__file__).parents[1]
CODE = {
    "beam_search_vanilla_transformer.py",
    "configuration_vanilla_transformer.py",
    "generation_vanilla_transformer.py",
    "greedy_search_vanilla_transformer.py",
    "incremental_decoder_vanilla_transformer.py",
    "loss_vanilla_transformer.py",
    "modeling_vanilla_transformer.py",
    "pipeline_vanilla_transformer.py",
    "stopping_vanilla_transformer.py",
    "unpadding_vanilla_transformer.py",
}
AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
}
ENCODINGS = ["sinusoidal", "sinusoidal_concat", "sinusoidal_tensor2tensor"]
CLEAN: dict[str, Any] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test in which transformers logs a warning or Python raises one."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def report(info: dict[str, Any]) -> dict[str, set[str]]:
    """The parts of a load report that say what did not fit."""
    return {name: set(info[name]) for name in CLEAN}


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=SRC, decoder_input_ids=TGT).logits


def tables(model: Any) -> list[Tensor]:
    return [buffer for _, buffer in sorted(model.named_buffers())]


def edit(folder: Path, **changes: Tensor | None) -> None:
    """Set a saved model's tensors; None removes one. Names are written with __ for dots."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


# The table of sinusoids


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("position_encoding", ENCODINGS)
@pytest.mark.usefixtures("quiet")
def test_table_after_loading(position_encoding: str, offset: int, tmp_path: Path) -> None:
    """The table is computed anew on loading, whatever the memory held before (B10)."""
    model = scale(tiny(position_encoding=position_encoding, position_offset=offset))
    model.save_pretrained(tmp_path)
    assert not any("embed_positions" in name for name in load_file(tmp_path / "model.safetensors"))
    expected = logits(model)
    assert len(tables(model)) == 2
    for round_ in range(10):
        rubbish = [torch.full_like(table, float(round_ + 1)) for table in tables(model) * 8]
        del rubbish
        for cls in (VanillaTransformerForConditionalGeneration, AutoModelForSeq2SeqLM):
            loaded, info = cls.from_pretrained(tmp_path, output_loading_info=True)
            assert report(info) == CLEAN
            assert all(one.equal(other) for one, other in zip(tables(loaded), tables(model), strict=True))
            assert same(logits(loaded), expected)


@pytest.mark.usefixtures("quiet")
def test_table_in_half_precision() -> None:
    """A table loaded in bfloat16 is the full one rounded (B10, B14)."""
    model = tiny()
    loaded = reload(model, dtype=torch.bfloat16)
    assert all(one.equal(other.bfloat16()) for one, other in zip(tables(loaded), tables(model), strict=True))
    assert same(logits(loaded), logits(model.bfloat16()))


@pytest.mark.usefixtures("quiet")
def test_table_after_copies() -> None:
    """Moving, copying and pickling keep table and answers (B10)."""
    model = scale(tiny())
    expected, before = logits(model), [table.clone() for table in tables(model)]
    for copied in (model.to("cpu"), copy.deepcopy(model), pickle.loads(pickle.dumps(model)), reload(model).to("cpu")):
        assert all(one.equal(other) for one, other in zip(tables(copied), before, strict=True))
        assert same(logits(copied), expected)


@pytest.mark.usefixtures("quiet")
def test_a_stored_table_loads_quietly(tmp_path: Path) -> None:
    """A checkpoint that holds a table of its own is loaded without a word, and its table is not used (B10)."""
    model = scale(tiny())
    model.save_pretrained(tmp_path)
    table = torch.full((64, 16), 9.0)
    edit(
        tmp_path,
        model__encoder__embed_positions__weight=table,
        model__decoder__embed_positions__weight=table.clone(),
    )
    loaded, info = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert report(info) == CLEAN
    assert same(logits(loaded), logits(model))


# Weights


def fill(model: Any) -> None:
    """A distinct constant in every parameter."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.fill_(0.5 + i / 64)


EVERY_KIND: list[dict[str, Any]] = [
    {},
    {"position_encoding": "learned", "norm_position": "pre", "final_logits_bias": True},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60, "tie_word_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "attention_bias": False},
    {"tie_word_embeddings": False},
]


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
@pytest.mark.usefixtures("quiet")
def test_every_weight_comes_back(changes: dict[str, Any], tmp_path: Path) -> None:
    """No weight is initialised again after loading, the padding's row included (B26)."""
    model = tiny(**changes)
    fill(model)
    model.save_pretrained(tmp_path)
    loaded, info = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert report(info) == CLEAN
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(tensor.equal(expected[name]) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("missing", "changes"),
    [
        ("model.encoder.layers.1.self_attn.q_proj.weight", {}),
        ("model.decoder.layers.0.fc1.bias", {}),
        ("model.decoder.layers.0.encoder_attn_layer_norm.weight", {}),
        ("model.shared.weight", {}),
        ("model.encoder.embed_tokens.weight", {"share_encoder_decoder_embeddings": False}),
        ("lm_head.weight", {"tie_word_embeddings": False}),
        ("model.encoder.embed_positions.weight", {"position_encoding": "learned"}),
        ("final_logits_bias", {"final_logits_bias": True}),
    ],
)
def test_only_a_missing_weight_is_new(missing: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """A weight the file lacks is reported and initialised as in a new model; all others are the file's (B26)."""
    model = tiny(**changes)
    fill(model)
    model.save_pretrained(tmp_path)
    edit(tmp_path, **{missing: None})
    torch.manual_seed(0)
    loaded, info = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert missing in info["missing_keys"]
    assert not info["unexpected_keys"]
    new, expected, fresh = loaded.state_dict(), model.state_dict(), tiny(seed=5, **changes).state_dict()
    shared = {name for name, tensor in new.items() if tensor.data_ptr() == new[missing].data_ptr()}
    assert set(info["missing_keys"]) <= shared
    for name, tensor in new.items():
        if name not in shared:
            assert tensor.equal(expected[name])
    found = new[missing]
    if fresh[missing].std() > 0:
        assert 0.7 < float(found.std() / fresh[missing].std()) < 1.4
        assert found.abs().max() < 2
        assert (found[0] == 0).all() == (fresh[missing][0] == 0).all()
    else:
        assert found.equal(fresh[missing])


@pytest.mark.parametrize("name", ["model.encoder.layers.0.other.weight", "model.encoder.layers.7.fc1.weight", "other"])
def test_an_extra_weight_is_reported(name: str, tmp_path: Path) -> None:
    """A weight the model lacks is reported; the others are loaded (B26)."""
    model = tiny()
    fill(model)
    model.save_pretrained(tmp_path)
    edit(tmp_path, **{name: torch.ones(3)})
    loaded, info = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert report(info) == {**CLEAN, "unexpected_keys": {name}}
    assert all(one.equal(other) for one, other in zip(loaded.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("saved", "wanted", "part"),
    [
        ({}, {"tie_word_embeddings": False}, "missing_keys"),
        ({}, {"share_encoder_decoder_embeddings": False}, "missing_keys"),
        ({"final_logits_bias": True}, {"final_logits_bias": False}, "unexpected_keys"),
        ({}, {"final_logits_bias": True}, "missing_keys"),
        ({"attention_bias": True}, {"attention_bias": False}, "unexpected_keys"),
    ],
    ids=str,
)
def test_flags_that_do_not_fit_show(saved: dict[str, Any], wanted: dict[str, Any], part: str, tmp_path: Path) -> None:
    """A checkpoint that does not fit the flags shows in the load report (B27)."""
    model = tiny(**saved)
    fill(model)
    model.save_pretrained(tmp_path)
    config = VanillaTransformerConfig.from_pretrained(tmp_path, **wanted)
    _, info = VanillaTransformerForConditionalGeneration.from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert info[part]


@pytest.mark.parametrize("flag", ["tie_word_embeddings", "share_encoder_decoder_embeddings"])
def test_separate_matrices_for_tied_flags_show(
    flag: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Separate matrices in the file of a model whose flags tie them are not dropped in silence (B27)."""
    apart: dict[str, Any] = {flag: False}
    scale(tiny(**apart)).save_pretrained(tmp_path)
    config = VanillaTransformerConfig.from_pretrained(tmp_path, **{flag: True})
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    _, info = VanillaTransformerForConditionalGeneration.from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert info["unexpected_keys"] or info["missing_keys"] or "NOT tie" in caplog.text


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
@pytest.mark.usefixtures("quiet")
def test_each_matrix_is_stored_once(changes: dict[str, Any], tmp_path: Path) -> None:
    """The file holds as many numbers as the model has parameters, and both classes read it (B27)."""
    model = scale(tiny(**changes))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == model.num_parameters()
    for cls in (AutoModel, VanillaTransformerModel):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            base = cls.from_pretrained(tmp_path)
        assert isinstance(base, VanillaTransformerModel)
        with torch.no_grad():
            states = base(input_ids=SRC, decoder_input_ids=TGT).last_hidden_state
            bias = 0 if model.final_logits_bias is None else model.final_logits_bias
            assert same(model.lm_head(states) + bias, logits(model))


@pytest.mark.usefixtures("quiet")
def test_base_model_reads_and_is_read(tmp_path: Path) -> None:
    """With all tied, the model with and without output projection read each other's files completely (B27)."""
    model = scale(tiny())
    model.save_pretrained(tmp_path / "whole")
    base, info = AutoModel.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert report(info) == CLEAN
    base.save_pretrained(tmp_path / "base")
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert report(info) == CLEAN
    assert same(logits(loaded), logits(model))


@pytest.mark.parametrize("changes", EVERY_KIND, ids=str)
@pytest.mark.usefixtures("quiet")
def test_plain_torch_checkpoint(changes: dict[str, Any], tmp_path: Path) -> None:
    """`torch.save` and `load_state_dict` work without transformers (B27)."""
    model = scale(tiny(**changes))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = tiny(seed=1, **changes)
    assert not same(logits(other), logits(model))
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert same(logits(other), logits(model))
    assert other.num_parameters() == model.num_parameters()


# The trainer's checkpoints


def test_trainer_checkpoint(tmp_path: Path) -> None:
    """Training with beam options reaches its save step; the checkpoint has code, settings and ties (B29, B30)."""
    model = tiny()
    pairs = [{"input_ids": SRC[0].tolist(), "labels": LABELS[0].tolist()}] * 4
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            str(tmp_path),
            max_steps=2,
            save_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            predict_with_generate=True,
            generation_num_beams=2,
            generation_max_length=7,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=pairs,
        eval_dataset=pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer(), model=model),
    )
    trainer.train()
    checkpoint = tmp_path / "checkpoint-2"
    assert {path.name for path in checkpoint.glob("*.py")} == CODE
    assert json.loads((checkpoint / "config.json").read_text())["auto_map"] == AUTO_MAP
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(checkpoint, output_loading_info=True)
    assert report(info) == CLEAN
    assert same(logits(loaded), logits(model.eval()))
    settings = loaded.generation_config
    assert (settings.length_penalty, settings.max_length_margin) == (0.6, 50)
    assert (settings.pad_token_id, settings.eos_token_id, settings.decoder_start_token_id) == (0, 2, 1)


# The Auto classes and the code that travels


def test_registration() -> None:
    """Importing the package registers it, and may happen twice (B30)."""
    importlib.reload(vanilla_transformer)
    config = AutoConfig.for_model("vanilla_transformer", d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32)
    assert type(config) is VanillaTransformerConfig
    assert type(AutoModel.from_config(config)) is VanillaTransformerModel
    assert type(AutoModelForSeq2SeqLM.from_config(config)) is VanillaTransformerForConditionalGeneration


def test_saved_files(tmp_path: Path) -> None:
    """The folder holds flat Python files and says which class is where (B30)."""
    for name, model in (("whole", tiny()), ("base", tiny().model)):
        model.save_pretrained(tmp_path / name)
        assert {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*.py")} == CODE
        assert json.loads((tmp_path / name / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_code_needs_only_torch_and_transformers() -> None:
    """The travelling files import torch, transformers, the standard library and each other (B30)."""
    allowed = {"torch", "transformers", ""} | set(sys.stdlib_module_names)
    for name in CODE:
        for line in (ROOT / "vanilla_transformer" / name).read_text(encoding="utf-8").splitlines():
            match line.split():
                case ["import" | "from", module, *_]:
                    assert module.split(".")[0] in allowed, line
                    if module.startswith("."):
                        assert f"{module[1:]}.py" in CODE, line


STRANGER = """
import sys
import torch
from transformers import (
    AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq,
    Seq2SeqTrainer, Seq2SeqTrainingArguments, pipeline,
)

source, target, text = sys.argv[1], sys.argv[2], eval(sys.argv[3])
try:
    import vanilla_transformer
except ImportError:
    pass
else:
    raise SystemExit("the package can be imported here")
ids = torch.tensor([[11, 12, 13, 2]])
for folder in (source, target):
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert config.d_model == 16, config
    base = AutoModel.from_pretrained(folder, trust_remote_code=True)
    assert type(base).__name__ == "VanillaTransformerModel"
    model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert model.generate(ids).tolist() == text
    assert model.generation_config.max_length_margin == 7
    table = model.model.encoder.embed_positions
    assert table.weight.equal(table.table())
    model.save_pretrained(target)

tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=True)
labels = torch.tensor([[9, 8, 2]])
loss = model(input_ids=ids, labels=labels).loss.item()
trainer = Seq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(target, max_steps=2, learning_rate=0.01, logging_steps=1, use_cpu=True),
    DataCollatorForSeq2Seq(tokenizer, model),
    train_dataset=[{"input_ids": ids[0].tolist(), "labels": labels[0].tolist()}],
    processing_class=tokenizer,
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert abs(losses[0] - loss) < 1e-3 and losses[1] < losses[0], (loss, losses)
trainer.save_model()
tuned = AutoModelForSeq2SeqLM.from_pretrained(target, trust_remote_code=True)
assert torch.allclose(tuned(input_ids=ids, labels=labels).logits, model.eval()(input_ids=ids, labels=labels).logits)
translator = pipeline("translation", model=target, trust_remote_code=True)
word = tokenizer("w11", return_tensors="pt").input_ids
expected = tokenizer.decode(tuned.generate(word)[0], skip_special_tokens=True)
assert expected and translator("w11") == [{"translation_text": expected}], expected
"""

REMOTE_FIRST = """
import sys
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

folder, text = sys.argv[1], eval(sys.argv[3])
ids = torch.tensor([[11, 12, 13, 2]])
remote = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
assert type(remote).__module__.startswith("transformers_modules")
import vanilla_transformer
local = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
assert type(local) is vanilla_transformer.VanillaTransformerForConditionalGeneration
again = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
for model in (remote, local, again):
    assert model.generate(ids).tolist() == text
    model.save_pretrained(sys.argv[2])
    assert AutoModelForSeq2SeqLM.from_pretrained(sys.argv[2], trust_remote_code=False).generate(ids).tolist() == text
"""

PACKAGE_FIRST = """
import sys
import torch
import vanilla_transformer
from transformers import AutoConfig, AutoModelForSeq2SeqLM

folder, text = sys.argv[1], eval(sys.argv[3])
ids = torch.tensor([[11, 12, 13, 2]])
for trust in (False, True, False):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=trust)
    assert model.generate(ids).tolist() == text
    model.save_pretrained(sys.argv[2])
    again = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[2], trust_remote_code=trust)
    assert again.generate(ids).tolist() == text
assert isinstance(AutoConfig.from_pretrained(folder), vanilla_transformer.VanillaTransformerConfig)
"""


@pytest.mark.parametrize(
    ("script", "has_package"),
    [(STRANGER, False), (REMOTE_FIRST, True), (PACKAGE_FIRST, True)],
    ids=["without the package", "remote code first", "package first"],
)
def test_remote_code(script: str, has_package: bool, tmp_path: Path) -> None:
    """A saved folder works where the package is not, training included, and beside it in either order (B10, B30)."""
    model = scale(tiny())
    model.generation_config.max_length_margin = 7
    model.save_pretrained(tmp_path / "saved")
    tokenizer().save_pretrained(tmp_path / "saved")
    text = model.generate(SRC).tolist()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"}
    if has_package:
        script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + script
    else:
        script = "import sys; sys.modules['vanilla_transformer'] = None\n" + script
    with tempfile.TemporaryDirectory() as elsewhere:
        result = subprocess.run(
            [sys.executable, "-I", "-c", script, str(tmp_path / "saved"), str(tmp_path / "again"), str(text)],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
        )
    assert result.returncode == 0, result.stderr


@pytest.mark.usefixtures("quiet")
def test_loading_twice_is_loading_once() -> None:
    """A loaded model saves and loads like the first, settings and special ids included (B26, B29)."""
    model = scale(tiny(pad_token_id=5, decoder_start_token_id=7))
    once = reload(model)
    twice = reload(once)
    assert same(logits(twice), logits(model))
    configs = [current.config.to_dict() for current in (once, twice)]
    assert {**configs[0], "_name_or_path": ""} == {**configs[1], "_name_or_path": ""}
    assert twice.generation_config.to_dict() == once.generation_config.to_dict()
