"""What the tests of the searches share: searches that are watched, and what it means that two agree."""

import copy
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tiny import pad
from vanilla_transformer import beam_search_vanilla_transformer as engine
from vanilla_transformer.incremental_decoder_vanilla_transformer import SharedSourceDecoder

SOURCES = [[11, 12, 13, 2], [21, 22, 23, 24, 25, 26, 2], [2], [41, 42, 43, 44, 2], [31, 32, 2]]
ROUNDING = 1e-5  # scores nearer than this are in no certain order in float32


class WatchedSearch(engine.BeamSearch):
    """A search that keeps what happened in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sizes: list[int] = []  # sentences in the batch, step by step
        self.gaps = torch.full((len(self.ids),), torch.inf)  # least distance between two candidates of a sentence

    def _continue(self, *args: Any) -> Any:
        candidates, ending = super()._continue(*args)
        self.sizes.append(len(self.ids))
        before, after = candidates.scores[:, :-1], candidates.scores[:, 1:]
        real = (after > engine.IMPOSSIBLE / 2) & self.is_open[:, None]
        gaps = torch.where(real, before - after, torch.inf).amin(dim=1)
        self.gaps[self.ids] = self.gaps[self.ids].minimum(gaps)
        return candidates, ending


class WatchedDecoder(SharedSourceDecoder):
    """A decoder that keeps what was asked of it; a greedy search has one."""

    def __init__(self, decoder: Any, encoder_states: Tensor, *args: Any) -> None:
        super().__init__(decoder, encoder_states, *args)
        self.ids = torch.arange(len(encoder_states))  # the sentences in the batch
        self.steps: list[tuple[Tensor, Tensor]] = []  # those of each step, and the states behind their last tokens

    @property
    def sizes(self) -> list[int]:
        """Sentences in the batch, step by step."""
        return [len(ids) for ids, _ in self.steps]

    def read(self, tokens: Tensor, *args: Any) -> Tensor:
        states = super().read(tokens, *args)
        self.steps.append((self.ids, states[:, -1]))
        return states

    def keep(self, sentences: Tensor) -> None:
        self.ids = self.ids[sentences]
        super().keep(sentences)


def compare(model: Any, searches: list[WatchedSearch], **call: Any) -> Any:
    """What our search gives, which has to be what transformers' own does in as many steps."""
    call["return_dict_in_generate"] = True
    before = len(searches)
    ours = model.generate(**copy.deepcopy(call))  # transformers repeats the rows of encoder outputs in place
    assert len(searches) == before + 1
    # transformers 5.17 takes the source's vocabulary for the target's.
    with mock.patch.object(model.config, "vocab_size", model.config.target_vocab_size):
        theirs = model.generate(**copy.deepcopy(call), output_scores=True)
    assert len(searches) == before + 1
    search = searches[-1]
    certain = search.gaps > ROUNDING
    rows = certain.repeat_interleave(len(ours.sequences) // len(certain))
    if certain.all():
        assert search.new == len(theirs.scores)
        assert ours.sequences.shape == theirs.sequences.shape
        assert ours.beam_indices.shape == theirs.beam_indices.shape
    for name, fill in (("sequences", 0), ("beam_indices", -1)):
        parts = [getattr(output, name)[rows] for output in (ours, theirs)]
        width = max(part.shape[1] for part in parts)
        ids = [F.pad(part, (0, width - part.shape[1]), value=fill).tolist() for part in parts]
        assert ids[0] == ids[1], name
    tolerance = 1e-4 if (call.get("length_penalty") or 0) < 0 else 1e-5  # a negative penalty multiplies
    close(ours.sequences_scores[rows], theirs.sequences_scores[rows], tolerance)
    return ours


def compare_greedy(model: Any, greedy: list[WatchedDecoder], **call: Any) -> Tensor:
    """The ids that our greedy search gives, which have to be those of transformers' own, as have its logits."""
    call = {"num_beams": 1} | call
    before = len(greedy)
    ours = model.generate(**copy.deepcopy(call))
    assert len(greedy) == before + 1
    theirs = model.generate(**copy.deepcopy(call), return_dict_in_generate=True, output_logits=True)
    assert len(greedy) == before + 1
    assert ours.tolist() == theirs.sequences.tolist()
    for (sentences, states), logits in zip(greedy[-1].steps, theirs.logits, strict=True):
        close(model.project(states).float(), logits[sentences])
    return ours


def close(x: Tensor, y: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(x, y, rtol=1e-5, atol=tolerance)


def lengths(output: Any) -> list[int]:
    """New tokens of each hypothesis, end token counted."""
    return output.beam_indices.ge(0).sum(dim=1).tolist()


def by_sentence(output: Any, sentences: int, beams: int, prompt: int = 1) -> list[list[tuple[list[int], list[int]]]]:
    """Of each sentence the hypotheses: new tokens, and the beams that they came from."""
    rows = []
    for tokens, origins, length in zip(
        output.sequences.tolist(), output.beam_indices.tolist(), lengths(output), strict=True
    ):
        rows.append((tokens[prompt : prompt + length], [origin % beams for origin in origins[:length]]))
    each = len(rows) // sentences
    for row, origins in enumerate(output.beam_indices):
        assert (origins[origins >= 0] // beams == row // each).all()
    return [rows[i : i + each] for i in range(0, len(rows), each)]


def log_p(model: Any, source: list[int], target: list[int], prompt: int = 1) -> float:
    """The log-probability of the tokens behind the prompt, from one plain pass."""
    logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target[:-1]])).logits[0]
    table = logits[prompt - 1 :].detach().numpy().astype(np.float64)
    table = table - table.max(axis=1, keepdims=True)
    table = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    return float(table[np.arange(len(table)), target[prompt:]].sum())


def call_of_all() -> dict[str, Any]:
    ids, mask = pad(SOURCES)
    return {"inputs": ids, "attention_mask": mask, "max_new_tokens": 6, "num_return_sequences": 2}
