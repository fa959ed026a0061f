"""Speed of greedy and beam search: new tokens a second of the same sources in both models."""

import time
from collections.abc import Iterator
from functools import partial

import torch
from transformers import PreTrainedModel

from .measure import Comparison, Row, take_turns
from .setting import Sizes, our_model, peer_model

SOURCE_LENGTH = 24
SEARCHES = {1: "greedy decoding", 4: "4 beams"}


def rows(sizes: Sizes, rounds: int) -> Iterator[Row]:
    """Both models with the same weights, random ones, so that a number of new tokens is asked for."""
    ours, marian = our_model(sizes, sizes.vocab_size), peer_model(sizes, sizes.vocab_size)
    ours.load_state_dict(marian.state_dict(), strict=False)
    ours.tie_weights()
    models = {"ours": ours, "Marian": marian}
    for num_beams, name in SEARCHES.items():
        works = {side: partial(tokens_per_second, model, sizes, num_beams) for side, model in models.items()}
        for work in works.values():
            work()
        compared = Comparison(*take_turns(works, rounds).values())
        yield compared.row(f"{name}, {sizes.sentences} sentences", "{:.0f} tok/s")


def tokens_per_second(model: PreTrainedModel, sizes: Sizes, num_beams: int) -> float:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(4, sizes.vocab_size, (sizes.sentences, SOURCE_LENGTH), generator=generator)
    model.eval()
    start = time.perf_counter()
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=num_beams,
        max_new_tokens=sizes.new_tokens,
        min_new_tokens=sizes.new_tokens,
        length_penalty=1.0,
    )
    return sizes.sentences * sizes.new_tokens / (time.perf_counter() - start)
