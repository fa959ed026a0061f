"""The Transformer of "Attention Is All You Need" (2017) in float64 NumPy: logits, loss and gradients.

A statement of the paper to hold other implementations against, without dropout, label smoothing or any care for speed.
It reads the weights from a flat dict named like a BART state dict, where a linear map's weight has shape (out, in).
Sizes come from the weights' shapes, and the number of layers from their names. Entries that the model does not read
are ignored, and their gradient is zero.

Letters of the shapes: B batch, S source length, T target length, V vocabulary, d model width, h heads, k and v the
widths of one head's keys and values.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.integer[Any]]
Mask: TypeAlias = npt.NDArray[np.bool_]

IGNORED_LABEL = -100


# Reverse-mode differentiation


@dataclass(eq=False)
class Node:
    """A value with, for each node it was computed from, the map from its own gradient to that node's share."""

    value: Array
    parents: tuple[tuple["Node", Callable[[Array], Array]], ...] = ()
    order: int = field(default_factory=itertools.count().__next__)


Weights: TypeAlias = Mapping[str, Node]


def backward(output: Node) -> dict[Node, Array]:
    """The gradients of a scalar node with respect to each node it depends on, by the chain rule."""
    reached, pending = {output}, [output]
    while pending:
        for parent, _ in pending.pop().parents:
            if parent not in reached:
                reached.add(parent)
                pending.append(parent)
    gradient = {node: np.zeros_like(node.value) for node in reached}
    gradient[output] = np.ones_like(output.value)
    for node in sorted(reached, key=lambda node: node.order, reverse=True):  # a node is made after its parents
        for parent, pull_back in node.parents:
            gradient[parent] = gradient[parent] + pull_back(gradient[node])
    return gradient


def einsum(subscripts: str, left: Node, right: Node) -> Node:
    """A product of two arrays. Each index of one operand stands in the other or in the result."""
    operands, out = subscripts.split("->")
    a, b = operands.split(",")
    return Node(
        np.einsum(subscripts, left.value, right.value, optimize=True),
        (
            (left, lambda g: np.einsum(f"{out},{b}->{a}", g, right.value, optimize=True)),
            (right, lambda g: np.einsum(f"{a},{out}->{b}", left.value, g, optimize=True)),
        ),
    )


def add(left: Node, right: Node) -> Node:
    """left + right, where `right` may lack leading axes of `left`."""
    missing = tuple(range(left.value.ndim - right.value.ndim))
    return Node(left.value + right.value, ((left, lambda g: g), (right, lambda g: g.sum(axis=missing))))


def scale(x: Node, factor: float) -> Node:
    return Node(x.value * factor, ((x, lambda g: g * factor),))


def reshape(x: Node, *shape: int) -> Node:
    return Node(x.value.reshape(shape), ((x, lambda g: g.reshape(x.value.shape)),))


def relu(x: Node) -> Node:
    return Node(np.maximum(x.value, 0.0), ((x, lambda g: g * (x.value > 0.0)),))


def lookup(table: Node, ids: Ids) -> Node:
    """The rows of `table` (V, d) at `ids` (B, T): (B, T, d)."""

    def pull_back(g: Array) -> Array:
        rows = np.zeros_like(table.value)
        np.add.at(rows, ids, g)  # an id that occurs twice counts twice
        return rows

    return Node(table.value[ids], ((table, pull_back),))


def masked_softmax(x: Node, allowed: Mask) -> Node:
    """Softmax over the last axis among the allowed entries, of which each row needs at least one."""
    masked = np.where(allowed, x.value, -np.inf)
    exponentials = np.exp(masked - masked.max(axis=-1, keepdims=True))
    p = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return Node(p, ((x, lambda g: p * (g - (g * p).sum(axis=-1, keepdims=True))),))


def standardize(x: Node, eps: float) -> Node:
    """(x - mean) / sqrt(var + eps) over the last axis, with the population variance."""
    deviation = np.sqrt(x.value.var(axis=-1, keepdims=True) + eps)
    z = (x.value - x.value.mean(axis=-1, keepdims=True)) / deviation

    def pull_back(g: Array) -> Array:
        return (g - g.mean(axis=-1, keepdims=True) - z * (g * z).mean(axis=-1, keepdims=True)) / deviation

    return Node(z, ((x, pull_back),))


