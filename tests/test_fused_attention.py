"""The fused kernel in training on a CPU: half precision goes round it, all else is left as it is.

Of d_k = 8, as here, sentences of up to 16 tokens take the plain formula in bfloat16; longer ones take float32.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.tiny import pad, same, scale, tiny, tiny_config
from vanilla_transformer.modeling_vanilla_transformer import (
    MultiHeadAttention,
    attention_function,
    eager_attention_forward,
    fused_attention_forward,
)

HALF = [torch.bfloat16, torch.float16]
SHORT, LONG = 5, 17


@dataclass
class Call:
    """What the fused kernel was called with."""

    tensors: tuple[Tensor, Tensor, Tensor]
    mask: Tensor | None
    dropout: float

    @property
    def types(self) -> set[torch.dtype]:
        return {tensor.dtype for tensor in self.tensors}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls of the fused kernel, as they come."""
    seen: list[Call] = []
    kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def spy(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
        seen.append(Call((query, key, value), mask, kwargs.get("dropout", 0.0)))
        return kernel(module, query, key, value, mask, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", spy)
    return seen


def batch(length: int = SHORT) -> dict[str, Tensor]:
    """Two padded pairs, the longer of so many tokens on each side."""
    ids, mask = pad([[*range(11, 10 + length), 2], [14, 2]])
    labels, _ = pad([[*range(3, 2 + length), 2], [6, 2]], value=-100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def attention_inputs(
    dtype: torch.dtype, requires_grad: bool = True, length: int = SHORT
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values: 2 sentences, 2 heads, so many tokens, 8 dimensions."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, length, 8).to(dtype).requires_grad_(requires_grad) for _ in range(3))
    return query, key, value


def attention() -> MultiHeadAttention:
    """What the kernel is called by: an attention without a mask of its own."""
    return MultiHeadAttention(tiny_config(), heads=2).train()


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.flatten().float() for gradient in gradients])


@pytest.mark.parametrize(("length", "computed_in"), [(SHORT, []), (16, []), (LONG, [{torch.float32}] * 6)], ids=str)
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_training_under_autocast(
    norm_position: str, length: int, computed_in: list[set[torch.dtype]], calls: list[Call]
) -> None:
    """In all three kinds of attention short sentences go past the kernel, which sees long ones in float32.

    The gradients are nearly those of float32 eager.
    """
    fused, eager = (tiny(attention=name, norm_position=norm_position).train() for name in ("sdpa", "eager"))
    with torch.autocast("cpu", torch.bfloat16):
        loss = fused(**batch(length)).loss
    assert [call.types for call in calls] == computed_in
    assert all(call.mask is None or call.mask.dtype in (torch.bool, torch.float32) for call in calls)
    assert any(call.mask is not None for call in calls) == bool(computed_in)
    expected = eager(**batch(length)).loss
    assert same(loss, expected, 0.01)
    found, right = (
        flat(torch.autograd.grad(one, list(model.parameters()))) for one, model in ((loss, fused), (expected, eager))
    )
    assert (found - right).norm() < 0.12 * right.norm()


@pytest.mark.parametrize("training", [False, True])
def test_float32_is_left_alone(training: bool, calls: list[Call]) -> None:
    """Without autocast the kernel gets the very tensors, and computes what it does alone."""
    tensors = attention_inputs(torch.float32, requires_grad=training)
    mask = torch.randn(2, 1, 5, 5)
    heads, _ = fused_attention_forward(attention(), *tensors, mask, scaling=0.5)
    [call] = calls
    assert all(one is other for one, other in zip((*call.tensors, call.mask), (*tensors, mask), strict=True))
    assert heads.equal(F.scaled_dot_product_attention(*tensors, mask, scale=0.5).transpose(1, 2))


@pytest.mark.parametrize("dtype", HALF)
@torch.no_grad()
def test_evaluation_in_half_precision_is_left_alone(dtype: torch.dtype, calls: list[Call]) -> None:
    """Without gradients half precision stays: under autocast, and in a model of that type."""
    model = scale(tiny(), 2)
    with torch.autocast("cpu", dtype):
        assert model(**batch()).loss.isfinite()
    assert [call.types for call in calls] == [{dtype}] * 6
    calls.clear()
    assert model.to(dtype)(**batch()).loss.isfinite()
    assert [call.types for call in calls] == [{dtype}] * 6


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("dtype", "length"), [(torch.float16, SHORT), (torch.float16, LONG), (torch.bfloat16, LONG)])
def test_computed_in_float32(dtype: torch.dtype, length: int, autocast: bool) -> None:
    """Half-precision queries get the float32 result rounded once, under autocast too, and gradients of their type."""
    query, key, value = attention_inputs(dtype, length=length)
    with torch.autocast("cpu", dtype, enabled=autocast):
        heads, weights = fused_attention_forward(attention(), query, key, value, None, scaling=0.5)
    assert weights is None
    assert heads.dtype == query.dtype
    exact = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), scale=0.5).transpose(1, 2)
    assert heads.equal(exact.to(dtype))
    upstream = torch.ones_like(heads)
    found = torch.autograd.grad(heads, (query, key, value), upstream)
    expected = torch.autograd.grad(exact, (query, key, value), upstream.float())
    assert [gradient.dtype for gradient in found] == [dtype] * 3
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("is_causal", [False, True])
def test_short_sentences_in_bfloat16(is_causal: bool) -> None:
    """The plain formula in bfloat16 gives nearly what the kernel does in float32, its causal mask too, unseen keys
    exactly nothing."""
    query, key, value = attention_inputs(torch.bfloat16)
    module = attention()
    module.is_causal = is_causal
    heads, weights = fused_attention_forward(module, query, key, value, None, scaling=0.5)
    assert weights is None
    assert heads.dtype == torch.bfloat16
    exact = F.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), scale=0.5, is_causal=is_causal
    ).transpose(1, 2)
    assert same(heads, exact, 0.02)
    [found] = torch.autograd.grad(heads[:, 0].sum(), value)
    assert found[:, :, 1:].any() != is_causal


