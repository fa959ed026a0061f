"""`skip_logits` computes real positions only: the same loss and gradients, from fewer rows."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from tests.tiny import pad, same, scale, tiny
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.unpadding_vanilla_transformer import Layout, needed_positions

SOURCES = [[11, 12, 13, 14, 2], [15, 2], [16, 17, 2]]
TARGETS = [[21, 2], [22, 23, 24, 2], [25, 26, 2]]
SOURCE_TOKENS, TARGET_TOKENS = 10, 9


def batch(side: str = "right") -> dict[str, Tensor]:
    """Three pairs, the sources padded on a side."""
    ids, mask = pad(SOURCES, side, extra=1)
    return {"input_ids": ids, "attention_mask": mask, "labels": pad(TARGETS, value=-100, extra=2)[0]}


def model(**changes: Any) -> VanillaTransformerForConditionalGeneration:
    """A tiny model in float64."""
    return scale(tiny(**changes), 2).double()


def losses(net: nn.Module, inputs: dict[str, Any]) -> list[tuple[Tensor, ...]]:
    """Loss and gradients of all parameters, with logits and without."""
    results = []
    for skip in (False, True):
        loss = net(**inputs, epsilon_ls=0.1, skip_logits=skip).loss
        gradients = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        results.append((loss, *(gradient for gradient in gradients if gradient is not None)))
    return results


def rows_of(net: VanillaTransformerForConditionalGeneration) -> list[tuple[int, ...]]:
    """The shapes that the feed-forward networks see, as they come."""
    shapes: list[tuple[int, ...]] = []
    for layer in (*net.model.encoder.layers, *net.model.decoder.layers):
        layer.fc1.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape[:-1])))
    return shapes


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2), (3, 4, 2, 5)], ids=str)
def test_packing(shape: tuple[int, ...]) -> None:
    """Real positions in their order, as NumPy picks them; back in place they have zeros around them."""
    rng = np.random.default_rng(0)
    real, x = rng.random((3, 4)) < 0.5, rng.standard_normal(shape)
    positions = Layout(torch.from_numpy(real))
    packed = positions.pack(torch.from_numpy(x))
    assert packed.shape == (1, real.sum(), *shape[2:])
    assert np.array_equal(packed[0], x[real])
    x[~real] = 0
    assert np.array_equal(positions.unpack(packed), x)


def test_gradients_of_packing() -> None:
    """Those of real positions arrive, those of padding do not."""
    real = torch.tensor([[True, False, True], [False, True, False]])
    positions = Layout(real)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    packed = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(positions.pack, x)
    assert torch.autograd.gradcheck(positions.unpack, packed)
    [found] = torch.autograd.grad(positions.pack(x).sum(), x)
    assert found.equal(real[..., None].expand(-1, -1, 4).double())


def test_packing_keeps_no_rows() -> None:
    """For the backward pass nothing is kept but where the rows are."""
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    positions = Layout(torch.tensor([[True, False, True], [False, True, False]]))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        positions.unpack(positions.pack(torch.randn(2, 3, 4, requires_grad=True)))
    assert {x.dtype for x in kept} == {torch.int64}


def test_a_mask_of_another_kind_tells_nothing() -> None:
    """Without a mask, or with a 4D one, the batch stays as it is."""
    x = torch.randn(2, 3, 4)
    for mask in (None, torch.ones(2, 1, 3, 3)):
        assert Layout(mask).pack(x) is x
        assert Layout(mask).unpack(x) is x


def test_what_is_needed() -> None:
    """What predicts a label, and all before it: labels may be hidden at the front and inside."""
    labels = torch.tensor([[5, 6, -100, -100], [-100, 5, -100, 6], [-100] * 4])
    assert needed_positions(labels).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]


KINDS: list[dict[str, Any]] = [
    {},
    {"norm_position": "pre", "final_logits_bias": True},
    {"position_encoding": "learned", "tie_word_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60},
    {"d_k": 3, "d_v": 5},
]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_nothing_else_changes(changes: dict[str, Any], side: str, attention: str) -> None:
    """Loss and gradients are those of the padded batch, for padding on either side of the source."""
    padded, packed = losses(model(attention=attention, **changes), batch(side))
    torch.testing.assert_close(packed, padded, rtol=1e-12, atol=1e-12)


def hidden_labels(inputs: dict[str, Any]) -> None:
    """A prompt, and a hole."""
    inputs["labels"][0, 0] = inputs["labels"][1, 1] = -100


def sentence_without_labels(inputs: dict[str, Any]) -> None:
    inputs["labels"][1] = -100


def decoder_mask(inputs: dict[str, Any]) -> None:
    """A target padded on the left."""
    inputs["labels"] = pad(TARGETS, "left", value=-100)[0]
    inputs["decoder_input_ids"] = pad([[1, *row[:-1]] for row in TARGETS], "left")[0]
    inputs["decoder_attention_mask"] = pad(TARGETS, "left")[1]


def four_dimensions(inputs: dict[str, Any]) -> None:
    """Masks of the kernel's own form."""
    source = inputs.pop("attention_mask").bool()
    target = torch.ones(3, 1, inputs["labels"].shape[1], inputs["labels"].shape[1], dtype=torch.bool).tril()
    inputs |= {"attention_mask": source[:, None, None].expand(-1, 1, 6, -1), "decoder_attention_mask": target}


def later_positions(inputs: dict[str, Any]) -> None:
    """A mask that shows all of the target, what comes after the last label too."""
    length = inputs["labels"].shape[1]
    inputs["decoder_attention_mask"] = torch.ones(3, 1, length, length, dtype=torch.bool)


