"""Models that are not as they were built: other linear maps, hooks, half precision."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import pad

from .common import SOURCES, WatchedSearch, call_of_all, close, compare, log_p
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