def mean_negative_log_likelihood(scores: Node, labels: Ids) -> Node:
    """The mean of -log softmax(scores)[label] over the labels (B, T) that are not ignored; scores (B, T, V)."""
    counted = np.nonzero(labels != IGNORED_LABEL)
    x, label = scores.value[counted], labels[counted]  # (N, V), (N,)
    row = np.arange(len(label))
    shifted = x - x.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

    def pull_back(g: Array) -> Array:
        error = np.exp(log_p)
        error[row, label] -= 1.0
        full = np.zeros_like(scores.value)
        full[counted] = g * error / len(label)
        return full

    return Node(np.asarray(-log_p[row, label].mean()), ((scores, pull_back),))


# The model


def linear(weights: Weights, name: str, x: Node) -> Node:
    """x W^T + b for x (B, T, in), W (out, in), b (out); without b where the dict has none."""
    y = einsum("bti,oi->bto", x, weights[f"{name}.weight"])
    return add(y, weights[f"{name}.bias"]) if f"{name}.bias" in weights else y


def add_and_norm(weights: Weights, name: str, x: Node, sublayer: Node, eps: float) -> Node:
    """§3.1: LayerNorm(x + Sublayer(x)), both (B, T, d)."""
    normal = standardize(add(x, sublayer), eps)
    return add(einsum("btd,d->btd", normal, weights[f"{name}.weight"]), weights[f"{name}.bias"])


def attention(query: Node, key: Node, value: Node, allowed: Mask) -> Node:
    """§3.2.1, equation 1: softmax(Q K^T / sqrt(d_k)) V in each head, with illegal keys at minus infinity."""
    # query (B, T, h, k), key (B, S, h, k), value (B, S, h, v), allowed broadcasts to (B, h, T, S)
    scores = scale(einsum("bthk,bshk->bhts", query, key), 1.0 / np.sqrt(query.value.shape[-1]))
    return einsum("bhts,bshv->bthv", masked_softmax(scores, allowed), value)  # (B, T, h, v)


