"""The loss: aligned labels, the ignore value, gradient accumulation and the stock trainer's label smoothing."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.trainer_pt_utils import LabelSmoother

from tests.tiny import LABELS, SRC, pad, same, scale, tiny, tokenizer

# Sixteen pairs with targets of 1 to 20 tokens, in no order of length.
PAIRS: list[dict[str, list[int]]] = [
    {
        "input_ids": [*range(4, 5 + i % 7), 2],
        "labels": [*(4 + (7 * i + j) % 46 for j in range(7 * i % 16 * 19 // 15)), 2],
    }
    for i in range(16)
]


class Oracle(nn.Module):
    """An output projection that puts +20 on the right label."""

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.labels = labels

    def forward(self, hidden_states: Tensor) -> Tensor:
        return 20.0 * F.one_hot(self.labels.clamp(min=0), 50).to(hidden_states.dtype)


def test_perfect_logits_have_no_loss() -> None:
    """Labels are aligned with the logits and not shifted again (B21)."""
    model: Any = tiny()
    labels = torch.tensor([[9, 8, 7, 2], [6, 2, -100, -100]])
    model.lm_head = Oracle(labels)
    assert model(input_ids=SRC.expand(2, -1), labels=labels).loss < 1e-6


@pytest.mark.parametrize("bias", [False, True])
def test_loss_is_cross_entropy_of_the_logits(bias: bool) -> None:
    """The loss is torch's own, over what is not -100, and a scalar (B21, B24)."""
    model = scale(tiny(final_logits_bias=bias))
    for labels in ([[9, 8, 7, 2], [6, 5, 4, 2]], [[9, 8, 7, 2], [6, 2, -100, -100]], [[-100] * 4, [6, 2, -100, 5]]):
        y = torch.tensor(labels)
        outputs = model(input_ids=SRC.expand(2, -1), labels=y)
        assert outputs.loss.shape == ()
        assert same(outputs.loss, F.cross_entropy(outputs.logits.flatten(0, 1), y.flatten()))


@pytest.mark.parametrize("columns", [1, 5])
def test_padding_columns_change_no_loss(columns: int) -> None:
    """Labels padded with -100 give the same loss and smoothed loss (B24)."""
    model = scale(tiny())
    labels, _ = pad([[9, 8, 7, 2], [6, 2]], value=-100)
    padded = F.pad(labels, (0, columns), value=-100)
    one, other = (model(input_ids=SRC.expand(2, -1), labels=y) for y in (labels, padded))
    assert same(one.loss, other.loss)
    smooth = LabelSmoother(epsilon=0.1)
    assert same(smooth(one, labels), smooth(other, padded))


def test_one_sentence_is_learnt_whole() -> None:
    """A sentence learnt by heart comes back, first and last token included (B21, B25)."""
    model = tiny().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    labels = torch.tensor([[9, 8, 7, 9, 6, 2]])
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=SRC, labels=labels).loss.backward()
        optimizer.step()
    assert model.eval().generate(SRC).tolist() == [[1, 9, 8, 7, 9, 6, 2]]


@pytest.mark.parametrize(("start", "padding"), [(1, 0), (5, 6), (0, 0)])
def test_shift_right(start: int, padding: int) -> None:
    """The start token goes first, -100 becomes padding, and the labels stay as they were (B25)."""
    model = tiny(decoder_start_token_id=start, pad_token_id=padding)
    labels = torch.tensor([[9, 8, 1, -100, -100], [-100] * 5, [7, 6, 5, 4, 2]])
    before = labels.clone()
    shifted = model.prepare_decoder_input_ids_from_labels(labels=labels)
    expected = [[start, 9, 8, 1, padding], [start, *[padding] * 4], [start, 7, 6, 5, 4]]
    assert shifted.tolist() == expected
    assert labels.equal(before)
    given = model(input_ids=SRC.expand(3, -1), decoder_input_ids=shifted, labels=labels)
    assert same(model(input_ids=SRC.expand(3, -1), labels=labels).loss, given.loss)
    assert labels.equal(before)


@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)])
def test_nothing_to_predict(count: Any) -> None:
    """Labels of -100 alone give a loss of 0 and gradients of 0, whatever the count (B24, B25)."""
    model = tiny()
    outputs = model(input_ids=SRC.expand(2, -1), labels=torch.full((2, 5), -100), num_items_in_batch=count)
    outputs.loss.backward()
    assert outputs.loss == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


