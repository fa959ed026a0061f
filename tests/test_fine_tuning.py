"""A loaded folder is trained further by transformers' own trainer, all of it or through peft's adapters."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import (
    AutoPeftModelForSeq2SeqLM,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    TaskType,
    get_peft_model,
)
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from tests import numpy_transformer
from tests.tiny import LABELS, SRC, TGT, pad, reload, same, scale, tiny
from training.tokenizer import train_tokenizer
from vanilla_transformer import VanillaTransformerForConditionalGeneration, generation_vanilla_transformer

PAIRS = {
    "en": ["Where is the pencil?", "It is here.", "The bed is new.", "Here is the new pencil."],
    "de": ["Wo ist der Stift?", "Er ist hier.", "Das Bett ist neu.", "Hier ist der neue Stift."],
}
ATTENTIONS = [
    *(f"model.encoder.layers.{i}.self_attn" for i in (0, 1)),
    *(f"model.decoder.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn", "encoder_attn")),
]
LAYERS = [f"model.{stack}.layers.{i}" for stack in ("encoder", "decoder") for i in (0, 1)]
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer([*PAIRS["en"], *PAIRS["de"]], 300)
    model = scale(tiny(vocab_size=len(tokenizer)), 3.0)
    model.generation_config.max_length_margin = 7
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    return AutoModelForSeq2SeqLM.from_pretrained(folder)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=SRC, decoder_input_ids=TGT).logits


def trainer_for(model: Any, folder: Path, output: Path, **options: Any) -> Seq2SeqTrainer:
    """As in the README."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = Dataset.from_dict(PAIRS).map(
        lambda pair: tokenizer(pair["en"], text_target=pair["de"]), remove_columns=["en", "de"]
    )
    settings: dict[str, Any] = {"learning_rate": 0.01, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    return Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(str(output), save_strategy="no", use_cpu=True, **settings | options),
        DataCollatorForSeq2Seq(tokenizer, model),
        train_dataset=tokens,
        processing_class=tokenizer,
    )


