"""Computing without padding: what works position by position (§3.3) sees real positions only, attention a rectangle.

Shapes in comments: B sentences, T tokens of the longest, N real positions of all sentences together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


class PutBack(torch.autograd.Function):
    """Rows (N, ...) at `indices` (N,) among zeros. torch's own gradient of that keeps the rows, which are large."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(indices)
        return rows.new_zeros(length, *rows.shape[1:]).index_copy_(0, indices, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        return gradient.index_select(0, indices), None, None


class Padded:
    """The batch as it is."""

    def pack(self, x: Tensor) -> Tensor:
        return x

    def unpack(self, x: Tensor) -> Tensor:
        return x


class Unpadded(Padded):
    """The real positions of a batch as one sentence of N tokens.

    Args:
        real: (B, T), what is not padding.
    """

    def __init__(self, real: Tensor) -> None:
        self.shape = real.shape
        self.indices = real.flatten().nonzero()[:, 0]  # (N,)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (1, N, ...)."""
        return x.flatten(0, 1).index_select(0, self.indices.to(x.device))[None]

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, ...) -> (B, T, ...), 0 at padding."""
        return PutBack.apply(x[0], self.indices.to(x.device), self.shape.numel()).unflatten(0, self.shape)


def layout(real: Tensor | None) -> Padded:
    """How a batch is computed whose real positions are known (B, T), or not."""
    return Padded() if real is None or real.dim() != 2 else Unpadded(real)


def needed_positions(labels: Tensor, ignored: int) -> Tensor:
    """(B, T) -> (B, T): the positions that predict a label, and all before them, which they see."""
    return labels.ne(ignored).flip(-1).cumsum(dim=-1).flip(-1) > 0


def attention_between(target: Padded, source: Padded, attend: AttentionFunction) -> AttentionFunction:
    """`attend` for packed queries of the target, and keys of the target where it is causal, of the source elsewhere.

    The masks are those of the padded batch.
    """
    if not (isinstance(target, Unpadded) or isinstance(source, Unpadded)):
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
