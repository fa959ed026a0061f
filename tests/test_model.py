"""The model: embeddings, positions, recorded states, ties, resizing, checkpointing and compilation."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from tests.tiny import LABELS, SRC, TGT, pad, reload, same, scale, tiny, tiny_config
from vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel

SINUSOIDS = ["sinusoidal", "sinusoidal_concat", "sinusoidal_tensor2tensor"]


@pytest.fixture
def compiler() -> Iterator[None]:
    """A compiler that remembers nothing of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Embeddings


@pytest.mark.parametrize("scale_embedding", [True, False])
@torch.no_grad()
def test_embeddings_for_ids(scale_embedding: bool) -> None:
    """Looked-up embeddings give what their ids give, in encoder and decoder (B03)."""
    model = scale(tiny(scale_embedding=scale_embedding))
    embed = model.get_input_embeddings()
    expected = model(input_ids=SRC, decoder_input_ids=TGT).logits
    ones = torch.ones_like(SRC)
    assert same(model(inputs_embeds=embed(SRC), attention_mask=ones, decoder_input_ids=TGT).logits, expected)
    assert same(model(inputs_embeds=embed(SRC), decoder_inputs_embeds=embed(TGT)).logits, expected)
    assert same(model(input_ids=SRC, decoder_inputs_embeds=embed(TGT), labels=LABELS).logits, expected)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("input_ids", "inputs_embeds", "decoder_input_ids"), r"`input_ids` and `inputs_embeds`"),
        (("decoder_input_ids",), r"`input_ids` and `inputs_embeds`"),
        (
            ("input_ids", "decoder_input_ids", "decoder_inputs_embeds"),
            r"`decoder_input_ids` and `decoder_inputs_embeds`",
        ),
        (("input_ids",), r"`decoder_input_ids` and `decoder_inputs_embeds`"),
    ],
)
@pytest.mark.parametrize("base", [True, False])
def test_ids_or_embeddings(base: bool, names: tuple[str, ...], message: str) -> None:
    """Both ids and embeddings, or neither, is a ValueError that names them (B03)."""
    model = tiny()
    embeds = model.get_input_embeddings()(SRC)
    inputs = {
        "input_ids": SRC,
        "inputs_embeds": embeds,
        "decoder_input_ids": SRC,
        "decoder_inputs_embeds": embeds,
    }
    with pytest.raises(ValueError, match=message):
        (model.model if base else model)(**{name: inputs[name] for name in names})


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
@pytest.mark.parametrize("width", [16, 256])
def test_initial_embeddings(width: int, position_encoding: str, share: bool) -> None:
    """Embeddings spread by d^-0.5; the padding's row alone is zero (B04)."""
    torch.manual_seed(0)
    config = tiny_config(
        vocab_size=2000,
        d_model=width,
        pad_token_id=3,
        position_encoding=position_encoding,
        share_encoder_decoder_embeddings=share,
    )
    model = VanillaTransformerForConditionalGeneration(config)
    for embedding in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
        weight = embedding.weight.detach()
        assert not weight[3].any()
        others = torch.cat((weight[:3], weight[4:]))
        assert others.any(dim=-1).all()
        assert same(others.std() * width**0.5, torch.tensor(1.0), 0.02)
        assert same(others.mean() * width**0.5, torch.tensor(0.0), 0.02)


# Positions


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("position_encoding", SINUSOIDS)
@torch.no_grad()
def test_sinusoids_go_on_beyond_the_table(position_encoding: str, offset: int) -> None:
    """A source and a target beyond a table of 16 rows are computed as with 64 rows (B11)."""
    sizes = (16, 64)
    models = [
        scale(tiny(max_position_embeddings=size, position_encoding=position_encoding, position_offset=offset))
        for size in sizes
    ]
    src = torch.arange(40)[None] % 40 + 5
    first, second = (model(input_ids=src, decoder_input_ids=src.flip(1)).logits for model in models)
    assert same(first, second, 5e-5)
    for use_cache in (True, False):
        texts = [m.generate(src, max_new_tokens=40, min_new_tokens=40, use_cache=use_cache) for m in models]
        assert texts[0].shape == (1, 41)
        assert texts[0].equal(texts[1])


