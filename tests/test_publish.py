"""`python -m training.publish` against a Hub on this machine: what goes, what stays, and who may not."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from huggingface_hub import ModelCard

from tests.local_hub import Blob, LocalHub, Repository, environment
from tests.recipes import ROOT, SMALL_TRAINING, run_module, write_recipe, write_text
from tests.test_model_card import write_run
from tests.tiny import tiny, tokenizer
from training import publish
from training.errors import UsageError
from training.model_card import MARKER
from training.publish import REPLACED, files_to_publish, find_run

CODE = {path.name for path in (ROOT / "vanilla_transformer").glob("*_vanilla_transformer.py")}
MODEL = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
PUBLISHED = {*MODEL, *CODE, "curves.png", "README.md"}

# The commands of one process, as to import takes longer than to publish: a line of output for each.
COMMANDS = """
import json, os, sys
from training.errors import CommandError
from training.publish import main

for settings, arguments in json.loads(sys.argv[1]):
    os.environ |= settings
    sys.argv = ["training.publish", *arguments]
    try:
        main()
    except CommandError as error:
        print(f"{error.status}: {error}")
"""


def run_commands(hub: LocalHub, home: Path, *commands: tuple[dict[str, str], list[str]]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=home,
        env=environment(hub, home) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(commands), done.stdout
    return lines


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three updates, which averages two checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    source, target = [f"the cat number {i} sleeps" for i in range(60)], [f"Katze {i} schläft" for i in range(60)]
    text = [
        *("--train_source", write_text(folder / "train.en", source)),
        *("--train_target", write_text(folder / "train.de", target)),
        *("--test_source", write_text(folder / "test.en", source[:4])),
        *("--test_target", write_text(folder / "test.de", target[:4])),
    ]
    averaging = "average_last: 2\nsave_strategy: steps\nsave_steps: 1\nuse_cpu: true\n"
    recipe = write_recipe(folder / "cats", SMALL_TRAINING + averaging)
    done = run_module("training.train", str(recipe), *text, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "cats"


class Command(NamedTuple):
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def published(trained: Path, hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The run published as `user/cats`, as a user does it."""
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, "-m", "training.publish", str(trained), "user/cats", "--license", "apache-2.0"],
        cwd=home,
        env=environment(hub, home) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Command(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run without a training: a model, a tokenizer, the files of a run, a checkpoint."""
    run = write_run(tmp_path / "run")
    tokenizer().save_pretrained(run)
    for name in ("curves.png", "training_args.bin", "test_hypotheses.txt"):
        (run / name).write_text("curves, options or translations\n")
    shutil.copytree(run, run / "checkpoint-100000")
    (run / "checkpoint-100000" / "optimizer.pt").write_text("state")
    return run


def ask(*arguments: str | Path) -> None:
    """The command in this process, up to the Hub."""
    sys.argv = ["training.publish", *map(str, arguments)]
    publish.main()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Hub for this process, and its arguments as before when a test ends."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("the Hub is asked")

    monkeypatch.setattr(publish, "HfApi", refuse)
    monkeypatch.setattr(sys, "argv", sys.argv)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_to_the_hub_in_one_commit(published: Command, trained: Path, hub: LocalHub) -> None:
    assert published.returncode == 0, published.stderr
    assert published.stdout == f"{hub.url}/user/cats\n"
    repository = hub.repositories["user/cats"]
    assert not repository.private
    assert [commit.message for commit in repository.commits] == [
        *("initial commit", "Upload a model trained with vanilla_transformer"),
    ]
    here = contents(trained)
    assert here.keys() > {"training_args.bin", "test_hypotheses.txt", "checkpoint-3/optimizer.pt"}
    assert repository.files() == {name: here[name] for name in PUBLISHED} | {
        ".gitattributes": repository.commits[0].blobs[".gitattributes"].data
    }
    assert "/api/validate-yaml" in [request.path for request in hub.requests]


def test_card_of_a_run_as_it_was_trained(published: Command, trained: Path, hub: LocalHub) -> None:
    """What the run kept stands in it: both scores, the pairs, the hardware, the recipe."""
    card = hub.repositories["user/cats"].files()["README.md"].decode()
    results = json.loads((trained / "all_results.json").read_text())
    data = ModelCard(card).data
    said = [data.get(name) for name in ("license", "language", "datasets", "metrics")]
    assert said == ["apache-2.0", ["en", "de"], None, ["bleu", "chrf"]]
    (split,) = data.to_dict()["model-index"][0]["results"]
    assert split["dataset"] == {"name": "test.en", "type": "text", "split": "test"}
    assert [metric["value"] for metric in split["metrics"]] == [
        round(results[f"test_{name}"], 2) for name in ("bleu", "chrf")
    ]
    signatures = [metric["args"]["signature"] for metric in split["metrics"]]
    assert signatures[0].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert signatures[1].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    for line in (
        "Trained by the recipe `cats`. What this run did is in the sections below.",
        "Training text: train.en.",
        "| used | 60 |",
        "| left out, longer than 256 tokens | 0 |",
        "| updates | 3 (3 epochs) |",
        "| tokens an update | at most 512 a side, padding counted (512 × 1 process × 1 accumulated) |",
        "| weights | the average of 2 checkpoints, checkpoint-2 to checkpoint-3 |",
    ):
        assert f"\n{line}\n" in card, card
    assert re.search(r"^\| hardware \| .+, 1 thread \|$", card, flags=re.MULTILINE)
    assert re.search(r"^\| versions \| python 3\.\d+\.\d+, torch 2\.", card, flags=re.MULTILINE)


def test_lines_to_copy_work_where_the_package_is_not(
    published: Command, trained: Path, hub: LocalHub, tmp_path: Path
) -> None:
    card = hub.repositories["user/cats"].files()["README.md"].decode()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(code.splitlines()) == 5
    code = code.replace(
        '["A first text.", "A second text."]', '["the cat number 0 sleeps", "the cat number 1 sleeps"]'
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.modules['vanilla_transformer'] = None\n{code}"],
        cwd=tmp_path,
        env=environment(hub, tmp_path, token=None),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (trained / "test_hypotheses.txt").read_text("utf-8").splitlines()[:2]


def test_where_it_goes(hub: LocalHub, folder: Path, tmp_path: Path) -> None:
    """To a private repository, to a branch; in the place of what was there, and only of that."""
    older = hub.repositories["user/older"] = Repository()
    stale = ("model.safetensors.index.json", "target_tokenizer/tokenizer.json", "old_vanilla_transformer.py")
    older.commit("main", "An older model", {name: Blob(b"old", large=False) for name in (*stale, "notes.txt")})
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n", encoding="utf-8")
    path = str(folder)
    assert run_commands(
        hub,
        tmp_path,
        ({}, [path, "user/model"]),
        ({}, [path, "user/model", "--revision", "v2", "--license", "mit"]),
        ({}, [path, "user/secret", "--private"]),
        ({}, [path, "user/secret", "--private"]),
        ({}, [path, "user/model", "--private"]),
        ({}, [str(own), "user/older"]),
    ) == [
        f"{hub.url}/user/model",
        f"{hub.url}/user/model/tree/v2",
        f"{hub.url}/user/secret",
        f"{hub.url}/user/secret",
        "2: user/model is public already: make it private in its settings, or drop --private",
        f"{hub.url}/user/older",
    ]
    model, secret = hub.repositories["user/model"], hub.repositories["user/secret"]
    assert (model.private, secret.private) == (False, True)
    assert len(secret.commits) == 2  # the second time there was nothing new
    assert 'model="user/model", trust_remote_code' in model.files()["README.md"].decode()
    branch = model.files("v2")["README.md"].decode()
    assert 'model="user/model", revision="v2", trust_remote_code' in branch
    assert "\nlicense: mit\n" in branch
    assert older.files().keys() == {*PUBLISHED, "notes.txt"}
    assert older.files()["README.md"] == (own / "README.md").read_bytes() == b"---\nlicense: mit\n---\n# Mine\n"


def test_what_the_hub_refuses(folder: Path, tmp_path: Path) -> None:
    """One line each, and nothing of the model there; after a broken upload the same command brings it."""
    path = str(folder)
    with LocalHub() as hub:
        hub.break_request("PUT", "/objects/", status=400)
        hub.break_request("POST", "/api/repos/create", nth=3)
        hub.break_request("POST", "/api/repos/create", nth=4, status=500)
        hub.break_request("POST", "/api/repos/create", nth=5, status=422)
        lines = run_commands(
            hub,
            tmp_path,
            ({}, [path, "user/broken"]),
            ({}, [path, "user/broken"]),
            ({}, [path, "user/never"]),
            ({}, [path, "user/never"]),
            ({}, [path, "user/never"]),
            ({}, [path, "another/name"]),
            ({"HF_TOKEN": "hf_of_another"}, [path, "user/refused"]),
            ({"HF_TOKEN": ""}, [path, "user/refused"]),
        )
    unsent = "Error while uploading 'model.safetensors' to the Hub: Bad request"
    assert lines[0] == f"1: user/broken: {unsent}: the same command sends the rest"
    assert lines[1] == f"{hub.url}/user/broken"
    assert re.fullmatch(r"1: user/never: the Hub cannot be reached \(.+\): try again later", lines[2])
    assert lines[3] == "1: user/never: the Hub fails (500): try again later"
    assert re.fullmatch(r"2: user/never: the Hub refuses \(422, .*\)", lines[4])
    assert re.fullmatch(r"2: another/name: the token may not write there \(403, .*rights to create.*\)", lines[5])
    assert re.fullmatch(r"2: user/refused: the Hub does not accept the token \(401, .*\)", lines[6])
    assert lines[7] == "2: no token of the Hub: run `hf auth login`, or set HF_TOKEN, with a token that may write"
    assert hub.repositories.keys() == {"user/broken"}
    assert [len(commit.blobs) for commit in hub.repositories["user/broken"].commits] == [1, 1 + len(PUBLISHED)]


def test_offline(folder: Path, tmp_path: Path) -> None:
    home = environment(LocalHub(), tmp_path) | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "training.publish", str(folder), "user/model"]
    done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, check=False)
    message = "error: user/model: HF_HUB_OFFLINE is set: unset it, or give --dry-run\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_dry_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths and sizes, the card; nothing is written."""
    before = contents(folder)
    ask(folder, "user/model", "--dry-run", "--license", "mit", "--revision", "v2")
    listing, card = capsys.readouterr().out.split("\n\n", 1)
    sizes = {name: int(size.replace(",", "")) for size, name in (line.split() for line in listing.splitlines())}
    assert sizes.pop("README.md") == len(card.encode())
    assert sizes == {name: len(before[name]) for name in PUBLISHED - {"README.md"}}
    assert ModelCard(card).data.get("license") == "mit"
    assert 'revision="v2"' in card
    assert contents(folder) == before


def test_dry_run_of_a_card_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "---\nlicense: mit\n---\n# Mine\n"
    (folder / "README.md").write_text(own, encoding="utf-8")
    ask(folder, "user/model", "--dry-run")
    said = capsys.readouterr()
    assert said.out.endswith(f"\n\n{own}")
    assert said.err == f"{folder}/README.md was not made by this command: it goes as it is\n"
    with pytest.raises(UsageError, match=r"--license mit: .*README\.md goes as it is: name the licence there"):
        ask(folder, "user/model", "--dry-run", "--license", "mit")
    (folder / "README.md").write_text(f"{own}\n{MARKER}\n", encoding="utf-8")
    ask(folder, "user/model", "--dry-run", "--license", "apache-2.0")
    assert "license: apache-2.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "card, error",
    [
        (b"---\na: [\n---\n", "README.md: while parsing"),
        (b"---\n- a\n---\n", "README.md: repo card"),
        (b"\xff", "README.md: "),
    ],
    ids=["no YAML", "a list", "no UTF-8"],
)
def test_damaged_card_of_ones_own(card: bytes, error: str, folder: Path) -> None:
    (folder / "README.md").write_bytes(card)
    with pytest.raises(UsageError, match=rf"{error}.*: mend it, or remove it to have one made$"):
        ask(folder, "user/model")


