"""The loss: aligned labels, the ignore value, label smoothing, chunks without logits, gradient accumulation."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.trainer_pt_utils import LabelSmoother

from tests.tiny import LABELS, SRC, pad, same, scale, tiny, tokenizer
from vanilla_transformer import loss_vanilla_transformer
from vanilla_transformer.loss_vanilla_transformer import label_smoothed_cross_entropy, projected_cross_entropy

# Sixteen pairs with targets of 1 to 20 tokens, in no order of length.
PAIRS: list[dict[str, list[int]]] = [
    {
        "input_ids": [*range(4, 5 + i % 7), 2],
        "labels": [*(4 + (7 * i + j) % 46 for j in range(7 * i % 16 * 19 // 15)), 2],
    }
    for i in range(16)
]


# Logits that fit in memory at a time, for a vocabulary of 11: one row, two rows, four rows, all.
CHUNKS = [1, 22, 44, 1 << 22]


def projection(bias: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor | None]:
    """States of 3 x 7 positions and a projection to 11 entries, with gradients wanted of all."""
    torch.manual_seed(1)
    states, weight, offset = (torch.randn(shape, dtype=dtype) for shape in ((3, 7, 6), (11, 6), (1, 11)))
    return states.requires_grad_(), weight.requires_grad_(), offset.requires_grad_() if bias else None


def labels_of(ignored: str) -> Tensor:
    """Labels of 3 x 7 positions, of which "none", "some" or "all" are -100."""
    labels = torch.randint(0, 11, (3, 7), generator=torch.Generator().manual_seed(2))
    if ignored == "some":
        labels[0, 5:], labels[1], labels[2, 0] = -100, -100, -100
    return torch.full_like(labels, -100) if ignored == "all" else labels


def expected_loss(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, epsilon: float) -> Tensor:
    """torch's smoothed loss of all logits at once; 0 where there is nothing to predict."""
    logits = F.linear(states, weight, None if bias is None else bias[0])
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=epsilon)
    return total / labels.ne(-100).sum().clamp(min=1)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_smoothing_by_hand(epsilon: float) -> None:
    """(1 - epsilon) on the label and epsilon / V on every entry, the label's own included (B24)."""
    probabilities = [0.5, 0.25, 0.125, 0.125]
    logits, labels = torch.tensor([[probabilities]]).log(), torch.tensor([[1]])
    by_hand = -(1 - epsilon) * math.log(0.25) - epsilon / 4 * sum(map(math.log, probabilities))
    assert math.isclose(label_smoothed_cross_entropy(logits, labels, epsilon), by_hand, rel_tol=1e-6)
    assert math.isclose(projected_cross_entropy(logits, torch.eye(4), None, labels, epsilon), by_hand, rel_tol=1e-6)


@pytest.mark.parametrize("padded", [0, 5])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_smoothed_loss_is_that_of_torch(epsilon: float, padded: int) -> None:
    """The documented variant in value and gradient, whatever the padding (B24)."""
    logits = torch.randn(3, 7 + padded, 11, requires_grad=True)
    labels = F.pad(labels_of("some"), (0, padded), value=-100)
    loss = label_smoothed_cross_entropy(logits, labels, epsilon)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=epsilon)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits))