@pytest.mark.parametrize("position_encoding", SINUSOIDS)
def test_positions_in_half_precision(position_encoding: str) -> None:
    """A table in bfloat16, moved or loaded, is the full one rounded, also where it grows (B14)."""
    exact = tiny(position_encoding=position_encoding, max_position_embeddings=2001)
    expected = exact.model.encoder.embed_positions.weight
    assert expected.dtype == torch.float32
    positions = torch.arange(2001)[None]
    for size in (16, 2001):
        model = tiny(position_encoding=position_encoding, max_position_embeddings=size)
        for half in (reload(model, dtype=torch.bfloat16), model.to(torch.bfloat16)):
            for stack in (half.model.encoder, half.model.decoder):
                encoded = stack.embed_positions(positions, 2001)
                assert encoded.dtype == torch.bfloat16
                assert (encoded[0].float() - expected).abs().max() <= 2**-8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position_encoding", [*SINUSOIDS, "learned"])
@torch.no_grad()
def test_states_keep_the_models_type(position_encoding: str, dtype: torch.dtype) -> None:
    """Every hidden state stays in half precision, beyond the table too (B14)."""
    model = tiny(position_encoding=position_encoding, max_position_embeddings=64).to(dtype)
    length = 64 if position_encoding == "learned" else 100
    src = torch.full((1, length), 7)
    outputs = model(input_ids=src, decoder_input_ids=src, output_hidden_states=True, output_attentions=True)
    states = (*outputs.encoder_hidden_states, *outputs.decoder_hidden_states, *outputs.cross_attentions)
    assert {state.dtype for state in (outputs.logits, *states)} == {dtype}
    assert all(state.isfinite().all() for state in states)


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("long", ["input_ids", "inputs_embeds", "decoder_input_ids", "labels"])
@torch.no_grad()
def test_learned_positions_end(long: str, offset: int) -> None:
    """Learned positions hold what fits the table and refuse more before any layer runs, naming the limit (B11)."""
    model = tiny(position_encoding="learned", max_position_embeddings=16, position_offset=offset)
    fits, beyond = torch.full((1, 16 - offset), 7), torch.full((1, 17 - offset), 7)
    assert model(input_ids=fits, decoder_input_ids=fits).logits.isfinite().all()
    work: list[Any] = []
    for stack in (model.model.encoder, model.model.decoder):
        stack.layers[0].register_forward_pre_hook(lambda *inputs: work.append(inputs))
    source = {"input_ids": fits} if long in ("decoder_input_ids", "labels") else {"decoder_input_ids": fits}
    given = model.get_input_embeddings()(beyond) if long == "inputs_embeds" else beyond
    with pytest.raises(ValueError, match=r"`max_position_embeddings`=16\b"):
        model(**source, **{long: given})
    assert not work


@torch.no_grad()
def test_learned_positions_count_the_cache() -> None:
    """Tokens in the cache take up learned positions (B11)."""
    model = tiny(position_encoding="learned", max_position_embeddings=8)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(input_ids=SRC, decoder_input_ids=torch.full((1, 7), 7), cache=cache)
    model(input_ids=SRC, decoder_input_ids=torch.full((1, 1), 7), cache=cache)
    with pytest.raises(ValueError, match=r"`max_position_embeddings`=8\b"):
        model(input_ids=SRC, decoder_input_ids=torch.full((1, 1), 7), cache=cache)


@torch.no_grad()
def test_learned_positions_with_a_roomy_static_cache() -> None:
    """What counts is the tokens, not the room of the cache (B11)."""
    model = scale(tiny(position_encoding="learned", max_position_embeddings=8))
    cache = EncoderDecoderCache(
        StaticCache(config=model.config, max_cache_len=32), StaticCache(config=model.config, max_cache_len=4)
    )
    expected = model(input_ids=SRC, decoder_input_ids=TGT).logits
    assert same(model(input_ids=SRC, decoder_input_ids=TGT, cache=cache).logits, expected)


