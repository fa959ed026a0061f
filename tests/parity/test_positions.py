"""What enters the first layer: the positions against their closed forms, and the embeddings' factor (§3.4, §3.5)."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerModel

from .common import assert_close, captured, model_with, random_batch


def interleaved(position: int, width: int) -> list[float]:
    """§3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))."""
    angles = [position / 10000 ** (2 * i / width) for i in range(width // 2)]
    return [value for angle in angles for value in (math.sin(angle), math.cos(angle))]


def concat(position: int, width: int) -> list[float]:
    """The same numbers, sines before cosines."""
    row = interleaved(position, width)
    return row[0::2] + row[1::2]


def tensor2tensor(position: int, width: int) -> list[float]:
    """Halves, with wavelengths from 2 pi to 10000 * 2 pi, both included."""
    angles = [position / 10000 ** (i / (width // 2 - 1)) for i in range(width // 2)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


LAYOUTS: dict[str, Callable[[int, int], list[float]]] = {
    "sinusoidal": interleaved,
    "sinusoidal_concat": concat,
    "sinusoidal_tensor2tensor": tensor2tensor,
}


def closed_form(layout: str, positions: range, width: int) -> Tensor:
    return torch.tensor([LAYOUTS[layout](position, width) for position in positions], dtype=torch.float64)


def bare_model(**fields: Any) -> VanillaTransformerModel:
    """A model of which only the positions matter."""
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 2, "decoder_ffn_dim": 2, "vocab_size": 4}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "d_k": 2, "d_v": 2}
    return VanillaTransformerModel(VanillaTransformerConfig(**{**sizes, **heads, **fields})).eval()


@torch.no_grad()
def encodings(stack: Any, length: int) -> Tensor:
    """What a stack adds to its embeddings, (length, d): the first layer's input where these are 0."""
    zeros = torch.zeros(1, length, stack.config.d_model, dtype=stack.embed_tokens.weight.dtype)
    [(first_input, _)], _ = captured(stack.layers[:1], lambda: stack(inputs_embeds=zeros))
    return first_input[0]


def both_encodings(model: VanillaTransformerModel, length: int) -> list[Tensor]:
    return [encodings(stack, length) for stack in (model.encoder, model.decoder)]


@pytest.mark.parametrize(
    "layout, width, position, expected",
    [
        # Angles of width 4 at position p: p and p / 100.
        ("sinusoidal", 4, 0, [0.0, 1.0, 0.0, 1.0]),
        ("sinusoidal", 4, 1, [0.841470985, 0.540302306, 0.009999833, 0.999950000]),
        ("sinusoidal", 4, 2, [0.909297427, -0.416146837, 0.019998667, 0.999800007]),
        ("sinusoidal", 4, 3, [0.141120008, -0.989992497, 0.029995500, 0.999550034]),
        ("sinusoidal_concat", 4, 3, [0.141120008, 0.029995500, -0.989992497, 0.999550034]),
        # Of width 8: p, p / 10, p / 100, p / 1000.
        (
            "sinusoidal",
            8,
            10,
            [-0.544021111, -0.839071529, 0.841470985, 0.540302306, 0.099833417, 0.995004165, 0.009999833, 0.99995],
        ),
        # The first code's at width 4: p and p / 10000; at width 2 there is but one.
        ("sinusoidal_tensor2tensor", 4, 3, [0.141120008, 0.000300000, -0.989992497, 0.999999955]),
        ("sinusoidal_tensor2tensor", 2, 3, [0.141120008, -0.989992497]),
    ],
)
def test_values_worked_by_hand(layout: str, width: int, position: int, expected: list[float]) -> None:
    for rows in both_encodings(bare_model(position_encoding=layout, d_model=width), position + 1):
        torch.testing.assert_close(rows[position], torch.tensor(expected), rtol=0, atol=2e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [6, 64, 512])
def test_closed_form(layout: str, width: int) -> None:
    """Every position up to 511: far within 1e-5, where fp32 angles would be off by 3e-5."""
    for rows in both_encodings(bare_model(position_encoding=layout, d_model=width), 512):
        assert_close(rows, closed_form(layout, range(512), width), "positions", 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_offset_is_the_first_position(layout: str) -> None:
    for rows in both_encodings(bare_model(position_encoding=layout, position_offset=2, d_model=64), 40):
        assert_close(rows, closed_form(layout, range(2, 42), 64), "positions", 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 2])