def losses(trainer: Seq2SeqTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_stock_trainer(folder: Path, tmp_path: Path) -> None:
    """The first loss is the cross-entropy that the paper's formulas give in float64; what is saved is the model."""
    model = load(folder)
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    trainer = trainer_for(model, folder, tmp_path, max_steps=8)
    trainer.train()
    trainer.save_model()

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token_id == 2
    source, mask = pad([tokenizer(text)["input_ids"] for text in PAIRS["en"]])
    labels, _ = pad([tokenizer(text_target=text)["input_ids"] for text in PAIRS["de"]], value=-100)
    target = np.where(labels.numpy() == -100, 0, labels.numpy())
    start = np.ones((len(target), 1), dtype=np.int64)
    scores = numpy_transformer.logits(
        weights,
        source.numpy(),
        np.concatenate((start, target[:, :-1]), axis=1),
        heads=2,
        source_mask=mask.numpy().astype(np.bool_),
    )
    found = losses(trainer)
    assert found[0] == pytest.approx(numpy_transformer.cross_entropy(scores, labels.numpy()), rel=1e-4)
    assert found[-1] < found[0] * 0.7

    code = {path.name for path in folder.glob("*.py")}
    assert code
    assert {path.name for path in tmp_path.glob("*.py")} == code
    tuned = load(tmp_path)
    assert same(logits(tuned), logits(model))
    assert not same(logits(tuned), logits(load(folder)), 0.1)
    settings = [vars(current.generation_config) for current in (tuned, load(folder))]
    for name in ("num_beams", "length_penalty", "length_penalty_kind", "early_stopping", "max_length_margin"):
        assert settings[0][name] == settings[1][name], name
    assert settings[0]["max_length_margin"] == 7
    assert AutoTokenizer.from_pretrained(tmp_path)(PAIRS["en"])["input_ids"] == tokenizer(PAIRS["en"])["input_ids"]


# Adapters


def lora(model: Any, **options: Any) -> Any:
    """The model with untrained adapters, which give what it gives."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"task_type": TaskType.SEQ_2_SEQ_LM, "r": 4, "target_modules": ["q_proj", "v_proj"]}
    return get_peft_model(model, LoraConfig(**settings | options))


def fill(model: Any) -> Any:
    """The model, the weights that an adapter trains drawn at random."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def adapted(model: nn.Module) -> set[str]:
    """Names of the layers that have an adapter, as in a model without."""
    names = (name for name, module in model.named_modules() if hasattr(module, "lora_A"))
    return {name.removeprefix("base_model.model.") for name in names}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of this package's own searches, as they come."""
    seen: list[str] = []
    for name in ("beam_search", "greedy_search"):
        search = getattr(generation_vanilla_transformer, name)

        def spy(*args: Any, search: Any = search, name: str = name, **kwargs: Any) -> Any:
            seen.append(name)
            return search(*args, **kwargs)

        monkeypatch.setattr(generation_vanilla_transformer, name, spy)
    return seen


def beams_of(model: Any, **options: Any) -> Any:
    ids, mask = pad([[11, 12, 13, 2], [14, 2], [15, 16, 2]])
    return model.generate(
        input_ids=ids, attention_mask=mask, num_beams=3, return_dict_in_generate=True, max_new_tokens=6, **options
    )


def check_decoding(model: Any) -> Any:
    """Both searches with adapters give what transformers' loops give; the beam search's result."""
    ours, theirs = beams_of(model), beams_of(model, output_scores=True)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert same(ours.sequences_scores, theirs.sequences_scores)
    ids = {"input_ids": SRC, "num_beams": 1, "max_new_tokens": 6}
    loop = model.generate(**ids, return_dict_in_generate=True, output_scores=True).sequences
    assert model.generate(**ids).tolist() == loop.tolist()
    return ours


def test_lora(folder: Path, tmp_path: Path, searches: list[str]) -> None:
    """Trained by the stock trainer, saved alone, loaded onto the folder, merged into a model like any other."""
    model = lora(load(folder))
    assert adapted(model) == {f"{attention}.{name}" for attention in ATTENTIONS for name in ("q_proj", "v_proj")}
    assert same(logits(model), logits(load(folder)))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer = trainer_for(model, folder, tmp_path / "adapter", max_steps=8, learning_rate=0.05)
    trainer.train()
    trainer.save_model()
    assert losses(trainer)[-1] < losses(trainer)[0] * 0.9
    changed = {name for name, parameter in model.named_parameters() if not parameter.equal(before[name])}
    assert changed == {name for name in before if ".lora_" in name}
    assert len(changed) == 2 * 2 * len(ATTENTIONS)

    expected = logits(model)
    assert not same(expected, logits(load(folder)), 0.1)
    assert not list((tmp_path / "adapter").glob("model*"))
    for loaded in (
        PeftModel.from_pretrained(load(folder), tmp_path / "adapter"),
        AutoPeftModelForSeq2SeqLM.from_pretrained(tmp_path / "adapter"),
        load(tmp_path / "adapter"),
    ):
        assert same(logits(loaded), expected)

    text = check_decoding(model)
    assert searches == ["beam_search", "greedy_search"]
    with model.disable_adapter():
        plain = beams_of(model)
    unadapted = beams_of(load(folder))
    assert plain.sequences.equal(unadapted.sequences)
    assert same(plain.sequences_scores, unadapted.sequences_scores)
    assert not same(plain.sequences_scores, text.sequences_scores, 1e-3)

    merged = model.merge_and_unload()
    assert type(merged) is VanillaTransformerForConditionalGeneration
    for current in (merged, reload(merged)):
        assert same(logits(current), expected)
        assert beams_of(current).sequences.equal(text.sequences)
        assert current.state_dict().keys() == load(folder).state_dict().keys()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"target_modules": "all-linear"},
            {f"{attention}.{name}" for attention in ATTENTIONS for name in PROJECTIONS}
            | {f"{layer}.{name}" for layer in LAYERS for name in ("fc1", "fc2")},
        ),
        ({"target_modules": ["fc1", "fc2"]}, {f"{layer}.{name}" for layer in LAYERS for name in ("fc1", "fc2")}),
        (
            {"target_modules": r".*decoder.*encoder_attn\.(k_proj|out_proj)"},
            {f"model.decoder.layers.{i}.encoder_attn.{name}" for i in (0, 1) for name in ("k_proj", "out_proj")},
        ),
        (
            {"target_modules": ["v_proj"], "layers_to_transform": [1]},
            {f"{attention}.v_proj" for attention in ATTENTIONS if ".1." in attention},
        ),
    ],
    ids=lambda value: str(value.get("target_modules")) if isinstance(value, dict) else "",
)
def test_names_of_adapted_layers(options: dict[str, Any], expected: set[str], searches: list[str]) -> None:
    """The layers are called what BART's are called, and each kind of them decodes and merges."""
    model = fill(lora(scale(tiny(), 3.0), **options))
    assert adapted(model) == expected
    scores = logits(model)
    check_decoding(model)
    assert searches == ["beam_search", "greedy_search"]
    assert same(logits(model.merge_and_unload()), scores, 1e-4)


