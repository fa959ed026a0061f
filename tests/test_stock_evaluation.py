"""transformers' own trainer evaluates with generation: the references never reach the decoder (B46)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, Seq2SeqTrainer, Seq2SeqTrainingArguments

from tests.tiny import pad, scale, tiny, tokenizer

# Targets of 3 to 40 tokens.
PAIRS: list[dict[str, list[int]]] = [
    {"input_ids": [*range(4, 6 + i), 2], "labels": [*(4 + (5 * j + i) % 40 for j in range(length - 1)), 2]}
    for i, length in enumerate((3, 12, 40, 7, 21))
]
SEARCH = {"num_beams": 3, "max_length_margin": 6}


def texts(ids: Any) -> list[list[int]]:
    """Token ids without padding, start and end."""
    return [[int(token) for token in row if token not in (-100, 0, 1, 2)] for row in ids]


def with_decoder_mask(collator: DataCollatorForSeq2Seq) -> Any:
    """A collator that hands over decoder inputs and their mask, as some do."""

    def collate(pairs: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = collator(pairs)
        if "labels" in batch:
            batch["decoder_attention_mask"] = batch["labels"].ne(-100).long()
        return batch

    return collate


@pytest.fixture
def model() -> Any:
    made = scale(tiny(2), 3.0)
    for name, value in SEARCH.items():
        setattr(made.generation_config, name, value)
    return made


def trainer(model: Any, folder: Path, collator: Any, seen: list[Any]) -> Any:
    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        equal = [
            ours == theirs
            for ours, theirs in zip(texts(prediction.predictions), texts(prediction.label_ids), strict=True)
        ]
        return {"exact": float(np.mean(equal))}

    arguments = Seq2SeqTrainingArguments(
        str(folder), predict_with_generate=True, per_device_eval_batch_size=2, report_to="none", use_cpu=True
    )
    return Seq2SeqTrainer(
        model=model, args=arguments, eval_dataset=PAIRS, data_collator=collator, compute_metrics=metrics
    )


@pytest.mark.parametrize("given", ["nothing", "decoder inputs", "decoder inputs and mask"])
def test_hypotheses_are_those_of_generate(model: Any, tmp_path: Path, given: str) -> None:
    """Whatever the collator adds for the loss, every sentence gets what `generate` gives it alone."""
    collator: Any = DataCollatorForSeq2Seq(tokenizer(), model=None if given == "nothing" else model)
    if given == "decoder inputs and mask":
        collator = with_decoder_mask(collator)
    seen: list[Any] = []
    scores = trainer(model, tmp_path, collator, seen).evaluate()
    expected = [model.generate(torch.tensor([pair["input_ids"]]))[0].tolist() for pair in PAIRS]
    assert texts(seen[0].predictions) == texts(expected)
    labels, _ = pad([pair["labels"] for pair in PAIRS], value=-100)
    assert texts(seen[0].label_ids) == texts(labels)
    assert scores["eval_exact"] == 0.0


def test_the_models_own_limit_survives_evaluation(model: Any, tmp_path: Path) -> None:
    """The trainer writes a default of 20 tokens into the generation config; the margin goes over it (B18)."""
    source = torch.tensor([[*range(4, 34), 2]])
    before = model.generate(source)
    trainer(model, tmp_path, DataCollatorForSeq2Seq(tokenizer(), model=model), []).evaluate()
    assert model.generation_config.max_length == 20
    after = model.generate(source)
    assert after.shape[1] > 21
    assert after.equal(before)


def test_prediction_without_labels(model: Any, tmp_path: Path) -> None:
    """With a collator that makes none: `DataCollatorForSeq2Seq` makes `labels=None`, and a loss of them is wanted."""
    sources = [{"input_ids": pair["input_ids"]} for pair in PAIRS]
    made = trainer(model, tmp_path, DataCollatorWithPadding(tokenizer()), [])
    made.compute_metrics = None
    predicted = made.predict(sources).predictions
    expected = [model.generate(torch.tensor([pair["input_ids"]]))[0].tolist() for pair in PAIRS]
    assert texts(predicted) == texts(expected)