# Recorded states


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@torch.no_grad()
def test_hidden_states(norm_position: str) -> None:
    """One state more than there are layers, from the embeddings to the last state."""
    model = scale(tiny(norm_position=norm_position, encoder_layers=3, decoder_layers=2))
    plain = model(input_ids=SRC, decoder_input_ids=TGT)
    assert plain.encoder_hidden_states is None
    assert plain.decoder_hidden_states is None
    outputs = model.model(input_ids=SRC, decoder_input_ids=TGT, output_hidden_states=True)
    assert (len(outputs.encoder_hidden_states), len(outputs.decoder_hidden_states)) == (4, 3)
    for stack, ids, states, last in (
        (model.model.encoder, SRC, outputs.encoder_hidden_states, outputs.encoder_last_hidden_state),
        (model.model.decoder, TGT, outputs.decoder_hidden_states, outputs.last_hidden_state),
    ):
        length = ids.shape[1]
        assert same(states[0], stack.embed_tokens(ids) * 4.0 + stack.embed_positions.weight[:length])
        assert same(states[-1], last)
    assert same(outputs.last_hidden_state @ model.lm_head.weight.T, plain.logits)


@pytest.mark.parametrize("training", [False, True])
def test_attention_weights_under_a_fused_kernel(training: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Weights asked of sdpa are eager's, with one warning, and the implementation stays as it was."""
    logging.getLogger("vanilla_transformer.modeling_vanilla_transformer").warning_once.cache_clear()  # type: ignore[attr-defined]
    fused, eager = (scale(tiny(attention=name), 3).train(training) for name in ("sdpa", "eager"))
    ids, mask = pad([[11, 12, 13, 2], [14, 2]])
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": TGT.expand(2, -1)}
    before = fused(**inputs)
    assert before.cross_attentions is None
    assert not caplog.records
    fused(**inputs, output_attentions=True)
    outputs = fused(**inputs, output_attentions=True)
    assert sum("output_attentions" in record.message for record in caplog.records) == 1
    expected = eager(**inputs, output_attentions=True)
    shapes = {"encoder_attentions": (2, 2, 4, 4), "decoder_attentions": (2, 2, 3, 3), "cross_attentions": (2, 2, 3, 4)}
    for name, shape in shapes.items():
        assert [weights.shape for weights in outputs[name]] == [torch.Size(shape)] * 2
        assert all(same(one, other) for one, other in zip(outputs[name], expected[name], strict=True))
        assert all(same(weights.sum(dim=-1), torch.ones(shape[:-1])) for weights in outputs[name])
    assert not outputs.cross_attentions[0][1, :, :, 2:].any()
    assert same(outputs.logits, expected.logits)
    assert fused.config._attn_implementation == "sdpa"
    assert fused(**inputs).cross_attentions is None


@torch.no_grad()
def test_flex_attention_is_eager_attention() -> None:
    """The block-sparse kernel computes the plain formula, padding and the causal mask included."""
    changes = {"d_model": 32}
    flex, eager = (scale(tiny(attention=name, **changes), 3) for name in ("flex_attention", "eager"))
    ids, mask = pad([[11, 12, 13, 2], [14, 2]])
    decoder_ids, decoder_mask = pad([[1, 9, 8], [1, 7]])
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": decoder_ids,
        "decoder_attention_mask": decoder_mask,
    }
    real = decoder_mask.bool()
    with torch.compiler.set_stance("force_eager"):
        logits = flex(**inputs).logits
    assert same(logits[real], eager(**inputs).logits[real], 5e-5)


# Ties


def matrices(model: VanillaTransformerForConditionalGeneration) -> list[Tensor]:
    return [model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight, model.lm_head.weight]


def tied(model: VanillaTransformerForConditionalGeneration) -> tuple[bool, bool, bool]:
    """Which of source and target, target and output, source and output are one storage."""
    source, target, output = (matrix.data_ptr() for matrix in matrices(model))
    return source == target, target == output, source == output


FLAGS = [
    (True, True, (True, True, True)),
    (True, False, (True, False, False)),
    (False, True, (False, True, False)),
    (False, False, (False, False, False)),
]


def update(model: VanillaTransformerForConditionalGeneration) -> None:
    """One step of plain gradient descent."""
    model.zero_grad()
    model(input_ids=SRC, labels=LABELS).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("share", "tie", "expected"), FLAGS)
