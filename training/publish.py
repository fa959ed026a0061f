"""Put a finished run's model on the Hub, with its tokenizer and a card.

python -m training.publish RUN_DIR user/name [--license apache-2.0] [--private] [--revision BRANCH] [--dry-run]
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from huggingface_hub import HfApi, ModelCard, errors, get_token
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from transformers.dynamic_module_utils import get_relative_import_files

from training.average import INDEX, TOKENIZER, WEIGHTS
from training.checkpoints import checkpoints, read_json
from training.errors import CommandError, UsageError, run_command, tell
from training.files import write_text
from training.finished_run import PICTURE, FinishedRun, weight_files
from training.model_card import MARKER, model_card
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.pipeline_vanilla_transformer import TARGET_TOKENIZER_FOLDER

CARD = "README.md"
CODE = "*_vanilla_transformer.py"
# Left from an earlier upload, these would be loaded although the model of now does not have them.
REPLACED = [WEIGHTS, INDEX, "model-*-of-*.safetensors", f"{TARGET_TOKENIZER_FOLDER}/*", CODE]


def find_run(folder: Path) -> FinishedRun:
    """The finished run in a folder, all that loading its model needs being there.

    Raises:
        UsageError: there is no finished model of this project, or a file of it is missing or damaged.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {folder}")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or not weight_files(folder):
        saved = checkpoints(folder)
        last = f"; to publish its last checkpoint, give {saved[-1]}" if saved else ""
        raise UsageError(
            f"{folder} holds no finished model (config.json and {WEIGHTS}): "
            f"the command that began the run continues it{last}"
        )
    kind = config.get("model_type")
    if kind != VanillaTransformerConfig.model_type:
        raise UsageError(f"{folder} holds a model of type {kind!r}, not {VanillaTransformerConfig.model_type!r}")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UsageError(f"{folder} holds no tokenizer (tokenizer.json)")
    pipelines = config.get("custom_pipelines", {}).values()
    _check_code(folder, [*config.get("auto_map", {}).values(), *(pipeline["impl"] for pipeline in pipelines)])
    run = FinishedRun.read(folder)
    run.parameters()  # a damaged file of weights shows before anything goes
    return run


def _check_code(folder: Path, named: list[str]) -> None:
    """Whoever loads the model runs the modules of the classes that its config names, and what these import."""
    if not named:
        raise UsageError(
            f"{folder / 'config.json'} names no code (`auto_map`), so nobody could load the model from the Hub: "
            "load it here and save it again with `save_pretrained`"
        )
    for module in sorted({name.rpartition(".")[0] for name in named}):
        try:
            get_relative_import_files(folder / f"{module}.py")
        except FileNotFoundError as error:
            raise UsageError(f"{folder} lacks {Path(error.filename).name}, which the model's code needs") from error


def files_to_publish(folder: Path) -> list[str]:
    """The files of a finished model, as paths in its folder: all but the card."""
    weights = weight_files(folder)
    wanted = ["config.json", "generation_config.json", CODE, *TOKENIZER.split(), PICTURE, *weights]
    if weights != [WEIGHTS]:
        wanted.append(INDEX)
    found = {path for pattern in wanted for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in found)


def own_card(folder: Path) -> str | None:
    """The folder's card, where it is not of this command's making.

    Raises:
        UsageError: it is not UTF-8, or its metadata is not YAML.
    """
    path = folder / CARD
    if not path.is_file():
        return None
    try:
        card = path.read_text(encoding="utf-8")
        ModelCard(card)
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {_line(error)}: mend it, or remove it to have one made") from error
    return None if MARKER in card else card


