"""The pipeline "translation", which transformers 5 no longer has. It answers as that of transformers 4 did."""

import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoTokenizer, Pipeline, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import has_file

TASK = "translation"
TARGET_TOKENIZER_FOLDER = "target_tokenizer"
INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's categories of controls, formats, separators
# What a saved model's config.json tells `pipeline`: the class in the folder's own files, and what loads the model.
CUSTOM_PIPELINES: dict[str, dict[str, Any]] = {
    TASK: {"impl": "pipeline_vanilla_transformer.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
}


class TranslationPipeline(Pipeline):
    """Text in, text out: `pipeline("translation", model=FOLDER_OR_REPOSITORY, trust_remote_code=True)(texts)`.

    With the package imported, the same without `trust_remote_code`, or `TranslationPipeline(model, tokenizer)`.

    - One text gives a list of its translations, `[{"translation_text": …}]`: one, or `num_return_sequences`, the best
      first.
    - A list of texts (or a column of a data set, or another sequence) gives a list with a dict for each text, or with
      such a list for each where there are several translations.
    - A generator, another iterable, or a torch data set such as transformers' `KeyDataset` gives an iterator, which
      translates as it is read, over one such list for each text.

    A text without a visible character is not given to the model: its translation is "". With no length given, each
    text has the model's own limit. No translation depends on `batch_size`. For very many texts `translate` is quicker:
    it batches texts of like length.

    Args:
        model: any model that `AutoModelForSeq2SeqLM` loads.
        tokenizer: the source's, and the target's where that has none of its own.
        target_tokenizer: the target's. When it is not given, a model with two vocabularies is asked for the one in the
            folder `target_tokenizer` of where it was loaded from (on the Hub: of the main revision).
        local_files_only: look for that one in the cache of the Hub alone.
        batch_size, device, dtype and the rest: as for any pipeline.
        truncation: cut a text that is longer than the tokenizer's `model_max_length`.
        return_tensors: give `translation_token_ids`, without padding, in place of the text.
        return_text: give the text; with `return_tensors`, beside the ids.
        clean_up_tokenization_spaces: as in the tokenizer's `decode`; `None` leaves it to the tokenizer.
        **generate_options: any setting of `model.generate`, as `num_beams` or `max_new_tokens`. These, like the four
            before, are given at construction or in a call; a call's come first.

    Raises:
        TypeError: the input is neither a text nor some of them.
        ValueError: there is no tokenizer, or neither text nor ids are asked for.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        task: str = TASK,
        local_files_only: bool = False,
        **options: Any,
    ) -> None:
        if tokenizer is None:
            raise ValueError("a translation pipeline needs a `tokenizer`")
        super().__init__(model, tokenizer, task=task, **options)
        if target_tokenizer is None:
            target_tokenizer = stored_target_tokenizer(model, local_files_only)
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if isinstance(inputs, (bytes, Mapping)) or not isinstance(inputs, (Iterable, Dataset)):
            raise wrong_type(inputs)
        if isinstance(inputs, str):
            return super().__call__(inputs, **options)
        if isinstance(inputs, Sized) and len(inputs) == 0:
            return []
        if isinstance(inputs, Dataset):
            return super().__call__(inputs, **options)
        if not isinstance(inputs, Sequence):
            return super().__call__((text for text in inputs), **options)
        texts = list(inputs)
        for text in texts:
            if not isinstance(text, str):
                raise wrong_type(text)
        results = super().__call__(texts, **options)
        return [records[0] for records in results] if all(len(records) == 1 for records in results) else results

    def _sanitize_parameters(
        self,
        truncation: bool | str | None = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """What a construction or a call asks of each of the three steps below."""
        of_results = {
            "return_tensors": return_tensors,
            "return_text": return_text,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        return (
            {} if truncation is None else {"truncation": truncation},
            generate_options,
            {name: value for name, value in of_results.items() if value is not None},
        )

    def preprocess(self, text: Any, truncation: bool | str = False) -> dict[str, Tensor]:
        """Ids and mask of one text, each (1, S); an empty mask where there is nothing to translate."""
        if not isinstance(text, str):
            raise wrong_type(text)
        ids = self.tokenizer(text, truncation=truncation)["input_ids"] if is_visible(text) else []
        return {
            "input_ids": torch.tensor([ids or [0]]),
            "attention_mask": torch.tensor([[1] * len(ids) or [0]]),
        }

    def _forward(self, inputs: dict[str, Tensor], **generate_options: Any) -> dict[str, Tensor]:
        """The n translations of each text, (B, n, T), and their lengths without padding, (B, n)."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        n = self._setting("num_return_sequences", generate_options) or 1
        filled = mask.any(dim=1)
        if not filled.any():
            nothing = ids.new_zeros(len(ids), n)
            return {"output_ids": nothing[..., None], "lengths": nothing}
        output = self.model.generate(input_ids=ids[filled], attention_mask=mask[filled], **generate_options)
        sequences = (output if isinstance(output, Tensor) else output.sequences).unflatten(0, (-1, n))
        width = sequences.shape[-1]
        ends = torch.arange(1, width + 1, device=sequences.device).expand_as(sequences)
        pad = self._setting("pad_token_id", generate_options)
        output_ids, lengths = ids.new_zeros(len(ids), n, width), ids.new_zeros(len(ids), n)
        output_ids[filled] = sequences
        lengths[filled] = (ends if pad is None else ends * sequences.ne(pad)).amax(dim=-1)
        return {"output_ids": output_ids, "lengths": lengths}

    def postprocess(
        self,
        outputs: dict[str, Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """The translations of one text, best first."""
        if return_text is None:
            return_text = not return_tensors
        if not return_tensors and not return_text:
            raise ValueError("with `return_text=False` and no `return_tensors` there is nothing to return")
        records = []
        for ids, length in zip(outputs["output_ids"][0], outputs["lengths"][0].tolist(), strict=True):
            record: dict[str, Any] = {}
            if return_tensors:
                record["translation_token_ids"] = ids[:length]
            if return_text:
                record["translation_text"] = self.target_tokenizer.decode(
                    ids[:length].tolist(),
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
            records.append(record)
        return records

    def _setting(self, name: str, generate_options: dict[str, Any]) -> Any:
        """What `generate` will use: the option, else the generation config given, else the model's own."""
        given = generate_options.get("generation_config")
        candidates = [generate_options.get(name), getattr(given, name, None)]
        return next(
            (value for value in candidates if value is not None), getattr(self.model.generation_config, name, None)
        )

    def save_pretrained(self, save_directory: str | os.PathLike[str], **options: Any) -> None:
        """Save model, code and tokenizers, from which `pipeline` makes this pipeline again.

        Raises:
            ValueError: `push_to_hub=True`, which leaves out sub-folders, but the target has a tokenizer of its own.
        """
        two_tokenizers = self.target_tokenizer is not self.tokenizer
        if two_tokenizers and options.get("push_to_hub"):
            raise ValueError("`push_to_hub=True` leaves out the target's tokenizer: call `push_to_hub(REPOSITORY)`")
        super().save_pretrained(save_directory, **options)
        if two_tokenizers:
            self.target_tokenizer.save_pretrained(os.path.join(save_directory, TARGET_TOKENIZER_FOLDER))


def is_visible(text: str) -> bool:
    """Whether there is a character to be seen, and so something to translate."""
    return any(unicodedata.category(character) not in INVISIBLE for character in text)


def wrong_type(found: Any) -> TypeError:
    return TypeError(
        f"a translation pipeline takes a string, or a list or other iterable of strings, not {type(found).__name__}"
    )


def stored_target_tokenizer(model: PreTrainedModel, local_files_only: bool) -> PreTrainedTokenizerBase | None:
    """The target's tokenizer that is kept with a model of two vocabularies, or `None`.

    Raises:
        ValueError: the model's folder or repository is not there.
    """
    name = model.name_or_path
    if not name or getattr(model.config, "share_encoder_decoder_embeddings", True):
        return None
    try:
        kept = has_file(name, f"{TARGET_TOKENIZER_FOLDER}/tokenizer_config.json", local_files_only=local_files_only)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be asked for the target's tokenizer: give `target_tokenizer`") from error
    if not kept:
        return None
    return AutoTokenizer.from_pretrained(
        name,
        subfolder=TARGET_TOKENIZER_FOLDER,
        config=model.config,  # without one it would be looked for in the sub-folder
        local_files_only=local_files_only,
    )


__all__ = ["TranslationPipeline"]