def test_the_newest_token_sees_all() -> None:
    """One query after keys of earlier steps: no mask means none, in bfloat16 with gradients too."""
    query, key, value = attention_inputs(torch.bfloat16)
    module = attention()
    module.is_causal = True
    heads, _ = fused_attention_forward(module, query[:, :, -1:], key, value, None, scaling=0.5)
    expected = F.scaled_dot_product_attention(query[:, :, -1:].float(), key.float(), value.float(), scale=0.5)
    assert same(heads, expected.transpose(1, 2), 0.02)


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_masks_in_half_precision(dtype: torch.dtype, additive: bool, length: int) -> None:
    """Boolean masks and added ones hide the same keys as in the plain formula in float32."""
    visible = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    visible[1, :, 1:, 0] = False
    added = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    query, key, value = attention_inputs(dtype, length=length)
    module = attention()
    heads, _ = fused_attention_forward(module, query, key, value, added if additive else visible, scaling=0.5)
    expected, _ = eager_attention_forward(
        module, query.float(), key.float(), value.float(), added.float(), scaling=0.5
    )
    assert same(heads, expected, 0.02)


def test_double_precision_is_kept(calls: list[Call]) -> None:
    """In training a float64 model computes in float64, as it does without gradients."""
    fused, eager = (scale(tiny(attention=name), 2).double().train() for name in ("sdpa", "eager"))
    logits = fused(**batch()).logits
    assert [call.types for call in calls] == [{torch.float64}] * 6
    assert (logits - eager(**batch()).logits).abs().max() < 1e-12


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(("length", "computed_in"), [(SHORT, []), (LONG, [{torch.float32}] * 6)], ids=str)
def test_a_bfloat16_model_with_float_masks_trains(
    length: int, computed_in: list[set[torch.dtype]], skip: bool, calls: list[Call]
) -> None:
    """Additive 4D masks of the model's own type go with it; the gradients are nearly those of float32."""
    inputs = batch(length)
    hidden = {
        "attention_mask": inputs.pop("attention_mask")[:, None, None].eq(0).expand(-1, -1, length, -1),
        "decoder_attention_mask": torch.ones(2, 1, length, length, dtype=torch.bool).triu(diagonal=1),
    }
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny().to(dtype).train()
        masks = {name: mask.to(dtype) * torch.finfo(dtype).min for name, mask in hidden.items()}
        calls.clear()
        loss = model(**inputs, **masks, skip_logits=skip).loss
        assert [call.types for call in calls] == ([{torch.float32}] * 6 if dtype == torch.float32 else computed_in)
        assert all(call.mask is not None and call.mask.dtype == torch.float32 for call in calls)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert {gradient.dtype for gradient in gradients[1]} == {torch.bfloat16}
    right, found = map(flat, gradients)
    assert (found - right).norm() < 0.12 * right.norm()


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_dropout(dtype: torch.dtype, length: int, calls: list[Call]) -> None:
    """Attention dropout is in training, wherever it is computed, and not in evaluation."""
    model = scale(tiny(attention_dropout=0.5), 2).to(dtype)
    for training in (True, False):
        calls.clear()
        one, other = (model.train(training)(**batch(length)).loss for _ in range(2))
        past_the_kernel = dtype == torch.bfloat16 and length == SHORT
        assert {call.dropout for call in calls} == (set() if past_the_kernel else {0.5 if training else 0.0})
        assert (one == other) != training


def test_which_function_is_chosen() -> None:
    """sdpa is wrapped; the plain formula and other kernels are as they are registered."""
    assert attention_function(tiny(attention="sdpa").config) is fused_attention_forward
    assert attention_function(tiny(attention="eager").config) is eager_attention_forward
    flex = attention_function(tiny(attention="flex_attention", d_model=32).config)
    assert flex is ALL_ATTENTION_FUNCTIONS["flex_attention"]
