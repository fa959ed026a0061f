"""Layers and stacks against PyTorch's own, in both positions of the norms; and where the norms stand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

from .common import SMALL, assert_close, assert_gradients_close, captured, model_with, random_batch

ENCODER_NORMS = {"self_attn_layer_norm": "norm1", "final_layer_norm": "norm2"}
DECODER_NORMS = {"self_attn_layer_norm": "norm1", "encoder_attn_layer_norm": "norm2", "final_layer_norm": "norm3"}
ATTENTIONS = {"self_attn": "self_attn", "encoder_attn": "multihead_attn"}


def packed(tensors: dict[str, Tensor], norms: dict[str, str]) -> dict[str, Tensor]:
    """By a layer's names here -> by those of PyTorch's layer, in which q, k and v are the rows of one matrix."""
    result = {}
    for kind in ("weight", "bias"):
        for ours, theirs in ATTENTIONS.items():
            if f"{ours}.q_proj.{kind}" in tensors:
                parts = [tensors[f"{ours}.{which}_proj.{kind}"] for which in "qkv"]
                result[f"{theirs}.in_proj_{kind}"] = torch.cat(parts)
                result[f"{theirs}.out_proj.{kind}"] = tensors[f"{ours}.out_proj.{kind}"]
        for ours, theirs in {"fc1": "linear1", "fc2": "linear2", **norms}.items():
            result[f"{theirs}.{kind}"] = tensors[f"{ours}.{kind}"]
    return result


def packed_stack(tensors: dict[str, Tensor], norms: dict[str, str]) -> dict[str, Tensor]:
    """The same for a stack: its layers, and the norm after them where there is one."""
    result = {
        f"norm.{kind}": tensors[f"layer_norm.{kind}"] for kind in ("weight", "bias") if "layer_norm.weight" in tensors
    }
    for prefix in {name[: name.index(".", len("layers.")) + 1] for name in tensors if name.startswith("layers.")}:
        layer = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        result.update({prefix + name: tensor for name, tensor in packed(layer, norms).items()})
    return result


def torch_stack(config: VanillaTransformerConfig, stack: Any, norms: dict[str, str]) -> Any:
    """PyTorch's encoder or decoder with the weights of `stack`: its own norm only under pre-LN."""
    decodes = norms is DECODER_NORMS
    layer_class = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    layer = layer_class(
        config.d_model,
        config.decoder_attention_heads if decodes else config.encoder_attention_heads,
        dim_feedforward=config.decoder_ffn_dim if decodes else config.encoder_ffn_dim,
        dropout=0.0,
        activation="relu",
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=config.norm_position == "pre",
    )
    norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_position == "pre" else None
    other: nn.Module
    if isinstance(layer, nn.TransformerDecoderLayer):
        other = nn.TransformerDecoder(layer, config.decoder_layers, norm)
    else:
        other = nn.TransformerEncoder(layer, config.encoder_layers, norm, enable_nested_tensor=False)
    other.load_state_dict(packed_stack(stack.state_dict(), norms))
    return other


def assert_same(
    ours: nn.Module,
    output: Tensor,
    theirs: nn.Module,
    expected: Tensor,
    inputs: dict[str, Tensor],
    pack: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    """The same output, and of one random combination of it the same gradients for every weight and input."""
    assert_close(output, expected, "output", 1e-5)
    probe = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))

    def gradients(of: Tensor, module: nn.Module) -> dict[str, Tensor]:
        wanted: dict[str, Tensor] = {
            name: tensor for name, tensor in module.named_parameters() if "embed_tokens" not in name
        }
        wanted.update(inputs)
        found = torch.autograd.grad((of * probe).sum(), list(wanted.values()), retain_graph=True)
        return dict(zip(wanted, found, strict=True))

    found = gradients(output, ours)
    of_inputs = {name: found.pop(name) for name in inputs}
    assert_gradients_close({**pack(found), **of_inputs}, gradients(expected, theirs))


