"""One training step of a model sharded over the processes (FSDP), run under torchrun: the norm of its gradient.

python -m torch.distributed.run --nproc_per_node 2 tests/fsdp_step.py
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from tests.tiny import tiny
from vanilla_transformer import VanillaTransformerForConditionalGeneration


def batch(rank: int) -> dict[str, torch.Tensor]:
    """The pairs of a process; together those of `whole_batch`."""
    return {name: rows[2 * rank : 2 * rank + 2] for name, rows in whole_batch().items()}


def whole_batch() -> dict[str, torch.Tensor]:
    labels = torch.tensor([[9, 8, 7, 2], [6, 2, -100, -100], [5, 5, 2, -100], [4, 9, 9, 2]])
    return {"input_ids": torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0], [4, 2, 0, 0], [7, 7, 7, 2]]), "labels": labels}


def step(model: VanillaTransformerForConditionalGeneration, inputs: dict[str, torch.Tensor]) -> float:
    """Forward and backward as in training; the loss, of the labels of all processes."""
    items = int(whole_batch()["labels"].ne(-100).sum())
    loss = model(**inputs, epsilon_ls=0.1, skip_logits=True, num_items_in_batch=items).loss
    loss.backward()
    return float(loss.item())


def main() -> None:
    dist.init_process_group("gloo")
    model = tiny().train()
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        fully_shard(layer)
    fully_shard(model)
    loss = torch.tensor(step(model, batch(dist.get_rank())))
    dist.all_reduce(loss)
    # FSDP takes the mean over the processes, the loss is a sum over them.
    gradients = [parameter.grad.full_tensor() * dist.get_world_size() for parameter in model.parameters()]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    if dist.get_rank() == 0:
        print(loss.item(), norm.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
