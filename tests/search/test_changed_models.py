"""Models that are not as they were built: another `forward`, other linear maps, hooks, half precision."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tests.tiny import pad, tiny
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.modeling_vanilla_transformer import eager_attention_forward

from .common import SOURCES, WatchedDecoder, WatchedSearch, call_of_all, close, compare, log_p
from .samples import likes_to_end


class Added(nn.Linear):
    """A linear map with something added, as adapters are."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.5 * super().forward(x.flip(-1))


class Wrapped(nn.Module):
    """A map around a linear one, without its attributes."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).roll(1, dims=-1)


@pytest.mark.parametrize("how", [Added, Wrapped])
@pytest.mark.parametrize(
    "name",
    [
        *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2"),
        *("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj", "encoder_attn.out_proj", "lm_head"),
    ],
)
def test_replaced_linear_maps(name: str, how: type[nn.Module], searches: list[WatchedSearch]) -> None:
    """What stands in a linear map's place is called, whatever it adds."""
    model = likes_to_end(0, -1e4, 2.0, tie_word_embeddings=False)
    ids, mask = pad(SOURCES)
    call = {"inputs": ids, "attention_mask": mask, "max_new_tokens": 6}
    before = compare(model, searches, **call)
    path = name if name == "lm_head" else f"model.decoder.layers.1.{name}"
    parent, last = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    linear = getattr(parent, last)
    if how is Wrapped:
        setattr(parent, last, Wrapped(linear))
    else:
        changed = Added(linear.in_features, linear.out_features, bias=linear.bias is not None).double()
        changed.load_state_dict(linear.state_dict())
        setattr(parent, last, changed)
    after = compare(model, searches, **call)
    assert not after.sequences_scores.allclose(before.sequences_scores, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        *("lm_head", "model.decoder.layers.0", "model.decoder.layers.0.self_attn", "model.decoder.layers.0.fc1"),
        *("model.decoder.layers.0.encoder_attn", "model.decoder.layers.0.encoder_attn.k_proj"),
        *("model.decoder.layers.0.self_attn.q_proj", "model.decoder.embed_tokens"),
    ],
)
def test_hooks(name: str) -> None:
    """What a hook on a part of the model makes of its output counts in beam search as in transformers' own."""
    model = likes_to_end(0, -1e4, 2.0)

    def half(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output / 2 if isinstance(output, Tensor) else (output[0] / 2, *output[1:])

    call = call_of_all() | {"return_dict_in_generate": True}
    before = model.generate(**call)
    model.get_submodule(name).register_forward_hook(half)
    ours, theirs = model.generate(**call), model.generate(**call, output_scores=True)
    assert ours.sequences.equal(theirs.sequences)
    assert not theirs.sequences_scores.allclose(before.sequences_scores, atol=1e-4)


def negated(output: Any) -> Any:
    """What a `forward` returns, with the sign of its numbers changed: a tensor, a tuple's first, logits, or states."""
    if isinstance(output, Tensor):
        return -output
    if isinstance(output, tuple) and not hasattr(output, "keys"):
        return (-output[0], *output[1:])
    name = "logits" if "logits" in output else "last_hidden_state"
    output[name] = -output[name]
    return output


def by_class(module: Any, after: Callable[[Any], Any]) -> None:
    """Make the module one of a class of another's, whose `forward` goes on from ours."""
    own = type(module)
    module.__class__ = type("Other", (own,), {"forward": lambda self, *a, **k: after(own.forward(self, *a, **k))})


def by_attribute(module: Any, after: Callable[[Any], Any]) -> None:
    own = module.forward
    module.forward = lambda *a, **k: after(own(*a, **k))


PARTS = [
    *("", "model", "model.decoder", "model.decoder.layers.1", "model.decoder.layers.1.self_attn"),
    *("model.decoder.layers.1.encoder_attn", "model.decoder.layers.1.self_attn.v_proj", "model.decoder.layers.1.fc1"),
    *("model.decoder.embed_tokens", "model.decoder.layers.1.final_layer_norm"),
]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("how", [by_class, by_attribute])
@pytest.mark.parametrize("name", PARTS)
def test_forward_of_the_users(name: str, how: Callable[..., None], beams: int) -> None:
    """A `forward` that a user puts in place of any part's is the one that decodes."""
    model = likes_to_end(1, -1e4)
    how(model.get_submodule(name), negated)
    call = call_of_all() | {"num_beams": beams, "num_return_sequences": 1}
    expected = model.generate(**call, use_cache=False)
    assert model.generate(**call).equal(expected)
    assert not likes_to_end(1, -1e4).generate(**call).equal(expected)


def test_a_class_that_forbids_tokens() -> None:
    """A subclass whose `forward` forbids tokens never writes them."""

    class Few(VanillaTransformerForConditionalGeneration):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits[..., 7:] = -1e4
            return output

    model = Few(tiny().config).eval()
    for beams in (1, 4):
        assert model.generate(**call_of_all() | {"num_beams": beams, "num_return_sequences": 1}).max() < 7


def test_a_class_that_prepares_steps(searches: list[WatchedSearch]) -> None:
    """A subclass that gives each step other inputs is asked for them."""
    asked: list[int] = []

    class Asked(VanillaTransformerForConditionalGeneration):
        def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            asked.append(input_ids.shape[1])
            return super().prepare_inputs_for_generation(input_ids, *args, **kwargs)

    Asked(tiny().config).eval().generate(**call_of_all())
    assert asked
    assert not searches


def test_a_class_with_the_same_forward(searches: list[WatchedSearch], greedy: list[WatchedDecoder]) -> None:
    """The own searches serve a class that changes nothing, and accelerate's mixed precision around a `forward`."""

    class Named(VanillaTransformerForConditionalGeneration):
        pass

    model: Any = Named(tiny().config).eval()
    model.generate(**call_of_all())
    model._original_forward = model.forward
    model.forward = convert_outputs_to_fp32(model.forward)
    model.generate(**call_of_all() | {"num_beams": 1, "num_return_sequences": 1})
    assert (len(searches), len(greedy)) == (1, 1)
    by_attribute(model, lambda output: output)
    model.generate(**call_of_all())
    assert len(searches) == 1


def test_a_layer_around_a_layer() -> None:
    """A module in a layer's place needs none of a layer's parts."""

    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return self.inner(*args, **kwargs)

    model = likes_to_end(0, -1e4, 2.0)
    expected = model.generate(**call_of_all())
    model.model.decoder.layers[0] = Around(model.model.decoder.layers[0])
    assert model.generate(**call_of_all()).equal(expected)


def test_hooks_on_all_modules() -> None:
    """torch's hooks on every module count."""
    model = likes_to_end(0, -1e4, 2.0)
    layer = type(model.model.decoder.layers[0])
    seen: list[int] = []

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, layer):
            seen.append(output.shape[1])

    hook = register_module_forward_hook(count)
    try:
        model.generate(**call_of_all())
    finally:
        hook.remove()
    assert seen == [1] * 12  # two layers, six tokens


