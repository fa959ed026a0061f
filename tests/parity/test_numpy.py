"""Logits, loss and every gradient against the paper's formulas in float64 NumPy."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import numpy_transformer
from vanilla_transformer import VanillaTransformerForConditionalGeneration

from .common import Batch, assert_close, assert_gradients_close, model_with, random_batch, run

TOLERANCE = 1e-5  # of logits and loss


@dataclass(frozen=True)
class Case:
    """A model, by what its config has other than `SMALL`, and the shape (B, S, T) and padding of a batch for it."""

    fields: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, int, int] = (4, 7, 6)
    padding: str = "right"
    heads: int = 2


CASES = {
    "two layers": Case(),
    "one layer, padding on the left": Case({"encoder_layers": 1, "decoder_layers": 1}, padding="left"),
    "three and one layers, padding on both sides": Case(
        {"encoder_layers": 3, "decoder_layers": 1}, (5, 11, 4), padding="both"
    ),
    "one head": Case({"encoder_attention_heads": 1, "decoder_attention_heads": 1}, (3, 5, 9), padding="both", heads=1),
    "eight heads of two": Case(
        {"encoder_attention_heads": 8, "decoder_attention_heads": 8}, (2, 12, 3), padding="left", heads=8
    ),
    "keys narrower than values": Case({"d_k": 3, "d_v": 11}, padding="both"),
    "keys wider than values": Case({"d_k": 13, "d_v": 5}, (3, 4, 8)),
    "heads that do not divide the width": Case(
        {"d_model": 14, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "d_k": 5, "d_v": 5}, heads=3
    ),
    "no biases in attention": Case({"attention_bias": False}, padding="left"),
    "output apart": Case({"tie_word_embeddings": False}),
    "source and target apart": Case({"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}),
    "all three apart": Case({"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}, padding="both"),
    "a larger epsilon": Case({"layer_norm_eps": 0.1}),
    "one source token, one target token": Case(shape=(3, 1, 1)),
}


def numpy_logits(model: VanillaTransformerForConditionalGeneration, batch: Batch, heads: int) -> Tensor:
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    return torch.from_numpy(
        numpy_transformer.logits(
            weights,
            batch.source.numpy(),
            batch.target_in.numpy(),
            heads=heads,
            source_mask=batch.source_mask.numpy().astype(bool),
            layer_norm_eps=model.config.layer_norm_eps,
        )
    )


def numpy_gradients(model: VanillaTransformerForConditionalGeneration, batch: Batch, heads: int) -> dict[str, Tensor]:
    """The reference's gradients; that of a tied matrix, under each of its names, is the sum over its uses."""
    by_use = numpy_transformer.gradients(
        {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()},
        batch.source.numpy(),
        batch.target_in.numpy(),
        batch.labels.numpy(),
        heads=heads,
        source_mask=batch.source_mask.numpy().astype(bool),
        layer_norm_eps=model.config.layer_norm_eps,
    )
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    summed = {}
    for ties in names.values():
        total = torch.from_numpy(sum(by_use[name] for name in ties))
        summed.update(dict.fromkeys(ties, total))
    return summed


@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_gradients(name: str) -> None:
    """Under eager and fused attention, in fp32 and closer in fp64; logits at every real position of the target."""
    case = CASES[name]
    eager, sdpa, double = (model_with(1, attention, **case.fields) for attention in ("eager", "sdpa", "sdpa"))
    batch = random_batch(2, case.shape, source_padding=case.padding)
    expected_logits = numpy_logits(eager, batch, case.heads)
    expected_loss = numpy_transformer.cross_entropy(expected_logits.numpy(), batch.labels.numpy())
    expected_gradients = numpy_gradients(eager, batch, case.heads)

    real = batch.target_mask.bool()
    # The fp64 model has the positions it was made with, in fp32.
    for model, tolerance in ((eager, TOLERANCE), (sdpa, TOLERANCE), (double.double(), 1e-6)):
        logits, loss, gradients = run(model, batch.inputs())
        assert_close(logits[real], expected_logits[real], "logits", tolerance)
        assert_close(loss, torch.tensor(expected_loss, dtype=torch.float64), "loss", tolerance)
        assert_gradients_close(gradients, expected_gradients, 10 * tolerance)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["left", "both"])
def test_padding_before_the_target(padding: str, attention: str) -> None:
    """A target with padding before its first token, told by the decoder's mask: the logits of the sentence alone."""
    model = model_with(seed=3, attention=attention)
    batch = random_batch(4, (4, 6, 9), source_padding="both", target_padding=padding)
    logits = model(**batch.inputs(), decoder_attention_mask=batch.target_mask).logits.detach()
    for row in range(len(logits)):
        real = batch.target_mask[row].bool()
        alone = Batch(
            batch.source[row][batch.source_mask[row].bool()][None],
            torch.ones(1, int(batch.source_mask[row].sum()), dtype=torch.long),
            batch.target_in[row][real][None],
            batch.target_mask[row][real][None],
            batch.labels[row][real][None],
        )
        assert_close(logits[row][real], numpy_logits(model, alone, heads=2)[0], f"logits of row {row}", TOLERANCE)


def test_masks_and_decoder_input_left_out() -> None:
    """Without a mask, padding ids are padding; without a decoder input, it is the labels, shifted right."""
    model = model_with(seed=5)
    batch = random_batch(6, (4, 7, 6), source_padding="both")
    labels = batch.labels.masked_fill((batch.labels == -100) & batch.target_mask.bool(), 9)
    start = torch.full((len(labels), 1), 1)
    shifted = torch.cat((start, labels[:, :-1]), dim=1).masked_fill(batch.target_mask == 0, 0)
    batch = Batch(batch.source, batch.source_mask, shifted, batch.target_mask, labels)
    _, loss, gradients = run(model, {"input_ids": batch.source, "labels": labels})

    expected = numpy_transformer.cross_entropy(numpy_logits(model, batch, heads=2).numpy(), labels.numpy())
    assert_close(loss, torch.tensor(expected, dtype=torch.float64), "loss", TOLERANCE)
    assert_gradients_close(gradients, numpy_gradients(model, batch, heads=2))
