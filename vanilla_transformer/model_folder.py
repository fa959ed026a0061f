"""Loading a model's folder with its tokenizers, or saying in one line why it cannot be."""

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors import SafetensorError
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .errors import UsageError
from .generation_vanilla_transformer import PAPER_DECODING
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

TARGET_TOKENIZER = "target_tokenizer"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt")


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model of this package, its weights not yet read.

    Attributes:
        path: the folder.
        config: the model's.
        decoding: the settings of its generation config; the paper's where it has none.
    """

    path: Path
    config: VanillaTransformerConfig
    decoding: dict[str, Any]

    def load(
        self, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> VanillaTransformerForConditionalGeneration:
        """The model, in evaluation mode.

        Args:
            dtype: of its parameters. Default: that of the folder.
            device: default: the CPU.

        Raises:
            UsageError: there are no weights, or they do not fit the config.
        """
        try:
            model, report = VanillaTransformerForConditionalGeneration.from_pretrained(
                self.path,
                config=self.config,
                dtype="auto" if dtype is None else dtype,
                ignore_mismatched_sizes=True,  # they are in the report
                use_safetensors=True,  # a pickle may hold anything
                output_loading_info=True,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise UsageError(f"{self.path}: the model cannot be loaded ({_first_line(error)})") from error
        if unfit := [*report["missing_keys"], *(str(key[0]) for key in report["mismatched_keys"])]:
            raise UsageError(
                f"{self.path}: the weights do not fit config.json: {sorted(unfit)[0]} is missing or of another size"
            )
        return model.eval() if device is None else model.eval().to(device)

    def load_tokenizers(self) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """The source's and the target's, which are mostly one.

        Raises:
            UsageError: there is none, or it has more pieces than the model has embeddings.
        """
        tokenizer = target = _load_tokenizer(self.path)
        if (self.path / TARGET_TOKENIZER).is_dir():
            target = _load_tokenizer(self.path / TARGET_TOKENIZER)
        size = self.config.vocab_size
        if len(tokenizer) > size:
            raise UsageError(f"{self.path}: the tokenizer has {len(tokenizer)} pieces, the model {size} embeddings")
        return tokenizer, target


def find_model(name: str) -> ModelFolder:
    """The folder of that name, or else the model of that name on the Hub.

    Raises:
        UsageError: there is neither, or it holds no model of this package.
    """
    path = Path(name)
    if not path.exists() and HUB_NAME.fullmatch(name) and not path.parent.exists():
        path = _download(name)
    if not path.is_dir():
        raise UsageError(f"{name}: no such folder")
    if not (path / "config.json").is_file():
        raise UsageError(f"{name}: not a model's folder: it has no config.json")
    model_type = _read_json(path / "config.json").get("model_type")
    if model_type != VanillaTransformerConfig.model_type:
        raise UsageError(f"{name}: a model of type {model_type!r}, not {VanillaTransformerConfig.model_type!r}")
    try:
        config = VanillaTransformerConfig.from_pretrained(path)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path / 'config.json'}: {_first_line(error)}") from error
    decoding = path / "generation_config.json"
    return ModelFolder(path, config, _read_json(decoding) if decoding.is_file() else PAPER_DECODING)


def quantize_int8(model: VanillaTransformerForConditionalGeneration) -> VanillaTransformerForConditionalGeneration:
    """A copy whose linear layers multiply 8-bit integers, on a CPU; what they multiply is measured batch by batch.

    Raises:
        UsageError: this torch cannot.
    """
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError as error:
        raise UsageError(
            "torch has no int8 for a CPU any more: install torch 2.13, or leave --quantize out"
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it will move one day
        return quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@contextmanager
def quiet() -> Iterator[None]:
    """transformers and this package log nothing but errors, and draw no bars."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    own = getLogger(__package__)
    level = own.level
    own.setLevel(ERROR)
    try:
        yield
    finally:
        own.setLevel(level)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UsageError(f"{path}: it has no tokenizer (tokenizer.json)")
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, LookupError) as error:
        raise UsageError(f"{path}: the tokenizer cannot be loaded ({_first_line(error)})") from error


def _download(name: str) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise UsageError(f"{name}: no such folder, and no such model on the Hub ({_first_line(error)})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: not an object of settings")
    return content


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
