"""Padding and masks: what is hidden changes nothing, and a row with nothing to see stays finite."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import LABELS, SRC, TGT, pad, same, scale, tiny

ENCODINGS = ["sinusoidal", "sinusoidal_concat", "sinusoidal_tensor2tensor", "learned"]
SOURCES = [[11, 12, 13, 2], [21, 22, 23, 24, 25, 26, 2], [31, 2]]
TARGETS = [[1, 9, 8, 7, 6], [1, 19], [1, 29, 28]]
BACK_ENDS = ["eager", "sdpa"]


def without_neighbours(model: Any) -> list[Tensor]:
    """Each pair's logits when it is the only one of its batch."""
    return [
        model(input_ids=torch.tensor([src]), decoder_input_ids=torch.tensor([tgt])).logits[0]
        for src, tgt in zip(SOURCES, TARGETS, strict=True)
    ]


@pytest.mark.parametrize("attention", BACK_ENDS)
@pytest.mark.parametrize("position_encoding", ENCODINGS)
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(
    side: str, offset: int, position_encoding: str, attention: str
) -> None:
    """Encoder states, logits and loss of padded sources and targets are those of each pair alone (B06)."""
    model = tiny(attention=attention, position_encoding=position_encoding, position_offset=offset)
    model = scale(model).double()  # rounding apart
    ids, mask = pad(SOURCES, side, extra=2)
    decoder_ids, decoder_mask = pad(TARGETS, side, extra=1)
    labels, _ = pad([[*tgt[1:], 2] for tgt in TARGETS], side, value=-100, extra=1)
    states = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
    outputs = model(
        input_ids=ids,
        attention_mask=mask,
        decoder_input_ids=decoder_ids,
        decoder_attention_mask=decoder_mask,
        labels=labels,
    )
    losses = []
    for row, alone in enumerate(without_neighbours(model)):
        src = torch.tensor([SOURCES[row]])
        assert same(states[row, mask[row].bool()], model.get_encoder()(input_ids=src).last_hidden_state[0])
        assert same(outputs.logits[row, decoder_mask[row].bool()], alone)
        target = torch.tensor([*TARGETS[row][1:], 2])
        losses.append(torch.nn.functional.cross_entropy(alone, target, reduction="none"))
    assert same(outputs.loss, torch.cat(losses).mean())


@pytest.mark.parametrize("position_encoding", ENCODINGS)
@torch.no_grad()
def test_padded_embeddings(position_encoding: str) -> None:
    """Embeddings given for ids take their positions from the mask too (B03, B06)."""
    model = scale(tiny(position_encoding=position_encoding)).double()
    ids, mask = pad(SOURCES, "left")
    decoder_ids, decoder_mask = pad(TARGETS, "left")
    embed = model.get_input_embeddings()
    logits = model(
        inputs_embeds=embed(ids),
        attention_mask=mask,
        decoder_inputs_embeds=embed(decoder_ids),
        decoder_attention_mask=decoder_mask,
    ).logits
    for row, alone in enumerate(without_neighbours(model)):
        assert same(logits[row, decoder_mask[row].bool()], alone)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_id", [0, 49])
@torch.no_grad()
def test_missing_mask_is_made_from_the_padding_id(pad_id: int, side: str) -> None:
    """Padded ids without a mask are not read as words, in encoder, whole model and generation (B06)."""
    model = scale(tiny(pad_token_id=pad_id))
    ids, mask = pad(SOURCES, side, value=pad_id, extra=2)
    decoder_ids = TGT.expand(3, -1)
    with_mask = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids)
    without = model(input_ids=ids, decoder_input_ids=decoder_ids)
    assert same(with_mask.logits, without.logits)
    states = model.get_encoder()(input_ids=ids).last_hidden_state
    assert same(states[mask.bool()], with_mask.encoder_last_hidden_state[mask.bool()])
    ended = torch.tensor([row + [pad_id] * 2 for row in SOURCES[:1]])
    assert same(
        model(input_ids=ended, decoder_input_ids=TGT).logits, model(input_ids=SRC, decoder_input_ids=TGT).logits
    )
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=8)
    assert model.generate(ids, max_new_tokens=8).equal(expected)
    assert model.generate(input_ids=ids, max_new_tokens=8).equal(expected)
    assert model.generate(ended, max_new_tokens=8).equal(model.generate(SRC, max_new_tokens=8))


@torch.no_grad()
def test_no_padding_id_means_no_padding() -> None:
    """Without a padding id every token is a word."""
    model = scale(tiny(pad_token_id=None))
    ids = torch.tensor([[11, 0, 13, 2]])
    expected = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=TGT).logits
    assert same(model(input_ids=ids, decoder_input_ids=TGT).logits, expected)


@pytest.mark.parametrize(("start", "padding", "end"), [(0, 0, 2), (5, 5, 6), (1, 0, 2), (7, 8, 9), (2, 0, 2)])
@pytest.mark.parametrize("attention", BACK_ENDS)
@torch.no_grad()
def test_start_may_be_padding(attention: str, start: int, padding: int, end: int) -> None:
    """The first decoder position is seen by all, whichever id it has (B07)."""
    model = tiny(attention=attention, decoder_start_token_id=start, pad_token_id=padding, eos_token_id=end)
    src, labels = torch.tensor([[11, 12, 13, end]]), torch.tensor([[19, 18, 17, end]])
    shifted = torch.tensor([[start, 19, 18, 17]])
    by_labels = model(input_ids=src, labels=labels).logits
    assert by_labels.isfinite().all()
    assert same(model(input_ids=src, decoder_input_ids=shifted).logits, by_labels)
    ones = torch.ones_like(shifted)
    assert same(model(input_ids=src, decoder_input_ids=shifted, decoder_attention_mask=ones).logits, by_labels)
    weights = model(input_ids=src, decoder_input_ids=shifted, output_attentions=True).decoder_attentions
    assert all((layer[..., 0] > 0).all() for layer in weights)
    greedy = model.generate(src, num_beams=1, max_new_tokens=4)
    assert greedy[0, 1] == model(input_ids=src, decoder_input_ids=shifted[:, :1]).logits[0, 0].argmax()