@pytest.mark.parametrize("elements", CHUNKS)
@pytest.mark.parametrize("ignored", ["none", "some", "all"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("bias", [False, True])
def test_chunks_are_the_whole(
    bias: bool, epsilon: float, ignored: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks, the last one partial, value and all gradients are those of all logits at once (B24, B25)."""
    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", elements)
    labels, inputs = labels_of(ignored), projection(bias)
    leaves = [leaf for leaf in inputs if leaf is not None]
    loss, expected = projected_cross_entropy(*inputs, labels, epsilon), expected_loss(*inputs, labels, epsilon)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    found = torch.autograd.grad(loss, leaves)
    torch.testing.assert_close(found, torch.autograd.grad(expected, leaves), rtol=1e-5, atol=1e-6)
    assert ignored != "all" or not any(tensor.any() for tensor in (loss, *found))


def test_few_logits_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only real positions are projected, a chunk at a time."""
    shapes: list[tuple[int, ...]] = []

    def spy(*arguments: Any, linear: Any = F.linear) -> Tensor:
        logits: Tensor = linear(*arguments)
        shapes.append(tuple(logits.shape))
        return logits

    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", 47)
    monkeypatch.setattr(F, "linear", spy)
    projected_cross_entropy(*projection(), labels_of("some"), 0.1)
    assert shapes == [(4, 11), (4, 11), (3, 11)]


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), ()], ids=str)
def test_frozen_parts(wanted: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is frozen costs no gradient; the gradients of the others stay right."""
    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", 44)
    labels, inputs = labels_of("some"), projection()
    leaves = [leaf for leaf in inputs if leaf is not None]
    expected = torch.autograd.grad(expected_loss(*inputs, labels, 0.1), leaves)
    for index, leaf in enumerate(leaves):
        leaf.requires_grad_(index in wanted)
    with FlopCounterMode(display=False) as counter:
        loss = projected_cross_entropy(*inputs, labels, 0.1)
    matrices = 1 + len({0, 1} & set(wanted))
    assert counter.get_total_flops() == matrices * 2 * 11 * 11 * 6  # 11 real positions, 11 entries, 6 dimensions
    assert loss.requires_grad == bool(wanted)
    if wanted:
        loss.backward()
    for index, leaf in enumerate(leaves):
        assert (leaf.grad is not None) == (index in wanted)
        assert leaf.grad is None or same(leaf.grad, expected[index], 1e-6)


@torch.no_grad()
def test_chunks_without_gradients() -> None:
    """Under `no_grad` the value is the same, and no gradient is computed."""
    labels, inputs = labels_of("some"), projection()
    with FlopCounterMode(display=False) as counter:
        loss = projected_cross_entropy(*inputs, labels, 0.1)
    assert counter.get_total_flops() == 2 * 11 * 11 * 6
    assert not loss.requires_grad
    assert same(loss, expected_loss(*inputs, labels, 0.1), 1e-6)


@pytest.mark.parametrize("states_dtype", [torch.float32, torch.bfloat16])
def test_chunks_under_autocast(states_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 products the loss stays float32, each gradient has its tensor's type, and all are close."""
    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", 44)
    labels, (states, weight, bias) = labels_of("some"), projection()
    assert bias is not None
    leaves = states.detach().to(states_dtype).requires_grad_(), weight, bias
    expected = expected_loss(states, weight, bias, labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_cross_entropy(*leaves, labels, 0.1)
    assert loss.dtype == torch.float32
    assert same(loss, expected, 0.01)
    exact = torch.autograd.grad(expected, (states, weight, bias))
    for leaf, gradient, right in zip(leaves, torch.autograd.grad(loss, leaves), exact, strict=True):
        assert gradient.dtype == leaf.dtype
        assert (gradient.float() - right).norm() < 0.01 * right.norm()


def test_autocast_leaves_double_precision_alone() -> None:
    """As it does everywhere: the loss and its gradients are float64's."""
    labels, inputs = labels_of("some"), projection(dtype=torch.float64)
    leaves = [leaf for leaf in inputs if leaf is not None]
    expected = expected_loss(*inputs, labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_cross_entropy(*inputs, labels, 0.1)
    assert (loss - expected).abs() < 1e-12
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_in_half_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of half-precision tensors the loss is float32, and the sums over chunks are not rounded on the way."""
    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", 1)
    labels, inputs = labels_of("none"), projection(dtype=dtype)
    leaves = [leaf for leaf in inputs if leaf is not None]
    exact = [leaf.detach().float().requires_grad_() for leaf in leaves]
    expected = expected_loss(exact[0], exact[1], exact[2], labels, 0.1)
    loss = projected_cross_entropy(*inputs, labels, 0.1)
    assert loss.dtype == torch.float32
    assert same(loss, expected, 0.01)
    gradients = torch.autograd.grad(loss, leaves)
    for gradient, right in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
        assert gradient.dtype == dtype
        assert (gradient.float() - right).norm() < 0.005 * right.norm()


def test_chunks_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 the loss is float64, and its gradients are those of finite differences."""
    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", 44)
    labels, (states, weight, bias) = labels_of("some"), projection(dtype=torch.float64)
    assert bias is not None
    assert projected_cross_entropy(states, weight, bias, labels, 0.1).dtype == torch.float64

    def loss(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return projected_cross_entropy(states, weight, bias, labels, 0.1)

    assert torch.autograd.gradcheck(loss, (states, weight, bias))


@pytest.mark.parametrize("factor", [0.25, 1024.0])
def test_gradients_are_linear_in_the_loss(factor: float) -> None:
    """A scaled loss has scaled gradients, and those of two batches, or of two passes, add up (B22)."""
    labels, (states, weight, bias) = labels_of("some"), projection()
    assert bias is not None
    leaves = states, weight, bias
    once = torch.autograd.grad(projected_cross_entropy(*leaves, labels, 0.1), leaves)
    loss = projected_cross_entropy(*leaves, labels, 0.1) * factor
    loss.backward(retain_graph=True)
    torch.testing.assert_close([leaf.grad for leaf in leaves], [factor * gradient for gradient in once])
    loss.backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], [2 * factor * gradient for gradient in once])
    count = labels.ne(-100).sum()
    for half, ids in zip(states.split([1, 2]), labels.split([1, 2]), strict=True):
        projected_cross_entropy(half, weight, bias, ids, 0.1, count).backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], [(2 * factor + 1) * gradient for gradient in once])