@pytest.mark.parametrize(
    "options", [{"modules_to_save": ["lm_head"]}, {"target_modules": ["q_proj", "lm_head"]}], ids=str
)
def test_output_projection(options: dict[str, Any], tmp_path: Path, searches: list[str]) -> None:
    """The untied output projection, trained whole or through an adapter, counts in both ways of the loss."""
    base = scale(tiny(tie_word_embeddings=False), 3.0)
    model = fill(lora(copy.deepcopy(base), **options))
    assert not same(logits(model), logits(base), 0.1)
    computed = [model(input_ids=SRC, labels=LABELS, skip_logits=skip).loss.detach() for skip in (False, True)]
    assert same(*computed)
    check_decoding(model)
    assert searches == ["beam_search", "greedy_search"]
    model.save_pretrained(tmp_path)
    assert same(logits(PeftModel.from_pretrained(copy.deepcopy(base), tmp_path)), logits(model))
    scores, merged = logits(model), model.merge_and_unload()
    for current in (merged, reload(merged)):
        assert same(logits(current), scores, 1e-4)


def test_new_words(folder: Path, tmp_path: Path) -> None:
    """Two words are added to tokenizer and model: their rows of the one matrix learn, for all that is tied to it."""
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    size = len(tokenizer)
    assert tokenizer.add_tokens(["<de>", "<fr>"]) == 2
    model.resize_token_embeddings(len(tokenizer))
    base = copy.deepcopy(model)
    adapter = lora(model, trainable_token_indices=[size, size + 1])
    before = adapter.get_input_embeddings().weight.detach().clone()
    source = tokenizer("<fr> It is here.", return_tensors="pt")
    assert source["input_ids"][0, 0] == size + 1
    labels = tokenizer(text_target="<de>", return_tensors="pt")["input_ids"]
    optimizer = torch.optim.Adam((weight for weight in adapter.parameters() if weight.requires_grad), 0.05)
    for _ in range(6):
        optimizer.zero_grad()
        adapter(**source, labels=labels).loss.backward()
        optimizer.step()
    adapter.save_pretrained(tmp_path)
    expected = logits(adapter)
    assert same(logits(PeftModel.from_pretrained(base, tmp_path)), expected)
    merged = adapter.merge_and_unload()
    assert same(logits(merged), expected, 1e-4)
    matrix = merged.get_input_embeddings().weight
    assert (matrix - before).abs().amax(dim=1).gt(1e-3).nonzero()[:, 0].tolist() == [size, size + 1]
    assert merged.lm_head.weight is merged.model.decoder.embed_tokens.weight
    assert merged.lm_head.weight.equal(matrix)


@pytest.mark.parametrize("reentrant", [True, False])
def test_adapters_with_gradient_checkpointing(reentrant: bool) -> None:
    """Adapters in frozen layers get their gradients when the layers are computed twice."""
    found = []
    for checkpointed in (False, True):
        model = tiny().double()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        adapter = fill(lora(model)).train()
        adapter(input_ids=SRC, labels=LABELS).loss.backward()
        found.append({name: weight.grad for name, weight in adapter.named_parameters() if weight.requires_grad})
    plain, other = found
    assert plain.keys() == other.keys()
    for name, gradient in plain.items():
        assert gradient.abs().max() > 1e-9, name
        torch.testing.assert_close(other[name], gradient, rtol=1e-6, atol=1e-12)


def test_one_batch_for_several_adapters(folder: Path) -> None:
    """Each sentence with an adapter of its own, or with none: as if it were alone."""
    model = fill(lora(load(folder)))
    ids, mask = pad([[11, 12, 13, 2], [14, 2]])
    call = {"num_beams": 3, "max_new_tokens": 6}
    mixed = model.generate(input_ids=ids, attention_mask=mask, adapter_names=["__base__", "default"], **call)
    alone = load(folder).generate(ids[:1], **call), model.generate(input_ids=ids[1:, :2], **call)
    for row, expected in zip(mixed.tolist(), alone, strict=True):
        assert [token for token in row if token] == [token for token in expected[0].tolist() if token]
    assert not same(logits(model), logits(load(folder)), 0.1)


def test_adapters_that_prepare_the_inputs_of_a_step(searches: list[str]) -> None:
    """Prefix tuning puts keys and values before the target where transformers' loop asks for a step's inputs: so that
    loop decodes. Without the adapter the searches are the package's own again."""
    base = scale(tiny(), 3.0)
    model = fill(get_peft_model(base, PrefixTuningConfig(task_type=TaskType.SEQ_2_SEQ_LM, num_virtual_tokens=3)))
    ours, theirs = beams_of(model), beams_of(model, output_scores=True)
    assert searches == []
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    beams_of(base)
    assert searches == ["beam_search"]