def publish(folder: Path, files: list[str], repository: str, private: bool, revision: str | None) -> str:
    """Upload files of a folder in one commit, to a repository and a branch that are made where they are not there.

    Returns:
        The address of the model's page.

    Raises:
        UsageError: the Hub refuses something.
        CommandError: it cannot be reached, or a file did not get through.
    """
    api = HfApi()
    with _in_one_line(repository):
        page = str(api.create_repo(repository, private=private or None, exist_ok=True))
        if private and not api.model_info(repository).private:
            raise UsageError(f"{repository} is public already: make it private in its settings, or drop --private")
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
            page += f"/tree/{revision}"
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision,
            commit_message="Upload a model trained with vanilla_transformer",
            allow_patterns=files,
            delete_patterns=REPLACED,
        )
    return page


@contextmanager
def _in_one_line(repository: str) -> Iterator[None]:
    """Within `with`, what the Hub or its client refuses becomes one line."""
    try:
        yield
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reasons = {401: "the Hub does not accept the token", 403: "the token may not write there"}
        if status >= 500:
            raise CommandError(f"{repository}: the Hub fails ({status}): try again later") from error
        said = _line(error.server_message or error)
        raise UsageError(f"{repository}: {reasons.get(status, 'the Hub refuses')} ({status}, {said})") from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(f"{repository}: HF_HUB_OFFLINE is set: unset it, or give --dry-run") from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # httpx's or, of a newer client, httpx2's
        raise CommandError(f"{repository}: the Hub cannot be reached ({_line(error)}): try again later") from error
    except RuntimeError as error:  # a large file that did not get through
        parts = (_line(part).rstrip(".:") for part in (error, error.__cause__) if part)
        raise CommandError(f"{repository}: {': '.join(parts)}: the same command sends the rest") from error
    except ValueError as error:  # of the card's metadata
        raise UsageError(f"{repository}: {_line(error)}") from error


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _check_name(repository: str) -> None:
    try:
        validate_repo_id(repository)
    except errors.HFValidationError as error:
        raise UsageError(f"{repository}: {_line(error)}") from error
    if "/" not in repository:
        raise UsageError(f"{repository}: give the repository as user/name")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.publish",
        description="Put a finished run's model on the Hub, in one commit: weights, configs, tokenizers, the code "
        f"that loads them, {PICTURE}, and a card ({CARD}) made from what the run kept. Checkpoints, optimizer states "
        "and translations stay here. The token is that of `hf auth login`, or HF_TOKEN.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="output folder of a finished run")
    parser.add_argument("repository", metavar="user/name", help="the repository, made if it is not there")
    parser.add_argument(
        "--license",
        metavar="ID",
        help="the model's licence in the card, by the Hub's identifier, as apache-2.0 or cc-by-4.0. The training text "
        "decides what may be granted, so it is not guessed (default: none is named and none granted)",
    )
    parser.add_argument(
        "--private",
        action="store_true",
        help="make the repository private; end if it is there and public (default: as your account makes them)",
    )
    parser.add_argument(
        "--revision", metavar="BRANCH", help="branch to commit to, made from main if it is not there (default: main)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing and ask nobody: print the files that would go, with their bytes, and the card "
        "(default: upload)",
    )
    arguments = parser.parse_args()
    folder, repository = arguments.run_dir, arguments.repository
    _check_name(repository)
    run = find_run(folder)
    files, own = files_to_publish(folder), own_card(folder)
    if own is not None:
        if arguments.license is not None:
            raise UsageError(f"--license {arguments.license}: {folder / CARD} goes as it is: name the licence there")
        tell(f"{folder / CARD} was not made by this command: it goes as it is")
    card = model_card(run, repository, arguments.license, arguments.revision) if own is None else own
    if arguments.dry_run:
        sizes = {name: (folder / name).stat().st_size for name in files} | {CARD: len(card.encode())}
        print(*(f"{size:>15,}  {name}" for name, size in sorted(sizes.items())), "", card, sep="\n", end="")
        return
    if get_token() is None:
        raise UsageError("no token of the Hub: run `hf auth login`, or set HF_TOKEN, with a token that may write")
    if own is None:
        write_text(folder / CARD, card)
    print(publish(folder, [*files, CARD], repository, arguments.private, arguments.revision))


if __name__ == "__main__":
    run_command(main)