def test_shards_and_a_tokenizer_for_each_side(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    tiny().save_pretrained(folder, max_shard_size="20KB")
    tokenizer().save_pretrained(folder / "target_tokenizer")
    shards = {path.name for path in folder.glob("model-*-of-*.safetensors")}
    assert len(shards) > 1
    weights = {"model.safetensors.index.json", *shards}
    target = {"target_tokenizer/tokenizer.json", "target_tokenizer/tokenizer_config.json"}
    expected = (PUBLISHED - {"README.md", "model.safetensors"}) | weights | target
    assert set(files_to_publish(folder)) == expected
    assert find_run(folder).parameters() == 11936
    (folder / min(shards)).unlink()
    with pytest.raises(UsageError, match=f"{min(shards)} cannot be read"):
        find_run(folder)


def test_what_is_left_of_shards_does_not_go(folder: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (folder / name).write_text("{}")
    assert set(files_to_publish(folder)) == PUBLISHED - {"README.md"}


def unfinished(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_checkpoints(folder: Path) -> None:
    unfinished(folder)
    shutil.rmtree(folder / "checkpoint-100000")


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def without_code(folder: Path) -> None:
    (folder / "loss_vanilla_transformer.py").unlink()


def without_modeling(folder: Path) -> None:
    (folder / "modeling_vanilla_transformer.py").unlink()


def edit_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def without_auto_map(folder: Path) -> None:
    edit_config(folder, auto_map={}, custom_pipelines={})


def of_another_type(folder: Path) -> None:
    edit_config(folder, model_type="marian")


def with_damaged_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage, error",
    [
        (shutil.rmtree, r"no folder .*/run"),
        (unfinished, r".*/run holds no finished model \(config.json and model.safetensors\): the command that began "
         r"the run continues it; to publish its last checkpoint, give .*/run/checkpoint-100000"),
        (without_checkpoints, r".* holds no finished model .*: the command that began the run continues it"),
        (without_tokenizer, r".*/run holds no tokenizer \(tokenizer.json\)"),
        (without_code, r".*/run lacks loss_vanilla_transformer.py, which the model's code needs"),
        (without_modeling, r".*/run lacks modeling_vanilla_transformer.py, which the model's code needs"),
        (without_auto_map, r".*/config.json names no code \(`auto_map`\), .*: load it here and save it again with .*"),
        (of_another_type, r".*/run holds a model of type 'marian', not 'vanilla_transformer'"),
        (with_damaged_weights, r".*/model.safetensors cannot be read: .*"),
    ],
)  # fmt: skip
def test_folder_that_cannot_go(damage: Callable[[Path], None], error: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(UsageError) as raised:
        ask(folder, "user/model")
    assert re.fullmatch(error, str(raised.value))


def test_checkpoint_can_go(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(folder / "checkpoint-100000", "user/model", "--dry-run")
    assert "optimizer" not in capsys.readouterr().out.split("\n\n")[0]


@pytest.mark.parametrize("name", ["model", "a/b/c", "user/mo--del", "user/.model", "user/ä", "user/"])
def test_bad_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(name)}: ") as raised:
        ask(tmp_path, name)
    assert "\n" not in str(raised.value)


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        ask("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert set(re.findall(r"--[a-z-]+", said)) == {"--help", "--license", "--private", "--revision", "--dry-run"}
    assert said.count("(default: ") == 4


def test_what_replaces_what_is_of_the_models_alone() -> None:
    from fnmatch import fnmatch

    kept = ("README.md", "notes.txt", "onnx/model.onnx", "tokenizer.json", "train.py", "adapter.safetensors")
    assert not [name for name in kept for pattern in REPLACED if fnmatch(name, pattern)]