def test_a_flag_unties_what_it_names(share: bool, tie: bool, expected: tuple[bool, bool, bool], bias: bool) -> None:
    """Storage is shared as the flags say, before and after loading, and after an update (B27)."""
    model = tiny(share_encoder_decoder_embeddings=share, tie_word_embeddings=tie, final_logits_bias=bias)
    others = model.num_parameters() - len({matrix.data_ptr() for matrix in matrices(model)}) * 50 * 16
    assert others == tiny(final_logits_bias=bias).num_parameters() - 50 * 16
    for current in (model, reload(model)):
        assert tied(current) == expected
        assert current.num_parameters() == model.num_parameters()
        assert all(same(one, other) for one, other in zip(matrices(current), matrices(model), strict=True))
    loaded = reload(model)
    before = [matrix.detach().clone() for matrix in matrices(loaded)]
    update(loaded)
    assert tied(loaded) == expected
    assert all(not same(one, other) for one, other in zip(before, matrices(loaded), strict=True))
    source, target, output = matrices(loaded)
    assert (source.equal(target), target.equal(output), source.equal(output)) == expected


@pytest.mark.parametrize("share", [True, False])
def test_ties_of_the_base_model(share: bool) -> None:
    """The model without an output projection shares its two embeddings or does not (B27)."""
    torch.manual_seed(0)
    model = VanillaTransformerModel(tiny_config(share_encoder_decoder_embeddings=share))
    for current in (model, reload(model)):
        pair = current.encoder.embed_tokens.weight, current.decoder.embed_tokens.weight
        assert (pair[0].data_ptr() == pair[1].data_ptr()) == share


# Resizing


def resize_source_and_target(model: Any, size: int) -> None:
    model.resize_token_embeddings(size)
    if not model.config.share_encoder_decoder_embeddings:
        model.resize_decoder_token_embeddings(size)


@pytest.mark.parametrize("size", [60, 40])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("share", "tie", "expected"), FLAGS)
@torch.no_grad()
def test_resizing(share: bool, tie: bool, expected: tuple[bool, bool, bool], bias: bool, size: int) -> None:
    """A vocabulary made larger or smaller keeps its entries and its ties, also after loading (B27)."""
    model = scale(tiny(share_encoder_decoder_embeddings=share, tie_word_embeddings=tie, final_logits_bias=bias))
    if model.final_logits_bias is not None:
        model.final_logits_bias.normal_()
    kept = min(size, 50)
    before = model(input_ids=SRC, decoder_input_ids=TGT).logits[..., :kept]
    resize_source_and_target(model, size)
    for current in (model, reload(model)):
        assert (current.config.vocab_size, current.config.decoder_vocab_size) == (size, size)
        assert {len(matrix) for matrix in matrices(current)} == {size}
        assert current.lm_head.out_features == current.model.decoder.embed_tokens.num_embeddings == size
        assert tied(current) == expected
        logits = current(input_ids=SRC, decoder_input_ids=TGT).logits
        assert logits.shape == (1, 3, size)
        assert same(logits[..., :kept], before)
        if current.final_logits_bias is not None:
            assert current.final_logits_bias.shape == (1, size)
            assert not current.final_logits_bias[:, kept:].any()
    with torch.enable_grad():
        update(model)
    assert tied(model) == expected


@pytest.mark.parametrize("tie", [True, False])
@torch.no_grad()
def test_resizing_one_of_two_vocabularies(tie: bool) -> None:
    """With two vocabularies each is resized alone (B27)."""
    model = scale(tiny(share_encoder_decoder_embeddings=False, tie_word_embeddings=tie, decoder_vocab_size=70))
    before = model(input_ids=SRC, decoder_input_ids=TGT).logits
    assert before.shape[-1] == 70
    model.resize_token_embeddings(60)
    assert [len(matrix) for matrix in matrices(model)] == [60, 70, 70]
    assert same(model(input_ids=SRC, decoder_input_ids=TGT).logits, before)
    model.resize_decoder_token_embeddings(65)
    model = reload(model)
    assert [len(matrix) for matrix in matrices(model)] == [60, 65, 65]
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (60, 65)
    assert same(model(input_ids=SRC, decoder_input_ids=TGT).logits, before[..., :65])


