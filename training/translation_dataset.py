"""Data sets of the Hub, or of a folder, with a `translation` column or with a column for each language."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import datasets
from datasets.packaged_modules.csv.csv import CsvConfig

from training.encoding import TEXT, Pair
from training.errors import UsageError

Split: TypeAlias = datasets.Dataset | datasets.IterableDataset


def load_splits(
    name: str, config: str | None, source_lang: str, target_lang: str, streaming: bool = False
) -> dict[str, Split]:
    """The splits of a data set, `train` among them, with the columns `source` and `target`; streams where asked for.

    Raises:
        UsageError: it cannot be loaded, or has no training text in these languages.
    """
    splits = _load_dataset(name, config, streaming)
    if "train" not in splits:
        raise UsageError(f"--dataset {name}: no `train` split to train on; it has {_listed(splits)}")
    return {split: _pick_languages(splits[split], name, source_lang, target_lang) for split in splits}


def may_have_configuration(name: str, config: str) -> bool:
    """Whether a data set has a configuration; one on the Hub, which is not asked here, may."""
    if name == "builtin" or not Path(name).is_dir():
        return name != "builtin"
    declared, folders = _configurations(name)
    return config in declared | folders


def _configurations(folder: str) -> tuple[set[str], set[str]]:
    """Of a folder: those that its README declares, and the sub-folders."""
    declared = set(datasets.get_dataset_config_names(folder)) - {"default"}
    return declared, {path.name for path in Path(folder).iterdir() if path.is_dir()}


def _load_dataset(name: str, config: str | None, streaming: bool) -> dict[str, Split]:
    """A data set of the Hub, or of a folder: its `config` may be one that its README declares, or a sub-folder.

    Raises:
        UsageError: there is no such data set or configuration, or its files cannot be read.
    """
    options: dict[str, Any] = {}
    try:
        if config is not None and Path(name).is_dir():
            declared, folders = _configurations(name)
            if config not in declared | folders:
                raise UsageError(f"--dataset_config {config}: not in {name}, which has {_listed(declared or folders)}")
            if config not in declared:
                config, options["data_dir"] = None, config
        builder = datasets.load_dataset_builder(name, config, **options)
        if isinstance(builder.config, CsvConfig):
            # Left to itself the reader makes numbers of digits, and nothing of "NA" and "null".
            for row in next(iter(builder.as_streaming_dataset().values())).take(1):
                options["features"] = datasets.Features({column: datasets.Value("string") for column in row})
                options["na_filter"] = False
        if hasattr(builder.config, "on_mixed_types"):
            # Left to itself the reader of JSON makes no columns of rows that lack a language here and there.
            options["on_mixed_types"] = False  # None would be dropped
        return datasets.load_dataset(name, config, streaming=streaming, **options)
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else None
        raise UsageError(
            f"--dataset {name}: cannot be loaded: {' '.join(str(cause or error).split())}; give a folder or a name "
            "on the Hub, which needs the network once, and --dataset_config where it has several"
        ) from error


def _pick_languages(split: Split, name: str, source_lang: str, target_lang: str) -> Split:
    """The columns `source` and `target` of a data set with a `translation` column, or with a column a language.

    Raises:
        UsageError: it lacks a language, or holds something else than text.
    """
    place, prefix = f"--dataset {name}: its columns", ""
    columns_found = split.features or datasets.Features()  # a stream that cannot be read has none
    if "translation" in columns_found:
        place, prefix = f"--dataset {name}: its `translation` column", "translation."
    features = columns_found.flatten()
    names = [column.removeprefix(prefix) for column in features if column.startswith(prefix)]
    if source_lang not in names or target_lang not in names or source_lang == target_lang:
        raise UsageError(
            f"{place}: {_listed(names)}; asked for: from {source_lang} to {target_lang}; "
            "set --source_lang and --target_lang to two of its languages"
        )
    columns = {prefix + source_lang: "source", prefix + target_lang: "target"}
    for column in columns:
        if "string" not in str(features[column].dtype):
            raise UsageError(f"{place}: {column} holds {features[column].dtype}, not text")
    if isinstance(split, datasets.Dataset):
        return split.flatten().select_columns(list(columns)).rename_columns(columns)

    def pick(batch: dict[str, list[Any]]) -> dict[str, list[str | None]]:
        if not prefix:
            return {side: batch[column] for column, side in columns.items()}
        languages = {"source": source_lang, "target": target_lang}
        return {side: [(row or {}).get(lang) for row in batch["translation"]] for side, lang in languages.items()}

    return split.map(pick, batched=True, remove_columns=list(columns_found), features=TEXT)


def split_pairs(splits: dict[str, Split], name: str) -> list[Pair]:
    """The pairs of a split, text that is missing as the empty string; none where there is no such split."""
    return [(row["source"] or "", row["target"] or "") for row in splits.get(name, ())]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
