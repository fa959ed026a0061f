"""Models and calls of `generate` for the searches, made so that texts end early, late, and never."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from tests.tiny import pad, scale, tiny
from vanilla_transformer import VanillaTransformerForConditionalGeneration


def likes_to_end(
    seed: int, bias: float, factor: float = 4.0, **changes: Any
) -> VanillaTransformerForConditionalGeneration:
    """A random model in float64, biases and norms too, that adds `bias` to the logits of its end tokens."""
    model = scale(tiny(seed, final_logits_bias=True, **changes), factor).double()
    ends = model.config.eos_token_id
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
        assert model.final_logits_bias is not None
        model.final_logits_bias[0, ends] = bias
    return model


@torch.no_grad()
def chain(logits: Tensor, positions: float = 0.0) -> VanillaTransformerForConditionalGeneration:
    """A model whose next token depends on the last one alone: row t of `logits` (V, V) is what follows token t.

    `positions`: how much its position adds. Without, texts of the same pairs of tokens are equally probable.
    """
    size = len(logits)
    sizes: dict[str, Any] = {"vocab_size": size, "d_model": size, "decoder_layers": 1, "encoder_layers": 1}
    model = tiny(norm_position="pre", scale_embedding=False, tie_word_embeddings=False, **sizes).double()
    decoder = model.model.decoder
    decoder.embed_tokens.weight.copy_(torch.eye(size))
    decoder.embed_positions.weight.mul_(positions)
    decoder.layer_norm = nn.Identity()
    for layer in decoder.layers:
        for last in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
            last.weight.zero_()
            last.bias.zero_()
    model.lm_head.weight.copy_(logits.T)
    return model


def several(kind: str = "gnmt", **settings: Any) -> dict[str, Any]:
    """A call for eight sentences whose searches end at different steps."""
    return {
        "inputs": torch.tensor([[5, 2]] * 8),
        "decoder_input_ids": torch.tensor([[1, token] for token in range(6, 14)]),
        "num_beams": 3,
        "num_return_sequences": 3,
        "max_new_tokens": 25,
        "length_penalty_kind": kind,
        "return_dict_in_generate": True,
    } | settings


def uneven_chain(seed: int) -> VanillaTransformerForConditionalGeneration:
    return chain(torch.randn(16, 16, generator=torch.Generator().manual_seed(seed)) * 2.0, 0.1)


MODELS: list[dict[str, Any]] = [
    {},
    {"encoder_layers": 1, "decoder_layers": 3, "decoder_attention_heads": 4, "d_k": 5, "d_v": 3},
    {"position_encoding": "learned", "position_offset": 1},
    {"norm_position": "pre", "position_offset": 2},
    {"position_encoding": "sinusoidal_concat", "attention_bias": False},
    {"position_encoding": "sinusoidal_tensor2tensor", "scale_embedding": False},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 30},
    {"tie_word_embeddings": False, "norm_position": "pre", "d_v": 4},
    {"eos_token_id": [2, 5, 7]},
    {"eos_token_id": [2, 17, 23, 29], "pad_token_id": 49},
]
INPUTS = ["right", "left", "unmasked", "embeddings", "states", "prompt", "prompt without start"]
# Sizes of matrices and biases of the end token with which texts end early, late, or never.
INCLINATIONS = [(1.5, 3.0), (1.5, 4.0), (3.0, 3.0), (3.0, 7.0), (6.0, 6.0), (6.0, 12.0), (4.0, -1e4)]


def beam_settings(draw: random.Random) -> dict[str, Any]:
    beams = draw.choice([2, 2, 4, 4, 4, 5, 5, 21])
    return {
        "num_beams": beams,
        "num_return_sequences": draw.choice([1, 1, 2, beams]),
        "early_stopping": draw.choice([False, "never", True]),
        "length_penalty_kind": draw.choice(["gnmt", "power"]),
        "length_penalty": draw.choice([0.0, 0.6, 1.0, 2.0, -1.0]),
        "max_new_tokens": draw.choice([1, 2, 5, 9, 14]),
    }


def greedy_settings(draw: random.Random) -> dict[str, Any]:
    return {"num_beams": 1, "max_new_tokens": draw.choice([1, 2, 5, 9, 14])}


@torch.no_grad()
def sample(
    seed: int, settings: Callable[[random.Random], dict[str, Any]] = beam_settings
) -> tuple[VanillaTransformerForConditionalGeneration, dict[str, Any]]:
    """A model and a call of `generate`, drawn from all that has to agree."""
    draw = random.Random(seed)
    factor, bias = draw.choice(INCLINATIONS)
    model = likes_to_end(seed, bias, factor, **MODELS[seed % len(MODELS)])
    sources = [[draw.randrange(3, 49) for _ in range(draw.randrange(9))] + [2] for _ in range(draw.randint(1, 7))]
    kind = draw.choice(INPUTS)
    side = "left" if kind == "left" else "right"
    ids, mask = pad(sources, side, value=model.config.pad_token_id or 0, extra=draw.randrange(2))
    call: dict[str, Any] = {"inputs": ids}
    if kind != "unmasked":
        call["attention_mask"] = mask
    if kind == "embeddings":
        call["inputs_embeds"] = model.get_input_embeddings()(call.pop("inputs"))
    elif kind == "states":
        states = model.get_encoder()(input_ids=call.pop("inputs"), attention_mask=mask).last_hidden_state
        call["encoder_outputs"] = BaseModelOutput(states)
    elif "prompt" in kind:
        begin = [] if "without" in kind else [1]
        call["decoder_input_ids"] = torch.tensor([[*begin, draw.randrange(8, 17), 9] for _ in sources])
    return model, call | settings(draw)


def sample_chain(
    seed: int, settings: Callable[[random.Random], dict[str, Any]] = beam_settings
) -> tuple[VanillaTransformerForConditionalGeneration, dict[str, Any]]:
    """A model whose texts end at many lengths, and a call with a prompt of its own for each sentence."""
    draw = random.Random(seed)
    size = 16
    generator = torch.Generator().manual_seed(seed)
    ends = draw.choice([[2], [2], [2, 3, 4]])
    logits = torch.randn(size, size, generator=generator) * draw.choice([0.5, 1.5, 3.0])
    logits[:, ends] += draw.choice([-2.0, 0.0, 1.0])
    sentences = draw.randint(1, 7)
    call = {
        "inputs": torch.tensor([[5, 2]] * sentences),
        "decoder_input_ids": torch.tensor([[1, draw.randrange(5, size)] for _ in range(sentences)]),
        "eos_token_id": ends,
    }
    drawn = settings(draw)
    if drawn["num_beams"] > size - len(ends):  # more hypotheses than tokens to begin with
        drawn |= {"num_beams": 6, "num_return_sequences": 6}
    return chain(logits, 0.1), call | drawn | {"max_new_tokens": draw.choice([3, 9, 20])}