@pytest.mark.parametrize("count", [7, torch.tensor(7), torch.tensor([7])], ids=["int", "0-d", "1-element"])
def test_given_count_divides(count: int | Tensor) -> None:
    """One of several batches of an update is divided by the labels of all of them; a scalar comes out (B22)."""
    labels, inputs = labels_of("some"), projection()
    logits = F.linear(inputs[0], inputs[1], None if inputs[2] is None else inputs[2][0])
    expected = expected_loss(*inputs, labels, 0.1) * 11 / 7
    for loss in (
        label_smoothed_cross_entropy(logits, labels, 0.1, count),
        projected_cross_entropy(*inputs, labels, 0.1, count),
    ):
        assert loss.shape == ()
        assert same(loss, expected)


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


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_the_models_smoothing_is_torchs(epsilon: float) -> None:
    """`epsilon_ls` is torch's, with logits; 0 is the default (B24)."""
    model = scale(tiny())
    labels, _ = pad([[9, 8, 7, 2], [6, 2]], value=-100)
    outputs = model(input_ids=SRC.expand(2, -1), labels=labels, epsilon_ls=epsilon)
    expected = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), label_smoothing=epsilon)
    assert same(outputs.loss, expected)
    assert same(model(input_ids=SRC.expand(2, -1), labels=labels).loss, outputs.loss) == (epsilon == 0.0)