def four_dimensional(visible: Tensor, form: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """A boolean mask (B, T, S) as one for the attention function."""
    if form == "boolean":
        return visible[:, None]
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[:, None]


@pytest.mark.parametrize(("attention", "form"), [("sdpa", "boolean"), ("sdpa", "additive"), ("eager", "additive")])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_four_dimensional_decoder_mask(side: str, attention: str, form: str) -> None:
    """A causal mask in four dimensions does what the two-dimensional one does, positions included."""
    model = scale(tiny(attention=attention)).double()
    ids, mask = pad(SOURCES)
    decoder_ids, decoder_mask = pad(TARGETS, side)
    visible = decoder_mask[:, None, :].bool() & torch.ones(5, 5, dtype=torch.bool).tril()
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids}
    expected = model(**inputs, decoder_attention_mask=decoder_mask).logits
    logits = model(**inputs, decoder_attention_mask=four_dimensional(visible, form, model.dtype)).logits
    assert same(logits[decoder_mask.bool()], expected[decoder_mask.bool()])


@pytest.mark.parametrize(("attention", "form"), [("sdpa", "boolean"), ("sdpa", "additive"), ("eager", "additive")])
@torch.no_grad()
def test_four_dimensional_encoder_mask(attention: str, form: str) -> None:
    """A mask (B, 1, 1, S) of a right-padded source serves both the encoder and the attention to it."""
    model = scale(tiny(attention=attention))
    ids, mask = pad(SOURCES)
    expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=TGT.expand(3, -1))
    given = four_dimensional(mask[:, None].bool(), form, model.dtype)
    outputs = model(input_ids=ids, attention_mask=given, decoder_input_ids=TGT.expand(3, -1))
    real = mask.bool()
    assert same(outputs.encoder_last_hidden_state[real], expected.encoder_last_hidden_state[real])
    assert same(outputs.logits, expected.logits)


def batch_with_hidden_rows() -> dict[str, Tensor]:
    """Four pairs: the second has no visible source, the third no visible target, the last neither."""
    ids = torch.tensor([[11, 12, 13, 2], [0, 0, 0, 0], [14, 15, 2, 0], [0, 0, 0, 0]])
    labels = torch.tensor([[9, 8, 2], [9, 8, 2], [-100] * 3, [-100] * 3])
    decoder_ids = torch.tensor([[1, 9, 8], [1, 9, 8], [0, 0, 0], [0, 0, 0]])
    return {
        "input_ids": ids,
        "attention_mask": ids.ne(0).long(),
        "decoder_input_ids": decoder_ids,
        "decoder_attention_mask": decoder_ids.ne(0).long(),
        "labels": labels,
    }


@pytest.mark.parametrize("factor", [1.0, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_with_nothing_to_attend_to(dtype: torch.dtype, factor: float) -> None:
    """Hidden rows are finite, forward and backward, the same in both back ends, and do not reach others (B08)."""
    logits, gradients = [], []
    for attention in BACK_ENDS:
        model = scale(tiny(attention=attention), factor).to(dtype)
        batch = batch_with_hidden_rows()
        outputs = model(**batch)
        outputs.loss.backward()
        assert outputs.logits.isfinite().all()
        assert outputs.loss.isfinite()
        parameters = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert len(parameters) == len(list(model.parameters()))
        assert all(gradient.isfinite().all() for gradient in parameters)
        alone = model(input_ids=SRC, decoder_input_ids=TGT).logits
        assert same(outputs.logits[:1], alone, {torch.float32: 5e-5, torch.bfloat16: 0.5, torch.float16: 0.06}[dtype])
        logits.append(outputs.logits)
        gradients.append(torch.cat([gradient.flatten() for gradient in parameters]))
    if dtype == torch.float32:
        assert same(logits[0], logits[1], 5e-5)
        assert same(gradients[0], gradients[1], 1e-4 * float(gradients[0].abs().max()))
    elif factor == 1.0:
        tolerance = 0.05 if dtype == torch.bfloat16 else 0.01
        assert same(logits[0], logits[1], tolerance)


@pytest.mark.parametrize("attention", BACK_ENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_scores_under_a_mask(dtype: torch.dtype, attention: str) -> None:
    """Scores of -40 and less beside hidden positions do not overflow, nor do two masks that add up (B08)."""
    model = tiny(attention=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                parameter.fill_(5.0 if "q_proj" in name else -5.0)
    model = model.to(dtype)
    outputs = model(**batch_with_hidden_rows())
    outputs.loss.backward()
    assert outputs.logits.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@torch.no_grad()
def test_the_future_is_hidden() -> None:
    """A later target token changes no earlier logits."""
    model = scale(tiny())
    one = model(input_ids=SRC, decoder_input_ids=torch.tensor([[1, 9, 8, 7]])).logits
    other = model(input_ids=SRC, decoder_input_ids=torch.tensor([[1, 9, 8, 17]])).logits
    assert one[:, :3].equal(other[:, :3])
    assert not same(one[:, 3], other[:, 3])
    assert model(input_ids=SRC, labels=LABELS).logits.shape == (1, 3, 50)
