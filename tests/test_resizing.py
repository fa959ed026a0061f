"""A vocabulary of another size, beside what `test_model` says of it: rounding, new rows, and the life after it."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from tests.tiny import LABELS, SRC, TGT, reload, same, scale, tiny, tiny_config
from vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel

Model = VanillaTransformerForConditionalGeneration

SETUPS: list[dict[str, Any]] = [
    {},
    {"final_logits_bias": True},
    {"tie_word_embeddings": False, "final_logits_bias": True},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70, "final_logits_bias": True},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70, "tie_word_embeddings": False},
]


def model_for(setup: dict[str, Any]) -> Model:
    model = scale(tiny(**setup), 3.0)
    if model.final_logits_bias is not None:
        torch.nn.init.normal_(model.final_logits_bias)
    return model


def resize(model: Any, source: int | None, target: int | None, **options: Any) -> None:
    model.resize_token_embeddings(source, **options)
    if not model.config.share_encoder_decoder_embeddings:
        model.resize_decoder_token_embeddings(target, **options)


def modules(model: Any) -> list[Any]:
    return [model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head]


def sizes(model: Model) -> tuple[list[int], list[int], list[int]]:
    """Of source, target and output: rows, what the modules say, and what the config says."""
    config = model.config
    said = [getattr(module, "num_embeddings", None) or module.out_features for module in modules(model)]
    assert config.decoder_vocab_size is not None
    written = [config.vocab_size, config.decoder_vocab_size, config.target_vocab_size]
    return [len(module.weight) for module in modules(model)], said, written


def ties(model: Model) -> tuple[bool, bool]:
    """Whether source and target, and target and output, are one parameter."""
    source, target, output = (module.weight for module in modules(model))
    return source is target, target is output


@torch.no_grad()
def logits(model: Model) -> Tensor:
    return model(input_ids=SRC, decoder_input_ids=TGT).logits


@pytest.mark.parametrize(
    ("asked", "multiple", "expected"),
    [((50, 70), 16, (64, 80)), ((33, 33), 8, (40, 40)), ((None, None), 32, (64, 96)), ((80, 96), 16, (80, 96))],
)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_rounded_sizes(
    setup: dict[str, Any], asked: tuple[Any, Any], multiple: int, expected: tuple[int, int]
) -> None:
    """Each vocabulary is rounded up to a multiple; a size of `None` means its own."""
    model = model_for(setup)
    before, tied = logits(model), ties(model)
    resize(model, *asked, pad_to_multiple_of=multiple)
    source, target = expected if "decoder_vocab_size" in setup else (expected[0], expected[0])
    kept = min(before.shape[-1], target)
    for current in (model, reload(model)):
        assert sizes(current) == ([source, target, target],) * 3
        assert ties(current) == tied
        found = logits(current)
        assert found.shape == (1, 3, target)
        assert same(found[..., :kept], before[..., :kept])
        bias = current.final_logits_bias
        assert bias is None or (bias.shape == (1, target) and not bias[:, kept:].any())


@pytest.mark.parametrize("size", [64, 40])
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_life_after_resizing(setup: dict[str, Any], size: int) -> None:
    """Loss, one step of training, both searches and a second size, with every entry of the new vocabulary in use."""
    model = model_for(setup)
    before = model.generate(SRC, num_beams=1, max_new_tokens=8)
    resize(model, size, size)
    words = torch.tensor([[size - 1, 5, 4, 2]])
    if size > 50:
        new = list(range(min(50, setup.get("decoder_vocab_size", 50)), size))
        assert model.generate(SRC, num_beams=1, max_new_tokens=8, suppress_tokens=new).equal(before)
    call: dict[str, Any] = {"inputs": words, "num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True}
    assert model.generate(**call).sequences.equal(model.generate(**call, output_scores=True).sequences)

    expected = torch.nn.functional.cross_entropy(
        model(input_ids=words, decoder_input_ids=torch.tensor([[1, size - 1]])).logits[0], torch.tensor([size - 1, 2])
    )
    labels = torch.tensor([[size - 1, 2]])
    for skip in (False, True):
        assert same(model(input_ids=words, labels=labels, skip_logits=skip).loss, expected)
    tied = ties(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(input_ids=words, labels=labels).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    after = model(input_ids=words, labels=labels).loss
    assert float(after.detach()) < float(expected.detach())
    assert ties(model) == tied
    resize(model, 30, 30)
    assert sizes(reload(model)) == ([30, 30, 30],) * 3


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_its_own_size_changes_nothing(setup: dict[str, Any]) -> None:
    """The parameters stay the ones that an optimizer knows."""
    model = model_for(setup)
    before = dict(model.named_parameters())
    resize(model, 50, 70)
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(parameter is after[name] for name, parameter in before.items())


@pytest.mark.parametrize("size", [64, 40])
def test_modules_stay_apart(size: int) -> None:
    """As in a new model each stack has a module of its own around the one matrix: whoever wraps one, as adapters do,
    wraps what is called. Padding keeps its row, and gets no gradient of its own as input."""
    model = model_for({"tie_word_embeddings": False})
    model.resize_token_embeddings(size)
    inner = model.model
    three = [inner.shared, inner.encoder.embed_tokens, inner.decoder.embed_tokens]
    assert len(set(map(id, three))) == 3
    assert all(module.weight is inner.shared.weight for module in three)
    assert [module.padding_idx for module in three] == [0, 0, 0]
    assert not inner.shared.weight[0].any()
    model(input_ids=torch.tensor([[5, 2, 0]]), labels=LABELS).loss.backward()
    assert inner.shared.weight.grad is not None
    assert not inner.shared.weight.grad[0].any()
    new = torch.nn.Embedding(50, 16, padding_idx=0)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new
    assert inner.shared.weight is inner.decoder.embed_tokens.weight is new.weight


@pytest.mark.parametrize("share", [True, False])
@torch.no_grad()
def test_resizing_without_output_projection(share: bool) -> None:
    torch.manual_seed(0)
    model = VanillaTransformerModel(tiny_config(share_encoder_decoder_embeddings=share)).eval()
    before = model(input_ids=SRC, decoder_input_ids=TGT).last_hidden_state
    model.resize_token_embeddings(60)
    for current in (model, reload(model)):
        rows = [len(stack.embed_tokens.weight) for stack in (current.encoder, current.decoder)]
        assert rows == ([60, 60] if share else [60, 50])
        assert (current.config.vocab_size, current.config.decoder_vocab_size) == tuple(rows)
        assert same(current(input_ids=SRC, decoder_input_ids=TGT).last_hidden_state, before)


def marian_like(model: Model) -> Any:
    """transformers' Marian with the model's weights."""
    config = model.config
    names = ("d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size")
    flags = ("decoder_vocab_size", "share_encoder_decoder_embeddings", "tie_word_embeddings", "pad_token_id")
    marian = MarianMTModel(
        MarianConfig(
            **{name: getattr(config, name) for name in (*names, *flags)},
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            decoder_start_token_id=1,
            eos_token_id=2,
        )
    )
    state = model.state_dict()
    keys = marian.load_state_dict(state, strict=False)
    assert not keys.unexpected_keys
    assert all(name.endswith("embed_positions.weight") for name in keys.missing_keys)
    return marian


@pytest.mark.parametrize("size", [64, 40])
@pytest.mark.parametrize("setup", [SETUPS[1], SETUPS[3]], ids=str)
def test_as_marian_resizes(setup: dict[str, Any], size: int) -> None:
    """Sizes, kept rows, new rows (of the mean and covariance of the old ones) and bias are those of transformers."""
    model = model_for(setup)
    marian = marian_like(model)
    for current in (model, marian):
        torch.manual_seed(3)
        current.resize_token_embeddings(size)
        if not current.config.share_encoder_decoder_embeddings:
            current.resize_decoder_token_embeddings(size)
    ours, theirs = model.state_dict(), marian.state_dict()
    for name, tensor in ours.items():
        assert same(tensor, theirs[name]), name
    names = ("vocab_size", "decoder_vocab_size")
    assert [getattr(model.config, name) for name in names] == [getattr(marian.config, name) for name in names]
