"""The decoder, token by token, over hypotheses that share their source.

Shapes in comments: B sentences, K hypotheses of each, T new tokens, S source tokens, h heads, d = d_model.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS_AT_FIRST = 32  # for which there is room before keys and values are moved to a larger place


class SharedSourceDecoder:
    """The decoder, step by step, over all hypotheses of a batch of sentences.

    The hypotheses of a sentence stand where a sequence has its positions: (B, K, d). So they attend to one copy of the
    source's keys and values. Those of target tokens stay where they are written: after a step each hypothesis is told
    by the mask which columns are its own, instead of being given a copy in a new order.

    Args:
        decoder: the decoder of a model, in evaluation mode.
        encoder_states: (B, S, d).
        encoder_mask: (B, S), 1 for real tokens; `None`: all are.
        most: target positions of a sentence, over all its hypotheses, that may be needed.
    """

    def __init__(self, decoder: Any, encoder_states: Tensor, encoder_mask: Tensor | None, most: int) -> None:
        self.decoder = decoder
        self.source_mask: Tensor | None = None
        if encoder_mask is not None and not bool(encoder_mask.all()):
            self.source_mask = _additive(encoder_mask[:, None, None].bool(), encoder_states.dtype)  # (B, 1, 1, S)
        self.layers = [_LayerState(layer, encoder_states, most) for layer in decoder.layers]

    def read_prompt(self, prompt: Tensor) -> Tensor:
        """States of the first tokens (B, T): (B, T, d)."""
        length, device = prompt.shape[1], prompt.device
        causal = torch.ones((length, length), dtype=torch.bool, device=device).tril()[None, None]
        return self.read(prompt, torch.arange(length, device=device)[None], length, causal if length > 1 else None)

    def read(self, tokens: Tensor, position: Tensor, length: int, visible: Tensor | None = None) -> Tensor:
        """States of the next tokens (B, T): (B, T, d).

        They stand at `position` (1, T or 1), below `length`, and see the columns `visible` (B, 1, T, columns), or all;
        theirs are the last T.
        """
        decoder = self.decoder
        x = decoder.add_positions(decoder.embed(tokens, None), position, length)
        mask = None if visible is None else _additive(visible, x.dtype)
        for layer in self.layers:
            x = layer.forward(x, mask, self.source_mask)
        return decoder.layer_norm(x)

    def keep(self, sentences: Tensor) -> None:
        """Go on with some of the sentences, by their indices."""
        if self.source_mask is not None:
            self.source_mask = self.source_mask[sentences]
        for layer in self.layers:
            layer.keep(sentences)


class _LayerState:
    """A decoder layer with the keys and values that it has seen, source and target."""

    def __init__(self, layer: Any, encoder_states: Tensor, most: int) -> None:
        self.layer = layer
        self.most = most
        attention = layer.self_attn
        self.projections: list[Any] = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.sizes = [attention.d_k, attention.d_k, attention.d_v]
        self.product: nn.Linear | None = None
        # Not an adapter's, a quantised one, or one that was given another `forward`.
        if all(
            type(p) is nn.Linear and type(p.weight) is nn.Parameter and "forward" not in vars(p)
            for p in self.projections
        ):
            self.product = _one_product(self.projections)
        self.source = layer.encoder_attn.keys_and_values(encoder_states, None, True)
        self.watched = False  # whether the attention to the source is wanted,
        self.source_attention = encoder_states.new_empty(0)  # that of the last step, mean over heads (B, T, S)
        self.columns = 0
        self.target: list[Tensor] = []  # keys and values, (B, h, room, d_k or d_v)

    def forward(self, x: Tensor, mask: Tensor | None, source_mask: Tensor | None) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        layer = self.layer

        def self_attention(x: Tensor) -> Tensor:
            attention = layer.self_attn
            if self.product is None:
                parts = [projection(x) for projection in self.projections]
            else:
                parts = self.product(x).split([projection.out_features for projection in self.projections], dim=-1)
            query, key, value = (
                part.unflatten(-1, (-1, size)).transpose(1, 2) for part, size in zip(parts, self.sizes, strict=True)
            )  # (B, h, T, d_k)
            keys, values = self._append(key, value)
            heads = F.scaled_dot_product_attention(query, keys, values, mask, scale=attention.scaling)
            return attention.out_proj(heads.transpose(1, 2).flatten(2))

        def encoder_attention(x: Tensor) -> Tensor:
            attention = layer.encoder_attn
            query = attention.q_proj(x).unflatten(-1, (-1, attention.d_k)).transpose(1, 2)  # (B, h, T, d_k)
            keys, values = self.source
            if self.watched:
                scores = query @ keys.transpose(2, 3) * attention.scaling
                scores = scores if source_mask is None else scores + source_mask
                self.source_attention = scores.float().softmax(dim=-1).mean(dim=1)
            heads = F.scaled_dot_product_attention(query, keys, values, source_mask, scale=attention.scaling)
            return attention.out_proj(heads.transpose(1, 2).flatten(2))

        x = layer.residual(x, self_attention, layer.self_attn_layer_norm)
        x = layer.residual(x, encoder_attention, layer.encoder_attn_layer_norm)
        return layer.residual(x, layer.feed_forward, layer.final_layer_norm)

    def _append(self, *new: Tensor) -> list[Tensor]:
        """Write keys and values (B, h, T, d_k) behind those there; all of them."""
        begin, self.columns = self.columns, self.columns + new[0].shape[2]
        if not self.target or self.target[0].shape[2] < self.columns:
            room = min(self.most, max(self.columns * 2, new[0].shape[2] * STEPS_AT_FIRST))
            larger = [part.new_empty(*part.shape[:2], room, part.shape[3]) for part in new]
            for target, grown in zip(self.target, larger, strict=False):
                grown[:, :, :begin] = target[:, :, :begin]
            self.target = larger
        for target, part in zip(self.target, new, strict=True):
            target[:, :, begin : self.columns] = part
        return [target[:, :, : self.columns] for target in self.target]

    def keep(self, sentences: Tensor) -> None:
        self.source = tuple(part[sentences] for part in self.source)
        self.target = [part[sentences] for part in self.target]


def _one_product(projections: list[nn.Linear]) -> nn.Linear:
    """A linear map that gives the results of several, one behind the other."""
    weights: list[Tensor] = [projection.weight for projection in projections]
    biases: list[Tensor] = [projection.bias for projection in projections if projection.bias is not None]
    with torch.device("meta"):
        product = nn.Linear(weights[0].shape[1], sum(map(len, weights)), bias=bool(biases))
    product.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    if biases:
        product.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return product


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)