def test_a_row_of_nothing_changes_no_other() -> None:
    """A row of -100 leaves loss and gradients as they are without it (B25)."""
    gradients = []
    for labels in ([[9, 8, 2]], [[9, 8, 2], [-100] * 3]):
        model = tiny()
        outputs = model(input_ids=SRC.expand(len(labels), -1), labels=torch.tensor(labels))
        outputs.loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(same(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("count", [12, torch.tensor(12), torch.tensor([12])], ids=["int", "0-d", "1-element"])
def test_count_of_items(count: int | Tensor) -> None:
    """The sum is divided by the count of all the batches that make an update; the loss is a scalar (B22)."""
    model = scale(tiny())
    plain = model(input_ids=SRC, labels=LABELS).loss
    loss = model(input_ids=SRC, labels=LABELS, num_items_in_batch=count).loss
    assert loss.shape == ()
    assert same(loss, plain * 3 / 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loss(dtype: torch.dtype) -> None:
    """The loss of half-precision logits is computed in full precision."""
    model = scale(tiny()).to(dtype)
    outputs = model(input_ids=SRC, labels=LABELS)
    assert outputs.logits.dtype == dtype
    assert outputs.loss.dtype == torch.float32
    assert same(outputs.loss, F.cross_entropy(outputs.logits.float().flatten(0, 1), LABELS.flatten()))


def test_labels_with_embeddings() -> None:
    """Embeddings of the shifted labels, given with the labels, have the loss of the labels alone (B03)."""
    model = scale(tiny())
    embeds = model.get_input_embeddings()(model.prepare_decoder_input_ids_from_labels(LABELS))
    outputs = model(input_ids=SRC, decoder_inputs_embeds=embeds, labels=LABELS)
    assert same(outputs.loss, model(input_ids=SRC, labels=LABELS).loss)


def test_tuple_output() -> None:
    """Without a dictionary the loss comes first and the logits second."""
    model = tiny()
    expected = model(input_ids=SRC, labels=LABELS)
    loss, logits, *_ = model(input_ids=SRC, labels=LABELS, return_dict=False)
    assert same(loss, expected.loss)
    assert same(logits, expected.logits)


def trainer(model: Any, folder: Path, collator: Any, **arguments: Any) -> Any:
    """transformers' own trainer for one update, in the order of the pairs."""
    settings: dict[str, Any] = {
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": False,
    }
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(str(folder), **settings | arguments),
        train_dataset=PAIRS,
        eval_dataset=PAIRS,
        data_collator=collator,
    )


def collate(model: Any) -> Any:
    return DataCollatorForSeq2Seq(tokenizer(), model=model)


def truth(model: Any, pairs: list[dict[str, list[int]]], smoothing: float) -> Tensor:
    """torch's smoothed loss of the pairs as one batch."""
    ids, mask = pad([pair["input_ids"] for pair in pairs])
    labels, _ = pad([pair["labels"] for pair in pairs], value=-100)
    logits = model(input_ids=ids, attention_mask=mask, labels=labels).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("size", "steps"), [(1, 8), (4, 2), (8, 1)])
def test_gradient_accumulation(size: int, steps: int, smoothing: float, tmp_path: Path) -> None:
    """However eight pairs are cut into batches, first loss and gradient norm are those of one batch (B22, B23)."""
    model = scale(tiny(), 2)
    loss = truth(model, PAIRS[:8], smoothing)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()
    model.zero_grad()
    stock = trainer(
        model,
        tmp_path,
        collate(model),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=steps,
        label_smoothing_factor=smoothing,
    )
    stock.train()
    logged = stock.state.log_history[0]
    assert math.isclose(logged["loss"], loss.item(), rel_tol=1e-4)
    assert math.isclose(logged["grad_norm"], norm, rel_tol=1e-4)


def test_collator_without_the_model(tmp_path: Path) -> None:
    """Without smoothing the model makes its own decoder input from the labels (B23)."""
    losses = []
    for given in (True, False):
        model = scale(tiny(), 2)
        stock = trainer(model, tmp_path, collate(model if given else None), per_device_train_batch_size=8)
        stock.train()
        losses.append(stock.state.log_history[0]["loss"])
    assert math.isclose(losses[0], truth(scale(tiny(), 2), PAIRS[:8], 0.0).item(), rel_tol=1e-4)
    assert losses[0] == losses[1]


def test_smoothing_without_decoder_input_is_refused(tmp_path: Path) -> None:
    """The trainer's smoothing takes the labels away: a missing decoder input is named, not guessed (B23)."""
    stock = trainer(tiny(), tmp_path, collate(None), label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="decoder_input_ids"):
        stock.train()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_evaluation_sees_labels(smoothing: float, tmp_path: Path) -> None:
    """Evaluation computes a loss and hands the labels to the metrics, smoothing or not (B23)."""
    model = scale(tiny(), 2)
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        return {"rows": float(len(prediction.label_ids))}

    stock = trainer(model, tmp_path, collate(model), label_smoothing_factor=smoothing, per_device_eval_batch_size=16)
    stock.compute_metrics = metrics
    scores = stock.evaluate()
    assert scores["eval_rows"] == 16
    assert math.isclose(scores["eval_loss"], truth(model, PAIRS, smoothing).item(), rel_tol=1e-4)
    labels, _ = pad([pair["labels"] for pair in PAIRS], value=-100)
    assert seen[0].label_ids.tolist() == labels.tolist()


@pytest.mark.parametrize("labels", [[[9, 8, 7, 2], [6, 5, 4, 2]], [[9, 8, 7, 2], [6, 2, -100, -100]]])
def test_trainers_smoothing_is_torchs(labels: list[list[int]]) -> None:
    """The stock smoother on these logits is torch's `label_smoothing`, with and without padding (B23, B24)."""
    model = scale(tiny())
    y = torch.tensor(labels)
    outputs: Seq2SeqLMOutput = model(
        input_ids=SRC.expand(2, -1), decoder_input_ids=model.prepare_decoder_input_ids_from_labels(y)
    )
    expected = F.cross_entropy(outputs.logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)
    assert same(LabelSmoother(epsilon=0.1)(outputs, y), expected)
