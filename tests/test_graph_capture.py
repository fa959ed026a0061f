"""Graphs that torch captures serve every batch size and length, and give what the model gives (B55)."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.export import Dim, ExportedProgram

from tests.tiny import reload, same, scale, tiny

TABLE = 16  # rows of the position table
SIZES = [(3, 9, 7), (1, 1, 1), (2, TABLE, TABLE)]  # sentences, source tokens, target tokens
KINDS: list[dict[str, Any]] = [
    {"attention": "sdpa"},
    {"attention": "eager", "position_encoding": "learned", "final_logits_bias": True},
]


def model_for_graphs(**changes: Any) -> Any:
    settings: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": TABLE}
    return scale(tiny(**settings | changes), 3.0)


def batch(rows: int, source: int, target: int, padded: bool = True) -> dict[str, Tensor]:
    """Ids and masks of the source and of the target; of each row as many tokens are padding as rows are above it."""
    made: dict[str, Tensor] = {}
    for name, length, side in (("", source, -1), ("decoder_", target, 1)):
        ids = (torch.arange(rows * length).reshape(rows, length) * 7) % 43 + 4
        mask = torch.ones_like(ids)
        for row in range(1, rows if padded else 0):
            mask[row, slice(-row, None) if side < 0 else slice(row)] = 0
        made |= {f"{name}input_ids": ids * mask, f"{name}attention_mask": mask}
    return made


def export(module: nn.Module, inputs: dict[str, Tensor], longest: int = TABLE, **constants: Any) -> ExportedProgram:
    """`module` with any number of sentences and of source and target tokens."""
    rows, source, target = Dim("rows", max=64), Dim("source", max=longest), Dim("target", max=longest)
    shapes: dict[str, Any] = dict.fromkeys(constants)
    for name in inputs:
        is_target = name.startswith("decoder_") or (name == "input_ids" and "encoder_hidden_states" in inputs)
        shapes[name] = {0: rows, 1: target if is_target else source}
    return torch.export.export(module, (), inputs | constants, dynamic_shapes=shapes, strict=False)


def write_and_read(program: ExportedProgram) -> Any:
    """The program out of a file, to be called."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_exported_encoder(kind: dict[str, Any], masked: bool) -> None:
    """With a mask, and with none: what is padding is then read off the ids, in the graph."""
    encoder = model_for_graphs(**kind).model.encoder

    def inputs(rows: int, source: int) -> dict[str, Tensor]:
        made = batch(rows, source, 1)
        return {name: made[name] for name in ("input_ids", "attention_mask")[: 2 if masked else 1]}

    program = export(encoder, inputs(2, 5)).module()
    for rows, source, _ in SIZES:
        expected = encoder(**inputs(rows, source)).last_hidden_state
        assert same(program(**inputs(rows, source)).last_hidden_state, expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_exported_decoder(kind: dict[str, Any]) -> None:
    model = model_for_graphs(**kind)

    def inputs(rows: int, source: int, target: int) -> dict[str, Tensor]:
        made = batch(rows, source, target)
        mask = made["attention_mask"]
        states = model.model.encoder(made["input_ids"], mask).last_hidden_state
        ids = made["decoder_input_ids"]
        return {"input_ids": ids, "encoder_hidden_states": states, "encoder_attention_mask": mask}

    program = export(model.model.decoder, inputs(2, 5, 4), use_cache=False).module()
    for size in SIZES:
        expected = model.model.decoder(**inputs(*size)).last_hidden_state
        assert same(program(**inputs(*size), use_cache=False).last_hidden_state, expected)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.no_grad()
def test_exported_model(kind: dict[str, Any]) -> None:
    """From a batch without padding: the graph masks that of others. It goes through a file."""
    model = model_for_graphs(**kind)
    program = write_and_read(export(model, batch(2, 5, 4, padded=False), use_cache=False))
    for size in SIZES:
        for padded in (True, False):
            inputs = batch(*size, padded)
            assert same(program(**inputs, use_cache=False).logits, model(**inputs).logits)


@torch.no_grad()
def test_the_table_is_the_limit_of_an_exported_program() -> None:
    """A longer sequence is refused, never computed with a wrong position; loading with a longer table of sinusoids
    makes room for it."""
    model = model_for_graphs()
    short, long = (current.model.encoder for current in (model, reload(model, max_position_embeddings=40)))
    example, inputs = ({"input_ids": batch(2, length, 1)["input_ids"]} for length in (5, 40))
    with pytest.raises(AssertionError, match=rf"<= {TABLE}"):
        export(short, example).module()(**inputs)
    program = export(long, example, longest=40).module()
    assert same(program(**inputs).last_hidden_state, short(**inputs).last_hidden_state)


@pytest.fixture
def compiler() -> Iterator[None]:
    """A compiler that remembers nothing of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("compiler")
def test_compiled_training_for_all_sizes() -> None:
    """One graph for the loss of every batch size and length within the table, one for those beyond it."""
    model = model_for_graphs().train()
    counter = CompileCounter()
    step = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
    for size, graphs in (((2, 5, 4), 1), ((3, 9, 6), 1), ((4, 6, 9), 1), ((2, 25, 20), 2), ((3, 20, 30), 2)):
        inputs = batch(*size)
        labels = inputs.pop("decoder_input_ids")
        labels[inputs.pop("decoder_attention_mask") == 0] = -100
        gradients = []
        for computed in (step, model):
            model.zero_grad()
            loss = computed(**inputs, labels=labels).loss
            loss.backward()
            gradients.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
        assert all(same(one, other, 1e-4) for one, other in zip(*gradients, strict=True))
        assert counter.frame_count == graphs


@pytest.mark.usefixtures("compiler")
@torch.no_grad()
def test_compiled_learned_positions_end_with_their_table() -> None:
    """Compiled too: more tokens than rows are refused, not given some other row."""
    encoder = model_for_graphs(position_encoding="learned").model.encoder
    step = torch.compile(encoder, dynamic=True, backend="eager")
    inside, beyond = (batch(2, length, 1)["input_ids"] for length in (TABLE, TABLE + 1))
    assert same(step(inside).last_hidden_state, encoder(inside).last_hidden_state)
    with pytest.raises((IndexError, ValueError)):
        step(beyond)