SETTINGS: dict[str, tuple[dict[str, Any], tuple[int, int, int], str]] = {
    "two layers": ({}, (4, 7, 6), "both"),
    "one layer, one head": (
        {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 1,
            "decoder_attention_heads": 1,
        },
        (3, 9, 5),
        "left",
    ),
    "three layers, four heads, a larger epsilon": (
        {
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "layer_norm_eps": 1e-2,
        },
        (2, 5, 11),
        "right",
    ),
}  # fields of the config, (B, S, T), on which side the source has padding


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", SETTINGS)
def test_encoder(name: str, attention: str, norm_position: str) -> None:
    """Each layer, and the stack from its first layer's input on, at real positions and at padding."""
    fields, shape, padding = SETTINGS[name]
    model = model_with(1, attention, norm_position=norm_position, **fields)
    encoder = model.model.encoder
    other = torch_stack(model.config, encoder, ENCODER_NORMS)
    batch = random_batch(2, shape, source_padding=padding)
    ignored = batch.source_mask == 0

    layers, result = captured(
        encoder.layers, lambda: encoder(input_ids=batch.source, attention_mask=batch.source_mask)
    )
    for ours, theirs, (x, output) in zip(encoder.layers, other.layers, layers, strict=True):
        expected = theirs(x, src_key_padding_mask=ignored)
        assert_same(ours, output, theirs, expected, {"x": x}, lambda found: packed(found, ENCODER_NORMS))
    x = layers[0][0]
    expected = other(x, src_key_padding_mask=ignored)
    output = result.last_hidden_state
    assert_same(encoder, output, other, expected, {"x": x}, lambda found: packed_stack(found, ENCODER_NORMS))


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", SETTINGS)
def test_decoder(name: str, attention: str, norm_position: str) -> None:
    """The same, with a random memory whose gradient is compared too."""
    fields, shape, padding = SETTINGS[name]
    model = model_with(1, attention, norm_position=norm_position, **fields)
    decoder = model.model.decoder
    other = torch_stack(model.config, decoder, DECODER_NORMS)
    batch = random_batch(2, shape, source_padding=padding)
    memory = torch.randn(*shape[:2], model.config.d_model, generator=torch.Generator().manual_seed(3))
    memory.requires_grad_()
    masks = {
        "tgt_mask": torch.ones(shape[2], shape[2]).triu(1).bool(),
        "tgt_key_padding_mask": batch.target_mask == 0,
        "memory_key_padding_mask": batch.source_mask == 0,
    }

    layers, result = captured(
        decoder.layers,
        lambda: decoder(
            input_ids=batch.target_in,
            attention_mask=batch.target_mask,
            encoder_hidden_states=memory,
            encoder_attention_mask=batch.source_mask,
        ),
    )
    for ours, theirs, (x, output) in zip(decoder.layers, other.layers, layers, strict=True):
        inputs = {"x": x, "memory": memory}
        expected = theirs(x, memory, **masks)
        assert_same(ours, output, theirs, expected, inputs, lambda found: packed(found, DECODER_NORMS))
    inputs = {"x": layers[0][0], "memory": memory}
    expected = other(*inputs.values(), **masks)
    output = result.last_hidden_state
    assert_same(decoder, output, other, expected, inputs, lambda found: packed_stack(found, DECODER_NORMS))


def test_fresh_post_norm_output_is_standardized() -> None:
    """A fresh norm comes last in both stacks: each token's mean is 0, its variance, over d and not d - 1, is 1."""
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SMALL)).eval()
    batch = random_batch(1, (4, 7, 6), source_padding="both")
    output = model.model(input_ids=batch.source, decoder_input_ids=batch.target_in)
    for states in (output.encoder_last_hidden_state, output.last_hidden_state):
        assert_close(states.mean(dim=-1), torch.zeros(states.shape[:2]), "mean", 1e-5, scale=1.0)
        assert_close(states.var(dim=-1, correction=0), torch.ones(states.shape[:2]), "variance", 1e-4)


@pytest.mark.parametrize("norm_position, extra", [("post", 0), ("pre", 1)])
def test_number_of_norms(norm_position: str, extra: int) -> None:
    """Two in an encoder layer and three in a decoder layer, each used once; one more a stack under pre-LN only."""
    model = model_with(norm_position=norm_position, encoder_layers=3, decoder_layers=2)
    encoder, decoder = model.model.encoder, model.model.decoder

    def norms(module: nn.Module) -> list[nn.Module]:
        return [part for part in module.modules() if isinstance(part, nn.LayerNorm)]

    assert [len(norms(layer)) for layer in encoder.layers] == [2] * 3
    assert [len(norms(layer)) for layer in decoder.layers] == [3] * 2
    assert len(norms(encoder)) == 2 * 3 + extra
    assert len(norms(decoder)) == 3 * 2 + extra
    assert len(norms(model)) == 2 * 3 + 3 * 2 + 2 * extra
    batch = random_batch(1, (2, 4, 3))
    captured(norms(model), lambda: model(**batch.inputs()))