def one_source(inputs: dict[str, Any]) -> None:
    """One encoded source for all targets."""
    torch.manual_seed(1)
    states = torch.randn(1, inputs.pop("input_ids").shape[1], 16, dtype=torch.float64)
    inputs["attention_mask"][:] = inputs["attention_mask"][1]
    inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)


def no_mask(inputs: dict[str, Any]) -> None:
    """The mask is made from the ids."""
    del inputs["attention_mask"]


def embeddings(inputs: dict[str, Any]) -> None:
    """Embeddings for ids, on both sides."""
    torch.manual_seed(1)
    inputs["inputs_embeds"] = torch.randn(3, inputs.pop("input_ids").shape[1], 16, dtype=torch.float64)
    inputs["decoder_inputs_embeds"] = torch.randn(3, inputs["labels"].shape[1], 16, dtype=torch.float64)


def encoded(inputs: dict[str, Any]) -> None:
    """A source that is encoded already."""
    torch.manual_seed(1)
    states = torch.randn(3, inputs.pop("input_ids").shape[1], 16, dtype=torch.float64)
    inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)


@pytest.mark.parametrize(
    "change",
    [
        hidden_labels,
        sentence_without_labels,
        decoder_mask,
        four_dimensions,
        later_positions,
        one_source,
        no_mask,
        embeddings,
        encoded,
    ],
)
def test_whatever_is_given(change: Any) -> None:
    """All that the model takes gives the same loss and gradients."""
    inputs: dict[str, Any] = batch()
    change(inputs)
    padded, packed = losses(model(), inputs)
    torch.testing.assert_close(packed, padded, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant: bool) -> None:
    """Layers that are computed again in the backward pass."""
    net = model().train()
    expected, _ = losses(net, batch())
    net.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    loss = net(**batch(), epsilon_ls=0.1, skip_logits=True).loss
    assert same(loss, expected[0], 1e-12)
    loss.backward()
    found = [parameter.grad for parameter in net.parameters()]
    torch.testing.assert_close(found, list(expected[1:]), rtol=1e-12, atol=1e-12)


def test_fewer_rows_are_computed() -> None:
    """The feed-forward networks see real tokens only; with logits all positions."""
    net = model()
    rows = rows_of(net)
    net(**batch(), skip_logits=True)
    assert rows == [(1, SOURCE_TOKENS)] * 2 + [(1, TARGET_TOKENS)] * 2
    keys: list[tuple[int, ...]] = []
    net.get_submodule("model.decoder.layers.0.encoder_attn.k_proj").register_forward_pre_hook(
        lambda _, inputs: keys.append(tuple(inputs[0].shape[:-1]))
    )
    net(**batch(), skip_logits=True)
    assert keys == [(1, SOURCE_TOKENS)]
    rows.clear()
    net(**batch())
    assert rows == [(3, 6)] * 4


def test_states_are_whole_where_they_are_asked_for() -> None:
    """Each layer's states and weights have the shape of the batch, by argument or by config."""
    net = model(attention="eager")
    outputs = net(**batch(), skip_logits=True, output_hidden_states=True, output_attentions=True)
    whole = net(**batch(), output_hidden_states=True, output_attentions=True)
    for name in ("encoder_hidden_states", "decoder_hidden_states", "encoder_attentions", "cross_attentions"):
        torch.testing.assert_close(outputs[name], whole[name])
    net.config.output_hidden_states = True
    states = net(**batch(), skip_logits=True).decoder_hidden_states
    assert [tuple(state.shape) for state in states] == [(3, 6, 16)] * 3
    assert net(**batch(), skip_logits=True, output_hidden_states=False).decoder_hidden_states is None


def test_given_keys_and_values() -> None:
    """A cache that is given, as prefix tuning does, belongs to the padded batch."""
    net = model()
    found = []
    for skip in (False, True):
        torch.manual_seed(0)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for layer in range(2):
            cache.self_attention_cache.update(*torch.randn(2, 3, 2, 4, 8, dtype=torch.float64), layer)
        found.append(net(**batch(), cache=cache, skip_logits=skip).loss)
    assert same(found[1], found[0], 1e-12)


def test_compiled_code_computes_padding() -> None:
    """What is real is not known when code is compiled: the same loss from all positions."""
    net = model()
    rows = rows_of(net)
    expected = net(**batch(), skip_logits=True).loss
    compiled = torch.compile(net, backend="eager")
    rows.clear()
    assert same(compiled(**batch(), skip_logits=True).loss, expected, 1e-12)
    assert set(rows) == {(3, 6)}


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_compiled_part_computes_padding(part: str) -> None:
    """Nor where the encoder or the decoder alone is compiled: one graph, and the same loss."""
    net = model()
    expected = net(**batch(), skip_logits=True).loss
    counter = CompileCounter()
    getattr(net.model, part).compile(backend=counter)
    assert same(net(**batch(), skip_logits=True).loss, expected, 1e-12)
    assert counter.frame_count == 1


def test_labels_of_another_shape() -> None:
    """Labels that do not fit the decoder's input are named, with logits and without."""
    inputs = batch()
    ids = tiny().prepare_decoder_input_ids_from_labels(inputs["labels"])[:, :-1]
    for skip in (False, True):
        with pytest.raises(ValueError, match=r"labels \(3, 6\) need as many positions of the decoder, got \(3, 5\)"):
            tiny()(**inputs, decoder_input_ids=ids, skip_logits=skip)