def test_positions_beyond_the_table(layout: str, offset: int) -> None:
    """Sinusoids have no end: a short table gives what a long one gives, and what the formula gives."""
    fields: dict[str, Any] = {"position_encoding": layout, "position_offset": offset, "d_model": 32}
    short, long = (bare_model(max_position_embeddings=rows, **fields) for rows in (16, 700))
    for length in (15, 16, 17, 18, 19, 700):
        expected = closed_form(layout, range(offset, offset + length), 32)
        for rows, same in zip(both_encodings(short, length), both_encodings(long, length), strict=True):
            assert torch.equal(rows, same)
            assert_close(rows, expected, "positions", 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding_beyond_the_table(layout: str) -> None:
    """Token by token with a cache, from a source longer than the table to a translation longer than it."""
    apart = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    fields: dict[str, Any] = {"position_encoding": layout, "position_offset": 2, **apart}
    source = random_batch(1, (1, 13, 1)).source
    translations = [
        model_with(seed=4, max_position_embeddings=rows, **fields).generate(
            source, num_beams=2, min_new_tokens=24, max_new_tokens=24
        )
        for rows in (8, 64)
    ]
    assert translations[0].shape == (1, 25)
    assert torch.equal(*translations)


def half_by_conversion(model: VanillaTransformerModel, folder: Path) -> Any:
    return model.to(torch.bfloat16)


def half_by_loading(model: VanillaTransformerModel, folder: Path) -> Any:
    model.save_pretrained(folder)
    return VanillaTransformerModel.from_pretrained(folder, dtype=torch.bfloat16)


@pytest.mark.parametrize("make_half", [half_by_conversion, half_by_loading])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16(layout: str, make_half: Callable[..., Any], tmp_path: Path) -> None:
    """Positions 0 to 2000, in the table and beyond it: rounded once, at the end, so off by 2^-8 at most."""
    model = make_half(bare_model(position_encoding=layout, d_model=64), tmp_path)
    expected = closed_form(layout, range(2001), 64)
    for rows in both_encodings(model, 2001):
        assert rows.dtype == torch.bfloat16
        assert_close(rows, expected, "positions", 2**-8, scale=1.0)


def test_learned_positions() -> None:
    """A table a stack, its rows taken from the offset on (Table 3, row E)."""
    model = model_with(position_encoding="learned", position_offset=3, max_position_embeddings=12).model
    encoder, decoder = model.encoder, model.decoder
    assert not torch.equal(encoder.embed_positions.weight, decoder.embed_positions.weight)
    for stack in (encoder, decoder):
        assert torch.equal(encodings(stack, 9), stack.embed_positions.weight[3:12])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale_embedding", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_scaled_once_and_only_on_the_way_in(layout: str, scale_embedding: bool, tied: bool) -> None:
    """E[ids] sqrt(d) + PE enters both stacks; logits are the decoder's output times the output matrix, no factor."""
    model = model_with(
        position_encoding=layout,
        scale_embedding=scale_embedding,
        share_encoder_decoder_embeddings=tied,
        tie_word_embeddings=tied,
    )
    batch = random_batch(1, (3, 7, 6), source_padding="right")
    stacks = (model.model.encoder, model.model.decoder)
    inputs, output = captured(
        [stack.layers[0] for stack in stacks], lambda: model(**batch.inputs(), output_hidden_states=True)
    )
    factor = math.sqrt(16) if scale_embedding else 1.0
    sides = ((batch.source, batch.source_mask.bool()), (batch.target_in, batch.target_mask.bool()))
    for stack, (ids, real), (first_input, _) in zip(stacks, sides, inputs, strict=True):
        expected = stack.embed_tokens.weight[ids] * factor + closed_form(layout, range(ids.shape[1]), 16)
        assert_close(first_input[real], expected[real], "first layer's input", 1e-6)

    matrix = model.model.shared.weight if tied else model.lm_head.weight
    states = output.decoder_hidden_states[-1]
    assert_close(output.logits, states @ matrix.T, "logits", 1e-6)


@pytest.mark.parametrize("padding", ["left", "right", "both"])
def test_positions_count_real_tokens(padding: str) -> None:
    """Padding on either side of source and target takes no position."""
    model = model_with()
    batch = random_batch(1, (5, 9, 8), source_padding=padding, target_padding=padding)
    stacks: tuple[nn.Module, ...] = (model.model.encoder, model.model.decoder)
    inputs, _ = captured(
        [stack.get_submodule("layers.0") for stack in stacks],
        lambda: model(**batch.inputs(), decoder_attention_mask=batch.target_mask),
    )
    sides = ((batch.source, batch.source_mask), (batch.target_in, batch.target_mask))
    for (ids, mask), (first_input, _) in zip(sides, inputs, strict=True):
        for row, real, entered in zip(ids, mask.bool(), first_input, strict=True):
            embedded = model.model.shared.weight[row[real]] * 4.0
            expected = embedded + closed_form("sinusoidal", range(int(real.sum())), 16)
            assert_close(entered[real], expected, "first layer's input", 1e-6)