@pytest.mark.parametrize("beams", [1, 4])
def test_attention_function_of_the_users(beams: int, searches: list[WatchedSearch], monkeypatch: Any) -> None:
    """An attention function that is registered with transformers and chosen is the one that decodes."""
    called: list[Any] = []

    def flatter(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **kwargs: Any
    ) -> Any:
        called.append(module)
        return eager_attention_forward(module, query, key, value, mask, scaling / 9, **kwargs)

    monkeypatch.setitem(AttentionInterface._global_mapping, "flatter", flatter)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "flatter", eager_mask)
    model = likes_to_end(0, -1e4, 2.0)
    model.set_attn_implementation("flatter")
    call = call_of_all() | {"num_beams": beams, "num_return_sequences": 1}
    output = model.generate(**call)
    assert sum(module.is_causal for module in called) == 12  # two layers, six tokens
    assert output.equal(model.generate(**call, use_cache=False))
    assert not searches


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("automatic", [False, True])
def test_half_precision(automatic: bool, dtype: torch.dtype, searches: list[WatchedSearch]) -> None:
    """In half precision, or under autocast, the search runs, and its scores are those of the text up to rounding."""
    ids, mask = pad(SOURCES)
    exact, model = likes_to_end(1, -1e4, 1.5), likes_to_end(1, -1e4, 1.5).to(torch.float32 if automatic else dtype)
    for settings in ({}, {"no_repeat_ngram_size": 1}):
        with torch.autocast("cpu", dtype=dtype, enabled=automatic):
            output = model.generate(
                ids, attention_mask=mask, max_new_tokens=6, return_dict_in_generate=True, **settings
            )
        if settings:
            assert all(len(set(row)) == 7 for row in output.sequences.tolist())
        expected = [log_p(exact, SOURCES[row], output.sequences[row].tolist()) for row in range(5)]
        close(output.sequences_scores * (11 / 6) ** 0.6, torch.tensor(expected), 0.2)
    assert len(searches) == 2
