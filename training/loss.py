"""Label smoothing (paper §5.4)."""

import torch
from torch import Tensor

IGNORED_LABEL = -100


def label_smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, epsilon: float, num_items_in_batch: Tensor | int | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy against (1 - epsilon) on the label and epsilon spread over the whole vocabulary, and plain NLL.

    The spread is over all V entries, the label's own included, as in `torch.nn.functional.cross_entropy` and in
    transformers' `LabelSmoother`; tensor2tensor spreads over the other V - 1. Only real positions are computed, in one
    pass over their logits.

    Args:
        logits: (B, T, V).
        labels: (B, T), -100 where there is nothing to predict.
        num_items_in_batch: labels of all the batches of an update, to divide by; `None` means those of this batch.

    Returns:
        The loss, and the negative log-likelihood without smoothing (detached): two scalars, 0 without any label.
    """
    real = labels.ne(IGNORED_LABEL)
    logits, labels = logits[real], labels[real]  # (N, V), (N,)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_normalizer = logits.logsumexp(dim=-1)
    nll = (log_normalizer - logits.gather(-1, labels[:, None])[:, 0]).sum()
    spread = (log_normalizer - logits.mean(dim=-1)).sum()
    items = labels.numel() if num_items_in_batch is None else num_items_in_batch
    count = torch.as_tensor(items, device=logits.device).reshape(()).clamp(min=1)
    return ((1 - epsilon) * nll + epsilon * spread) / count, nll.detach() / count
