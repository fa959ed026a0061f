"""What a run's options and results do not say, kept for its model card: the recipe, the machine, the versions."""

import json
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

import vanilla_transformer
from training.files import write_text
from training.recipe import Recipe

FACTS = "run_facts.json"


def run_facts(recipe: Recipe) -> dict[str, Any]:
    """Of the process that trains: the recipe's name and card, the data set's name on the Hub, hardware, versions.

    `hub_dataset` is `None` for text files, a folder and the built-in corpus: the names of these are of this machine.
    """
    name = recipe.data.dataset
    return {
        "recipe": recipe.folder.resolve().name,
        "recipe_card": (recipe.folder / "README.md").read_text(encoding="utf-8", errors="replace"),
        "hub_dataset": None if name in (None, "builtin") or Path(name).exists() else name,
        "hardware": device_name(recipe.arguments.device),
        "processes": recipe.arguments.world_size,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "vanilla_transformer": vanilla_transformer.__version__,
        },
    }


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Keep the facts of a run that starts or goes on."""
    write_text(folder / FACTS, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


def device_name(device: torch.device) -> str:
    """What a process computes on, as its maker calls it; of a CPU with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    threads = torch.get_num_threads()
    return f"{cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"


def cpu_name() -> str:
    """The processor as its maker calls it, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # Linux alone has it
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
