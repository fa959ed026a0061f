"""What the parity tests share: models with random weights, padded batches, and the measure of agreement."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

IGNORED_LABEL = -100

SMALL: dict[str, Any] = {
    "vocab_size": 23,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 64,
    "dropout": 0.0,
}


def model_with(seed: int = 0, attention: str = "sdpa", **fields: Any) -> VanillaTransformerForConditionalGeneration:
    """A small model in evaluation mode, its weights random; `fields` are the config's, over those of `SMALL`."""
    config = VanillaTransformerConfig(**{**SMALL, **fields}, attn_implementation=attention)
    model = VanillaTransformerForConditionalGeneration(config).eval()
    randomize(model, seed)
    return model


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Weights that leave nothing flat: attention and logits far from uniform, no bias at 0, no norm's weight at 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.copy_(0.3 * noise)
        elif name.endswith("norm.weight"):
            parameter.copy_(1.0 + 0.3 * noise)
        else:
            parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)


@dataclass(frozen=True)
class Batch:
    """Ids of both sides: `source` and `source_mask` (B, S), `target_in`, `target_mask` and `labels` (B, T)."""

    source: Tensor
    source_mask: Tensor
    target_in: Tensor
    target_mask: Tensor
    labels: Tensor

    def inputs(self) -> dict[str, Tensor]:
        """The arguments of `forward`. The decoder needs no mask as long as its padding comes last."""
        return {
            "input_ids": self.source,
            "attention_mask": self.source_mask,
            "decoder_input_ids": self.target_in,
            "labels": self.labels,
        }


def random_batch(
    seed: int,
    shape: tuple[int, int, int],
    *,
    ids: range = range(3, 23),
    target_ids: range | None = None,
    pad: int = 0,
    start: int = 1,
    source_padding: str = "right",
    target_padding: str = "right",
) -> Batch:
    """Random ids in the shape (B, S, T), padded unless a row is the first, which is full.

    Padding stands on the `"left"`, on the `"right"`, or on `"both"` sides of a row. Padding has the label -100, and
    so have some real positions. Labels and decoder input are drawn apart: neither is the other, shifted.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, source_length, target_length = shape

    def draw(length: int, of: range) -> Tensor:
        return torch.randint(of.start, of.stop, (batch, length), generator=generator)

    def mask(length: int, padding: str) -> Tensor:
        rows = torch.zeros(batch, length, dtype=torch.long)
        for row in range(batch):
            real = length if row == 0 else int(torch.randint(1, length + 1, (), generator=generator))
            spare = length - real
            first = {"left": spare, "right": 0, "both": (spare + 1) // 2}[padding]
            rows[row, first : first + real] = 1
        return rows

    source_mask, target_mask = mask(source_length, source_padding), mask(target_length, target_padding)
    source = draw(source_length, ids).masked_fill(source_mask == 0, pad)
    target_in = draw(target_length, target_ids or ids)
    target_in[target_mask.cumsum(dim=1) == 1] = start
    target_in = target_in.masked_fill(target_mask == 0, pad)
    labels = draw(target_length, target_ids or ids)
    ignored = torch.rand(labels.shape, generator=generator) < 0.2
    ignored[0, 0] = False  # something is left to predict
    labels = labels.masked_fill(ignored | (target_mask == 0), IGNORED_LABEL)
    return Batch(source, source_mask, target_in, target_mask, labels)


def run(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits, loss, and each parameter's gradient, a tied one under each of its names."""
    model.zero_grad()
    output = model(**inputs)
    output.loss.backward()
    parameters = model.named_parameters(remove_duplicate=False)
    gradients = {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}
    return output.logits.detach(), output.loss.detach(), gradients


def assert_close(
    actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-4, scale: float | None = None
) -> None:
    """No difference above `tolerance` times `scale`, by default the largest magnitude expected, which is not 0."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    largest = expected.abs().max().item() if scale is None else scale
    assert largest > 0, f"{what}: nothing but zeros to compare with"
    difference = (actual.double() - expected.double()).abs().max().item()
    assert difference <= tolerance * largest, f"{what}: off by {difference:.2e} where the largest is {largest:.2e}"


def assert_gradients_close(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-4
) -> None:
    """The same names, and under each the same gradient, to its own scale or a hundredth of the largest one's.

    The latter for what is small by cancellation or is 0 but for rounding, as a key's bias, which adds the same to each
    score of a query.
    """
    assert set(actual) == set(expected)
    overall = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        scale = max(gradient.abs().max().item(), 1e-2 * overall)
        assert_close(actual[name], gradient, f"gradient of {name}", tolerance, scale)


Result = TypeVar("Result")


def captured(modules: Iterable[nn.Module], call: Callable[[], Result]) -> tuple[list[tuple[Tensor, Tensor]], Result]:
    """The first argument and the output of each module during `call`, in which each runs once; and its result."""
    modules = list(modules)
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        assert module not in found, "a module ran twice"
        found[module] = (arguments[0], output)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        result = call()
    return [found[module] for module in modules], result
