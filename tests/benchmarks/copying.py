"""Weights with which a model copies its source, in Marian, in this model, in CTranslate2: it ends as a real one does.

A random model ends never, or at once. Here the last decoder layer attends to the source position that is next, found
by the position encodings, and says its token; every other matrix is there, and is computed, but adds nothing.
"""

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .setting import Sizes, our_model, peer_model

SHARPNESS = 12.0  # of the attention to one position: the neighbours' share is below a hundredth
GAIN = 8.0  # of the token copied over the one before it
TOKEN_NORM = 0.5  # with it the copied token has about 0.6 of the probability in a vocabulary of 32,000


@torch.no_grad()
def copying_models(sizes: Sizes, tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedModel, PreTrainedModel]:
    """This project's model and transformers' Marian with the same weights."""
    marian = peer_model(sizes, len(tokenizer)).eval()
    silent: list[nn.Linear] = []
    for layer in marian.model.encoder.layers:
        silent += [layer.self_attn.out_proj, layer.fc2]
    for layer in marian.model.decoder.layers:
        silent += [layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2]
    for linear in silent:
        linear.weight.zero_()
    width, half = sizes.d_model // sizes.heads, sizes.d_model // 2
    fastest = torch.arange(width // 2)
    place = torch.cat((fastest, half + fastest))  # as many dimensions as a head has: they hold no token
    token = torch.ones(sizes.d_model).index_fill(0, place, 0.0)
    embeddings = marian.model.shared.weight
    embeddings *= token
    embeddings *= TOKEN_NORM / embeddings.norm(dim=1, keepdim=True).clamp(min=1e-6)
    attention = marian.model.decoder.layers[-1].encoder_attn
    look = torch.zeros(sizes.d_model, sizes.d_model)
    look[torch.arange(sizes.d_model), place.repeat(sizes.heads)] = SHARPNESS**0.5
    attention.q_proj.weight.copy_(look)
    attention.k_proj.weight.copy_(look)
    attention.v_proj.weight.copy_(token.diag())
    attention.out_proj.weight.copy_(token.diag() * GAIN)
    ours = our_model(sizes, len(tokenizer)).eval()
    ours.load_state_dict(marian.state_dict(), strict=False)
    ours.tie_weights()
    return ours, marian


def write_ctranslate2(marian: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The same weights in CTranslate2's format, float32."""
    from ctranslate2.converters.transformers import BartLoader

    class Loader(BartLoader):
        architecture_name = "MarianMTModel"

    marian.config.normalize_before = marian.config.normalize_embedding = False
    spec = Loader().get_model_spec(marian)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token = spec.config.decoder_start_token = tokenizer.bos_token
    spec.config.eos_token, spec.config.unk_token = tokenizer.eos_token, tokenizer.unk_token
    spec.validate()
    spec.optimize()
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
