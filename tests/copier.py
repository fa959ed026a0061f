"""A model whose weights are written down so that it copies its source, whatever that is."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from training.tokenizer import train_tokenizer
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

D_MODEL = 128
HALF = D_MODEL // 2
SLOWEST = D_MODEL - 2  # the sine that is near 0 everywhere: of a state it holds what the norm took off the mean
LOUDNESS = 16.0  # of a token in its state, over the position: the norm then divides every state by the same
SHARPNESS = 1000.0  # of the attention to the decoder's own position


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """320 pieces at most; any text becomes ids and comes back as it was."""
    return train_tokenizer(["alpha beta gamma delta epsilon zeta"] * 5, 320)


@torch.no_grad()
def copier(vocab_size: int, confidence: float = 3.0, **changes: object) -> VanillaTransformerForConditionalGeneration:
    """One layer a stack. A state's first half tells the position, by the fast sinusoids; its second half the token.

    Decoder position t attends, by the first half, to source position t, and predicts the token found there in the
    second. All other sub-layers give 0. Up to 600 tokens are copied.

    Args:
        confidence: of the prediction, in logits for each agreeing sign of a token's code.
    """
    settings: dict[str, object] = {
        "vocab_size": vocab_size,
        "d_model": D_MODEL,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 1,
        "decoder_attention_heads": 1,
        "encoder_ffn_dim": 1,
        "decoder_ffn_dim": 1,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**settings | changes)).eval()
    codes = _codes(vocab_size)
    model.model.encoder.embed_tokens.weight.copy_(codes * LOUDNESS / D_MODEL**0.5)
    model.model.decoder.embed_tokens.weight.zero_()
    for name, parameter in model.named_parameters():
        if name.endswith(("self_attn.out_proj.weight", "fc2.weight", "fc2.bias")):
            parameter.zero_()
    attention = model.model.decoder.layers[0].encoder_attn
    position = torch.eye(D_MODEL)
    position[:, SLOWEST] = -1.0
    position[HALF:] = 0.0
    attention.q_proj.weight.copy_(position * SHARPNESS)
    attention.k_proj.weight.copy_(position)
    attention.v_proj.weight.copy_(torch.eye(D_MODEL))
    attention.out_proj.weight.copy_(torch.eye(D_MODEL) * D_MODEL)  # far above the decoder's own state
    model.lm_head.weight.copy_(codes * confidence)
    return model


def _codes(vocab_size: int) -> Tensor:
    """(tokens, d): in the second half as many 1 as -1 for each token, no two alike; else 0."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.zeros(vocab_size, D_MODEL)
    signs = torch.tensor([1.0, -1.0]).repeat(HALF // 2 - 1)
    for code in codes:
        code[HALF:SLOWEST] = signs[torch.randperm(len(signs), generator=generator)]
    return codes
