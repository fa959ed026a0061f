"""Computing without padding: what works position by position (§3.3) sees real positions only, attention a rectangle.

Shapes in comments: B sentences, T tokens of the longest, N real positions of all sentences together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.utils import is_tracing

from .loss_vanilla_transformer import IGNORED_LABEL

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


class PutBack(torch.autograd.Function):
    """Rows (N, ...) at `indices` (N,) among zeros. torch's own gradient of that keeps the rows, which are large."""

    @staticmethod
    def forward(rows: Tensor, indices: Tensor, length: int) -> Tensor:
        return rows.new_zeros(length, *rows.shape[1:]).index_copy_(0, indices, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        return gradient.index_select(0, indices), None, None


class Layout:
    """A batch as it is, or its real positions as one sentence of N tokens.

    Args:
        real: (B, T), what is not padding. As it is: `None`, a mask of another form, and any mask in code that is
            compiled or traced, for which N is not a fixed number.
    """

    def __init__(self, real: Tensor | None) -> None:
        self.indices: Tensor | None = None
        if real is not None and real.dim() == 2 and not is_tracing(real):
            self.shape = real.shape
            self.indices = real.flatten().nonzero()[:, 0]  # (N,)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...), or (1, T, ...) for all sentences alike, -> (1, N, ...)."""
        if self.indices is None:
            return x
        x = x.expand(*self.shape, *x.shape[2:]).flatten(0, 1)
        return x.index_select(0, self.indices.to(x.device))[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...), 0 at padding."""
        if self.indices is None:
            return x
        return PutBack.apply(x[0], self.indices.to(x.device), self.shape.numel()).unflatten(0, self.shape)


def needed_positions(labels: Tensor) -> Tensor:
    """(B, T) -> (B, T): the positions that predict a label, and all before them, which they see."""
    return labels.ne(IGNORED_LABEL).flip(-1).cumsum(dim=-1).flip(-1) > 0


def attention_between(target: Layout, source: Layout, attend: AttentionFunction) -> AttentionFunction:
    """`attend` for packed queries of the target, and keys of the target where it is causal, of the source elsewhere.

    The masks are those of the padded batch.
    """
    if target.indices is None and source.indices is None:
        return attend

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        keys = target if module.is_causal else source
        padded = (
            part.unpack(x.transpose(1, 2)).transpose(1, 2) for part, x in ((target, query), (keys, key), (keys, value))
        )
        heads, weights = attend(module, *padded, attention_mask, **kwargs)  # (B, T, h, d_v)
        return target.pack(heads), weights

    return attention
