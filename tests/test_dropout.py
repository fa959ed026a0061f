"""Dropout that draws four elements' numbers at once (§5.4): its rate, its scale, its gradient, its independence."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny import LABELS, SRC, tiny
from vanilla_transformer import modeling_vanilla_transformer
from vanilla_transformer.modeling_vanilla_transformer import dropout

COUNT = 1 << 20
RATES = [0.1, 0.3, 0.5, 0.0001]


def rounded(p: float) -> float:
    """The probability that is meant where p is: the nearest multiple of 2^-16."""
    return round(p * 65536) / 65536


def dropped(seed: int, p: float, *shape: int) -> Tensor:
    """Which of some ones become 0: 1 for those, in float64."""
    torch.manual_seed(seed)
    return dropout(torch.ones(shape), p, True).eq(0).double()


@pytest.mark.parametrize(("p", "training"), [(0.3, False), (0.0, True), (0.0, False), (1.0, False)])
def test_nothing_to_drop(p: float, training: bool) -> None:
    """Outside training, and at rate 0, the input itself comes back and no number is drawn."""
    x = torch.ones(5)
    state = torch.get_rng_state()
    assert dropout(x, p, training) is x
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("p", RATES)
def test_rate_and_mean(p: float) -> None:
    """The share of zeros is p and the mean stays 1, both within 4 standard errors."""
    torch.manual_seed(0)
    y = dropout(torch.ones(COUNT, dtype=torch.float64), p, True)
    error = math.sqrt(p * (1 - p) / COUNT)
    assert abs(y.eq(0).double().mean() - p) < 4 * error
    assert abs(y.mean() - 1) < 4 * error / (1 - p)


def test_the_rarest_zeros() -> None:
    """Rates below half of 2^-16 are none; the smallest others are 2^-16 and just below 1."""
    assert not dropped(0, 2**-18, 1 << 16).any()
    assert abs(dropped(0, 2**-16, COUNT).sum() - 16) < 4 * 4
    assert abs(dropped(0, 1 - 2**-16, COUNT).sum() - (COUNT - 16)) < 4 * 4


@pytest.mark.parametrize("p", [1.0, 0.999999])
def test_all_dropped(p: float) -> None:
    """At rate 1, and at rates that round to it, all become 0, as do their gradients."""
    x = torch.randn(9, requires_grad=True)
    y = dropout(x, p, True)
    y.sum().backward()
    assert not y.any()
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize("p", RATES)
def test_scale_and_gradient(p: float) -> None:
    """Kept values grow by 1 / (1 - p), p as it was rounded; the gradient has the same zeros and the same factor."""
    torch.manual_seed(0)
    x = torch.randn(200, 301, requires_grad=True)
    y = dropout(x, p, True)
    kept = y.ne(0)
    assert 0 < kept.sum() < kept.numel()
    expected = x.detach().double() * kept / (1 - rounded(p))
    torch.testing.assert_close(y.detach().double(), expected, rtol=2e-7, atol=0)
    upstream = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(y, x, upstream)
    torch.testing.assert_close(gradient.double(), upstream.double() * kept / (1 - rounded(p)), rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype) -> None:
    """The type stays; the kept values are right to its precision, and the input is as it was."""
    torch.manual_seed(0)
    x = torch.randn(1003).to(dtype).requires_grad_()
    before = x.detach().clone()
    y = dropout(x, 0.3, True)
    assert y.dtype == dtype
    assert x.equal(before)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), x.double() * y.ne(0) / (1 - rounded(0.3)), rtol=1.5 * eps, atol=0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.dtype == dtype
    assert gradient.ne(0).equal(y.ne(0))


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (7, 3), (2, 3, 5), (0,), (0, 4), ()], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    """Any number of elements is served, a multiple of four or not, none included."""
    torch.manual_seed(0)
    results = torch.stack([dropout(torch.ones(shape), 0.5, True) for _ in range(200)])
    assert results.shape == (200, *shape)
    assert set(results.flatten().tolist()) == ({0.0, 2.0} if results.numel() else set())
    shares = results.eq(0).double().mean(dim=0)
    assert ((shares - 0.5).abs() < 4 * math.sqrt(0.25 / 200)).all()


@pytest.mark.parametrize(
    "x",
    [torch.randn(30, 50).T, torch.randn(9, 8, 7).transpose(0, 2)[::2], torch.randn(1, 40).expand(50, 40)],
    ids=["transposed", "sliced", "expanded"],
)
def test_not_contiguous(x: Tensor) -> None:
    """An input that is a view of another's memory gets a number for each of its elements."""
    torch.manual_seed(0)
    y = dropout(x, 0.5, True)
    kept = y.ne(0)
    assert y.equal(2 * x * kept)
    assert abs(kept.double().mean() - 0.5) < 4 * math.sqrt(0.25 / x.numel())
    assert len(kept.unique(dim=0)) > 1
    assert len(kept.unique(dim=1)) > 1