KINDS: list[dict[str, Any]] = [
    {},
    {"final_logits_bias": True, "norm_position": "pre"},
    {"tie_word_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60},
]


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_without_logits_nothing_else_changes(
    changes: dict[str, Any], epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`skip_logits` leaves the logits out, and the states of padding; loss and gradients of all stay (B24)."""
    monkeypatch.setattr(loss_vanilla_transformer, "CHUNK_ELEMENTS", 200)
    model = scale(tiny(**changes), 2)
    if model.final_logits_bias is not None:
        nn.init.normal_(model.final_logits_bias)
    ids, mask = pad([[11, 12, 13, 2], [14, 2]])
    labels, _ = pad([[9, 8, 7, 6, 5, 2], [6, 2]], value=-100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, "epsilon_ls": epsilon}
    whole, short = model(**inputs), model(**inputs, skip_logits=True)
    assert short.logits is None
    assert "logits" not in short
    assert same(short.encoder_last_hidden_state, whole.encoder_last_hidden_state * mask[..., None])
    assert short.loss.shape == ()
    assert same(short.loss, whole.loss, 1e-6)
    parameters = list(model.parameters())
    found, expected = (torch.autograd.grad(outputs.loss, parameters) for outputs in (short, whole))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert same(model(**inputs, skip_logits=True, return_dict=False)[0], short.loss)


def test_without_logits_in_half_precision() -> None:
    """A bfloat16 model has nearly the same gradients without logits, in its own type, from a float32 loss."""
    model = scale(tiny(final_logits_bias=True), 2).bfloat16()
    parameters = list(model.parameters())
    whole, short = (model(input_ids=SRC, labels=LABELS, epsilon_ls=0.1, skip_logits=skip) for skip in (0, 1))
    assert short.loss.dtype == torch.float32
    assert same(short.loss, whole.loss, 1e-3)
    found, expected = (torch.autograd.grad(outputs.loss, parameters) for outputs in (short, whole))
    assert {gradient.dtype for gradient in found} == {torch.bfloat16}
    one, other = (torch.cat([gradient.flatten().float() for gradient in each]) for each in (found, expected))
    assert (one - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("training", [False, True])
def test_without_logits_and_labels_nothing_is_left(training: bool) -> None:
    """`skip_logits` without labels is a ValueError that says so."""
    model = tiny().train(training)
    with pytest.raises(ValueError, match="`skip_logits` leaves nothing to return without `labels`"):
        model(input_ids=SRC, decoder_input_ids=LABELS, skip_logits=True)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("columns", [1, 5])
def test_padding_columns_change_no_loss(columns: int, skip: bool) -> None:
    """Labels padded with -100 give the same loss and smoothed loss, the model's or the stock smoother's (B24)."""
    model = scale(tiny())
    labels, _ = pad([[9, 8, 7, 2], [6, 2]], value=-100)
    padded = F.pad(labels, (0, columns), value=-100)
    for epsilon in (0.0, 0.1):
        options = {"epsilon_ls": epsilon, "skip_logits": skip}
        losses = [model(input_ids=SRC.expand(2, -1), labels=y, **options).loss for y in (labels, padded)]
        assert same(*losses)
    one, other = (model(input_ids=SRC.expand(2, -1), labels=y) for y in (labels, padded))
    smooth = LabelSmoother(epsilon=0.1)
    assert same(smooth(one, labels), smooth(other, padded))


@pytest.mark.parametrize("options", [{}, {"epsilon_ls": 0.1, "skip_logits": True}], ids=str)
def test_one_sentence_is_learnt_whole(options: dict[str, Any]) -> None:
    """A sentence learnt by heart comes back, first and last token included (B21, B25)."""
    model = tiny().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    labels = torch.tensor([[9, 8, 7, 9, 6, 2]])
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=SRC, labels=labels, **options).loss.backward()
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


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)])
def test_nothing_to_predict(count: Any, skip: bool) -> None:
    """Labels of -100 alone give a loss of 0 and gradients of 0, whatever the count (B24, B25)."""
    model, options = tiny(), {"num_items_in_batch": count, "epsilon_ls": 0.1, "skip_logits": skip}
    outputs = model(input_ids=SRC.expand(2, -1), labels=torch.full((2, 5), -100), **options)
    outputs.loss.backward()
    assert outputs.loss == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("skip", [False, True])
def test_a_row_of_nothing_changes_no_other(skip: bool) -> None:
    """A row of -100 leaves loss and gradients as they are without it (B25)."""
    gradients = []
    for labels in ([[9, 8, 2]], [[9, 8, 2], [-100] * 3]):
        model = tiny()
        outputs = model(input_ids=SRC.expand(len(labels), -1), labels=torch.tensor(labels), skip_logits=skip)
        outputs.loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(same(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("count", [12, torch.tensor(12), torch.tensor([12])], ids=["int", "0-d", "1-element"])
def test_count_of_items(count: int | Tensor, skip: bool) -> None:
    """The sum is divided by the count of all the batches that make an update; the loss is a scalar (B22)."""
    model = scale(tiny())
    plain = model(input_ids=SRC, labels=LABELS).loss
    loss = model(input_ids=SRC, labels=LABELS, num_items_in_batch=count, skip_logits=skip).loss
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