def test_a_shared_vocabulary_is_resized_as_one() -> None:
    """The target's vocabulary cannot be resized alone where it is the source's."""
    with pytest.raises(ValueError, match="resize_token_embeddings"):
        tiny().resize_decoder_token_embeddings(60)


@torch.no_grad()
def test_resizing_to_a_multiple() -> None:
    """Sizes are rounded up alike in all three matrices."""
    model = tiny()
    model.resize_token_embeddings(50, pad_to_multiple_of=16)
    assert [len(matrix) for matrix in matrices(model)] == [64, 64, 64]
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (64, 64)


# Checkpointing and compilation


def gradients(model: VanillaTransformerForConditionalGeneration) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of one training batch."""
    ids, mask = pad([[11, 12, 13, 2], [14, 2]])
    labels, _ = pad([[9, 8, 2], [7, 2]], value=-100)
    torch.manual_seed(1)
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradient_checkpointing(dropout: float, reentrant: bool) -> None:
    """Layers computed twice give the same loss and gradients, dropout included."""
    plain, checkpointed = (tiny(dropout=dropout, attention_dropout=dropout).train() for _ in range(2))
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    runs: list[int] = []
    for layer in (*checkpointed.model.encoder.layers, *checkpointed.model.decoder.layers):
        layer.fc1.register_forward_hook(lambda *_: runs.append(1))
    (loss, expected), (checkpointed_loss, found) = gradients(plain), gradients(checkpointed)
    assert len(runs) == 2 * 4
    assert same(checkpointed_loss, loss)
    assert len(found) == len(expected) == len(list(plain.parameters()))
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
@pytest.mark.usefixtures("compiler")
def test_compiled_training_step(position_encoding: str) -> None:
    """A training step is one graph, with the loss and gradients of the plain step (B55)."""
    plain, compiled = (tiny(position_encoding=position_encoding).train() for _ in range(2))
    step = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    loss, expected = gradients(plain)
    ids, mask = pad([[11, 12, 13, 2], [14, 2]])
    labels, _ = pad([[9, 8, 2], [7, 2]], value=-100)
    compiled_loss = step(input_ids=ids, attention_mask=mask, labels=labels).loss
    compiled_loss.backward()
    assert same(compiled_loss, loss)
    found = [parameter.grad for parameter in compiled.parameters() if parameter.grad is not None]
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
@pytest.mark.usefixtures("compiler")
@torch.no_grad()
def test_compiled_decoding_step(position_encoding: str) -> None:
    """A decoding step with a static cache is one graph, which serves every later step (B55)."""
    model = scale(tiny(position_encoding=position_encoding), 3)
    target = torch.tensor([[1, 9, 8, 7, 6, 5]])
    expected = model(input_ids=SRC, decoder_input_ids=target).logits
    cache = EncoderDecoderCache(
        StaticCache(config=model.config, max_cache_len=12), StaticCache(config=model.config, max_cache_len=4)
    )
    source = model.get_encoder()(input_ids=SRC)
    first = model(encoder_outputs=source, decoder_input_ids=target[:, :1], cache=cache)
    counter = CompileCounter()
    step = torch.compile(model, fullgraph=True, backend=counter)
    found = [first.logits]
    for i in range(1, 6):
        found.append(step(encoder_outputs=source, decoder_input_ids=target[:, i : i + 1], cache=cache).logits)
    assert same(torch.cat(found, dim=1), expected, 5e-5)
    assert counter.frame_count == 1


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
@pytest.mark.usefixtures("compiler")
@torch.no_grad()
def test_compiled_once_for_all_lengths(position_encoding: str) -> None:
    """A graph for length 5 serves length 9, and lengths within and beyond the sinusoids' table (B55)."""
    model = scale(tiny(position_encoding=position_encoding, max_position_embeddings=16))
    counter = CompileCounter()
    step = torch.compile(model, dynamic=True, backend=counter)
    for length in (5, 9):
        ids = torch.arange(2 * length).reshape(2, length) + 5
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids.flip(1)}
        assert same(step(**inputs).logits, model(**inputs).logits, 5e-5)
        assert counter.frame_count == 1
    if position_encoding == "sinusoidal":
        ids = torch.full((2, 30), 7)
        assert same(
            step(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=ids).logits,
            model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=ids).logits,
            5e-5,
        )