def test_reproducible() -> None:
    """The seed decides; the next call drops other elements."""
    first, again, other = (dropped(seed, 0.3, 1000) for seed in (5, 5, 6))
    assert first.equal(again)
    assert not first.equal(other)
    torch.manual_seed(5)
    one, two = (dropout(torch.ones(1000), 0.3, True) for _ in range(2))
    assert one.eq(0).double().equal(first)
    assert not one.equal(two)


@pytest.mark.parametrize("p", RATES)
def test_neighbours_are_independent(p: float) -> None:
    """The four elements of a number of 64 bits, and those of the next numbers, drop out without each other."""
    mask = dropped(0, p, COUNT)
    centred = (mask - mask.mean()) / mask.std()
    inside = torch.corrcoef(mask.reshape(-1, 4).T).triu(diagonal=1)
    assert inside.abs().max() < 4 / math.sqrt(COUNT / 4)
    for distance in (1, 2, 3, 4, 8, 512):
        assert abs((centred[distance:] * centred[:-distance]).mean()) < 4 / math.sqrt(COUNT)


def test_each_place_of_a_number_has_the_rate() -> None:
    """Of each four elements, the first drops out as often as the last."""
    shares = dropped(0, 0.1, COUNT).reshape(-1, 4).mean(dim=0)
    assert ((shares - 0.1).abs() < 4 * math.sqrt(0.09 / (COUNT / 4))).all()


def test_compiled() -> None:
    """Compiled code drops at the same rate, scales alike, and is one graph."""
    torch.manual_seed(0)
    x = torch.ones(1 << 16, requires_grad=True)
    y = torch.compile(dropout, fullgraph=True, backend="aot_eager")(x, 0.3, True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.equal(y)
    torch.testing.assert_close(y.detach().unique(), torch.tensor([0.0, 1 / 0.7]))
    assert abs(y.eq(0).double().mean() - 0.3) < 4 * math.sqrt(0.21 / x.numel())


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_places_in_the_model(norm_position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on the sums of embeddings and positions, on each sub-layer's output, and inside the FFN (§5.4)."""
    calls: list[tuple[float, bool]] = []

    def spy(x: Tensor, p: float, training: bool) -> Tensor:
        calls.append((p, training))
        return dropout(x, p, training)

    monkeypatch.setattr(modeling_vanilla_transformer, "dropout", spy)
    model = tiny(dropout=0.5, activation_dropout=0.25, norm_position=norm_position)
    encoder, decoder = [0.5, 0.25, 0.5], [0.5, 0.5, 0.25, 0.5]
    for training in (True, False):
        calls.clear()
        losses: list[Any] = [model.train(training)(input_ids=SRC, labels=LABELS).loss for _ in range(2)]
        expected = [0.5, *encoder * 2, 0.5, *decoder * 2]
        assert calls == [(p, training) for p in expected * 2]
        assert (losses[0] == losses[1]) != training