def multi_head_attention(weights: Weights, name: str, x: Node, memory: Node, allowed: Mask, heads: int) -> Node:
    """§3.2.2: Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    Queries come from `x` (B, T, d), keys and values from `memory` (B, S, d). Head i has the i-th block of rows of the
    projections' weights: q and k (h k, d), v (h v, d). The output's weight is (d, h v).
    """

    def project(which: str, inputs: Node) -> Node:
        projected = linear(weights, f"{name}.{which}_proj", inputs)  # (B, T, h k)
        batch, length, width = projected.value.shape
        return reshape(projected, batch, length, heads, width // heads)  # (B, T, h, k)

    context = attention(project("q", x), project("k", memory), project("v", memory), allowed)
    batch, length, _, width = context.value.shape
    return linear(weights, f"{name}.out_proj", reshape(context, batch, length, heads * width))  # (B, T, d)


def feed_forward(weights: Weights, name: str, x: Node) -> Node:
    """§3.3, equation 2: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2."""
    return linear(weights, f"{name}.fc2", relu(linear(weights, f"{name}.fc1", x)))


def positional_encoding(positions: Ids, width: int) -> Array:
    """§3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)); (...) to (..., d)."""
    column = np.arange(width)
    angle = positions[..., None] / 10000.0 ** ((column - column % 2) / width)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def embed(weights: Weights, stack: str, ids: Ids, positions: Ids) -> Node:
    """§3.4 and §3.5: the embedding times sqrt(d), plus the positional encoding; (B, T) to (B, T, d)."""
    own = f"model.{stack}.embed_tokens.weight"
    table = weights[own if own in weights else "model.shared.weight"]
    width = table.value.shape[1]
    return add(scale(lookup(table, ids), np.sqrt(width)), Node(positional_encoding(positions, width)))


def layer_names(weights: Weights, stack: str) -> list[str]:
    """`model.{stack}.layers.{i}` for each i from 0 on that the dict has."""
    names = (f"model.{stack}.layers.{i}" for i in itertools.count())
    return list(itertools.takewhile(lambda name: f"{name}.fc1.weight" in weights, names))


def encode(weights: Weights, source: Ids, mask: Mask, heads: int, eps: float) -> Node:
    """§3.1, encoder: self-attention, then the feed-forward network, in each layer; (B, S) to (B, S, d)."""
    positions: Ids = np.cumsum(mask, axis=1) - mask  # (B, S): how many real tokens stand before
    allowed = mask[:, None, None, :]  # (B, 1, 1, S)
    x = embed(weights, "encoder", source, positions)
    for name in layer_names(weights, "encoder"):
        attended = multi_head_attention(weights, f"{name}.self_attn", x, x, allowed, heads)
        x = add_and_norm(weights, f"{name}.self_attn_layer_norm", x, attended, eps)
        x = add_and_norm(weights, f"{name}.final_layer_norm", x, feed_forward(weights, name, x), eps)
    return x


def decode(weights: Weights, target_in: Ids, memory: Node, mask: Mask, heads: int, eps: float) -> Node:
    """§3.1, decoder: masked self-attention, attention to the encoder's output, then the feed-forward network."""
    length = target_in.shape[1]
    causal = np.tri(length, dtype=np.bool_)  # (T, T): position i sees positions j <= i
    allowed = mask[:, None, None, :]  # (B, 1, 1, S)
    x = embed(weights, "decoder", target_in, np.arange(length))  # (B, T, d)
    for name in layer_names(weights, "decoder"):
        attended = multi_head_attention(weights, f"{name}.self_attn", x, x, causal, heads)
        x = add_and_norm(weights, f"{name}.self_attn_layer_norm", x, attended, eps)
        attended = multi_head_attention(weights, f"{name}.encoder_attn", x, memory, allowed, heads)
        x = add_and_norm(weights, f"{name}.encoder_attn_layer_norm", x, attended, eps)
        x = add_and_norm(weights, f"{name}.final_layer_norm", x, feed_forward(weights, name, x), eps)
    return x


def transformer(weights: Weights, source: Ids, target_in: Ids, heads: int, mask: Mask | None, eps: float) -> Node:
    """Figure 1 up to the softmax: the scores (B, T, V)."""
    real = np.ones(source.shape, dtype=np.bool_) if mask is None else mask.astype(np.bool_)
    x = decode(weights, target_in, encode(weights, source, real, heads, eps), real, heads, eps)
    # §3.4: the pre-softmax linear transformation is the embedding matrix, here without the factor sqrt(d).
    output = "lm_head.weight" if "lm_head.weight" in weights else "model.shared.weight"
    return einsum("btd,vd->btv", x, weights[output])


def as_nodes(weights: Mapping[str, Array]) -> dict[str, Node]:
    return {name: Node(np.asarray(value, dtype=np.float64)) for name, value in weights.items()}


# The interface


def logits(
    weights: Mapping[str, Array],
    source: Ids,
    target_in: Ids,
    *,
    heads: int,
    source_mask: Mask | None = None,
    layer_norm_eps: float = 1e-6,
) -> Array:
    """The scores before the softmax, (B, T, V), for source ids (B, S) and decoder input ids (B, T).

    `source_mask` (B, S) is true at real tokens and defaults to all true. Padding is no key of any attention, and a
    token's position is the number of real tokens before it, on whichever side the padding stands.
    """
    return transformer(as_nodes(weights), source, target_in, heads, source_mask, layer_norm_eps).value


def cross_entropy(logits: Array, labels: Ids) -> float:
    """The mean negative log-likelihood, in nats, of the labels (B, T) other than -100 under the scores (B, T, V)."""
    return float(mean_negative_log_likelihood(Node(np.asarray(logits, dtype=np.float64)), labels).value)


def gradients(
    weights: Mapping[str, Array],
    source: Ids,
    target_in: Ids,
    labels: Ids,
    *,
    heads: int,
    source_mask: Mask | None = None,
    layer_norm_eps: float = 1e-6,
) -> dict[str, Array]:
    """The gradient of `cross_entropy(logits(...), labels)` with respect to each entry of `weights`.

    Each name is a variable of its own. Where a state dict lists one tied matrix under several names, its gradient is
    the sum over these names; where it lists `model.shared.weight` alone, that entry already holds the sum.
    """
    nodes = as_nodes(weights)
    scores = transformer(nodes, source, target_in, heads, source_mask, layer_norm_eps)
    gradient = backward(mean_negative_log_likelihood(scores, labels))
    return {name: gradient[node] if node in gradient else np.zeros_like(node.value) for name, node in nodes.items()}
