"""Speed as a ratio to a named peer: `make bench`.

The peer is transformers' Marian of the same shape. The two take turns in one run, and medians are compared: on a noisy
machine a ratio can be trusted where a second cannot.
"""

import platform
import statistics
import time
from collections.abc import Callable
from datetime import date

import torch
import transformers
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

SHAPE = {
    "vocab_size": 8000,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "scale_embedding": True,
    "activation_function": "relu",
}
ROUNDS = 5


def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """This model and Marian in the paper's base shape, vocabulary 8,000, with one set of weights."""
    torch.manual_seed(0)
    marian = MarianMTModel(MarianConfig(**SHAPE, forced_eos_token_id=None))
    ours = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(**SHAPE, position_encoding="sinusoidal_concat", layer_norm_eps=1e-5)
    )
    ours.load_state_dict(marian.state_dict(), strict=False)
    ours.tie_weights()
    return ours, marian


def training_step(model: PreTrainedModel) -> None:
    """Loss and gradients of 32 pairs of 24 tokens."""
    ids = torch.randint(4, 8000, (32, 24), generator=torch.Generator().manual_seed(1))
    model.train()
    model.zero_grad()
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()


def decode(num_beams: int) -> Callable[[PreTrainedModel], None]:
    """30 new tokens for each of 16 sources of 24 tokens."""
    ids = torch.randint(4, 8000, (16, 24), generator=torch.Generator().manual_seed(2))

    def run(model: PreTrainedModel) -> None:
        model.eval()
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=num_beams,
            max_new_tokens=30,
            min_new_tokens=30,
            length_penalty=1.0,
        )

    return run


def seconds(work: Callable[[PreTrainedModel], None], model: PreTrainedModel) -> float:
    start = time.perf_counter()
    work(model)
    return time.perf_counter() - start


def main() -> None:
    ours, marian = models()
    print(
        f"{date.today()}, {platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, ", end=""
    )
    print(f"transformers {transformers.__version__}; medians of {ROUNDS} rounds, fp32\n")
    print("| work | Marian | this model | speed-up |\n|---|---|---|---|")
    for name, work in (
        ("training step, 32 pairs of 24 tokens", training_step),
        ("greedy decoding, 16 sentences", decode(1)),
        ("4 beams, 16 sentences", decode(4)),
    ):
        for model in (ours, marian):
            work(model)
        pairs = [(seconds(work, marian), seconds(work, ours)) for _ in range(ROUNDS)]
        theirs, mine = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(marian_time / our_time for marian_time, our_time in pairs)
        print(f"| {name} | {theirs:.2f} s | {mine:.2f} s | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
