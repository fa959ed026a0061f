"""Cross-entropy of the predicted tokens (paper §5), with label smoothing (§5.4).

Shapes in comments: N tokens to predict, V vocabulary entries, d = d_model.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED_LABEL = -100
# Logits that are in memory at a time when the loss is computed in chunks: 16 MiB of float32, which caches still hold.
CHUNK_ELEMENTS = 1 << 22


def label_smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, epsilon: float = 0.0, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Cross-entropy against 1 - epsilon on the label and epsilon spread over the whole vocabulary, averaged: a scalar.

    The spread is over all V entries, the label's own included, as in `torch.nn.functional.cross_entropy` and in
    transformers' `LabelSmoother`; tensor2tensor spreads over the other V - 1.

    Args:
        logits: (B, T, V); half precision is computed in float32.
        labels: (B, T), -100 where there is nothing to predict.
        epsilon: epsilon_ls; 0 gives the negative log-likelihood.
        num_items_in_batch: labels to divide by, of all the batches of an update; `None` means those of this batch.
            Without any the loss is 0.
    """
    labels = labels.to(logits.device)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum", label_smoothing=epsilon
    )
    return total / _count(labels, num_items_in_batch)


def projected_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    epsilon: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
) -> Tensor:
    """`label_smoothed_cross_entropy` of the logits that an output projection gives, of which few exist at a time.

    Only real positions are projected, a chunk of them at a time, and a chunk's share of the gradients is computed with
    it: for a batch of 4,096 tokens and 37,000 entries that saves three tensors of 600 MB.

    Args:
        states: (B, T, d), what is projected.
        weight, bias: (V, d) and (1, V) of the projection.
        labels, epsilon, num_items_in_batch: as there.
    """
    labels = labels.to(states.device)
    real = labels.ne(IGNORED_LABEL)
    if not torch.is_grad_enabled():  # a parameter still says that it wants a gradient
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    total = ProjectedCrossEntropy.apply(states[real], weight, bias, labels[real], epsilon)
    return total / _count(labels, num_items_in_batch)


def _count(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    count = labels.ne(IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
    return torch.as_tensor(count, device=labels.device).reshape(()).clamp(min=1)


class ProjectedCrossEntropy(torch.autograd.Function):
    """The sum of the losses of states (N, d) and labels (N,); the gradients are found on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, epsilon: float
    ) -> Tensor:
        wanted, dtype = ctx.needs_input_grad, torch.promote_types(states.dtype, torch.float32)
        state_gradients = []
        weight_gradient = torch.zeros_like(weight, dtype=dtype) if wanted[1] else None
        bias_gradient = torch.zeros_like(bias, dtype=dtype) if bias is not None and wanted[2] else None
        total = states.new_zeros((), dtype=dtype)
        rows = max(1, CHUNK_ELEMENTS // weight.shape[0])
        device, projection = states.device.type, weight
        if torch.is_autocast_enabled(device) and states.dtype != torch.float64:  # which autocast leaves alone
            narrow = torch.get_autocast_dtype(device)
            states, projection = states.to(narrow), weight.to(narrow)  # once for all chunks
        for chunk, chunk_labels in zip(states.split(rows), labels.split(rows), strict=True):
            logits = F.linear(chunk, projection, bias if bias is None else bias[0])  # (n, V)
            log_p = logits.log_softmax(dim=-1, dtype=dtype)
            picked = log_p.gather(-1, chunk_labels[:, None]).sum()
            total -= (1 - epsilon) * picked + (epsilon * log_p.mean(dim=-1).sum() if epsilon else 0.0)
            if not any(wanted[:3]):
                continue
            # d loss / d logits = softmax - the smoothed target
            p = log_p.exp_()
            p.scatter_add_(-1, chunk_labels[:, None], p.new_full((len(chunk), 1), epsilon - 1))
            gradient = torch.sub(p, epsilon / weight.shape[0], out=logits)  # rounds to the type of the projection
            if bias_gradient is not None:
                bias_gradient += p.sum(dim=0) - len(chunk) * epsilon / weight.shape[0]
            if wanted[0]:
                state_gradients.append(gradient @ projection)
            if weight_gradient is not None:
                weight_gradient += gradient.T @ chunk
        # Autograd gives them the dtypes of what they are gradients of.
        ctx.gradients = (torch.cat(state_gradients) if state_gradients else None, weight_gradient, bias_gradient)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if gradient is None else gradient * upstream for gradient in ctx.gradients), None, None
