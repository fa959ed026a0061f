"""Models, tokenizers and training runs pushed to a Hub and loaded from it, over HTTP and by the client as it is."""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib import request as http
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.local_hub import Blob, LocalHub, Repository, Request, environment
from tests.recipes import ROOT
from tests.tiny import scale, tiny, tokenizer
from vanilla_transformer import TranslationPipeline, VanillaTransformerForConditionalGeneration

CODE = {path.name for path in (ROOT / "vanilla_transformer").glob("*_vanilla_transformer.py")}
MODEL = {"README.md", "config.json", "generation_config.json", "model.safetensors", *CODE}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
TEXTS = ["w5 w6 w7", "w40 w8", "w9"]


def words(letter: str = "w") -> PreTrainedTokenizerFast:
    """A word for each id, as `letter` and the id; a text ends in the end token."""
    backend = Tokenizer.from_str(tokenizer().backend_tokenizer.to_str().replace('"w', f'"{letter}'))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def translator(seed: int = 0, **changes: Any) -> Any:
    """A random model whose translations differ with the seed."""
    model = scale(tiny(seed, tie_word_embeddings=False, **changes))
    model.generation_config.max_length_margin = 6
    return model


def two_languages() -> TranslationPipeline:
    """A model of two vocabularies, with a tokenizer for each."""
    model = translator(share_encoder_decoder_embeddings=False, decoder_vocab_size=50)
    return TranslationPipeline(model, words(), target_tokenizer=words("v"))


def translations(model: Any, target: PreTrainedTokenizerFast | None = None) -> list[str]:
    lines = [model.generate(**words()(text, return_tensors="pt"))[0] for text in TEXTS]
    return (target or words()).batch_decode(lines, skip_special_tokens=True)


def run(script: str, hub: LocalHub, home: Path, *arguments: str, token: str | None = "", offline: bool = False) -> Any:
    """What a script printed as JSON, run in this checkout in a Python of its own with the caches in `home`."""
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=environment(hub, home, token) | {"HF_HUB_OFFLINE": str(int(offline))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


class Pushed(NamedTuple):
    """What `PUSH` has pushed.

    Attributes:
        hub: where.
        sent: the requests that it took.
        first, last: commits of `user/name`: the model of seed 0 with the tokenizer, and that of seed 1.
    """

    hub: LocalHub
    sent: list[Request]
    first: str
    last: str


PUSH = """
from tests.test_hub import translator, two_languages, words

translator(0).push_to_hub("user/name")
words().push_to_hub("user/name")
translator(1).push_to_hub("user/name")
translator(2).push_to_hub("user/name", revision="tuned")
translator(0).push_to_hub("user/shards", max_shard_size="20KB")
words().push_to_hub("user/shards")
translator(0).push_to_hub("user/secret", private=True)
words().push_to_hub("user/secret")
two_languages().push_to_hub("user/two")
print("null")
"""


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    with LocalHub() as hub:
        run(PUSH, hub, tmp_path_factory.mktemp("pushing"))
        name = hub.repositories["user/name"]
        _, _, first, last, _ = name.commits
        broken = {**last.blobs, "modeling_vanilla_transformer.py": Blob(b"raise ImportError('edited')\n", large=False)}
        name.branches["edited"] = last.oid
        name.commit("edited", "Edit the code", broken)
        yield Pushed(hub, list(hub.requests), first.oid, last.oid)


def test_what_a_push_leaves(pushed: Pushed) -> None:
    """Weights, configs, a card and the code, named in config.json; the tokenizer beside them by a push of its own."""
    name = pushed.hub.repositories["user/name"]
    messages = ["initial commit", "Upload tokenizer", *["Upload VanillaTransformerForConditionalGeneration"] * 3]
    assert sorted(commit.message for commit in name.commits if commit.message != "Edit the code") == sorted(messages)
    assert name.files().keys() == {".gitattributes", *MODEL, *TOKENIZER}
    assert name.files(name.commits[1].oid).keys() == {".gitattributes", *MODEL}
    assert name.branches.keys() == {"main", "tuned", "edited"}
    assert name.branches["main"] == pushed.last
    config = json.loads(name.files()["config.json"])
    assert config["auto_map"]["AutoModelForSeq2SeqLM"].startswith("modeling_vanilla_transformer.")
    assert config["custom_pipelines"]["translation"]["impl"].startswith("pipeline_vanilla_transformer.")
    for file in CODE:
        assert name.files()[file] == (ROOT / "vanilla_transformer" / file).read_bytes()


def test_what_is_sent(pushed: Pushed) -> None:
    """The weights go as large files, the rest in the commit, and the token to the Hub alone."""
    blobs = pushed.hub.repositories["user/name"].at("main").blobs
    assert {path for path, blob in blobs.items() if blob.large} == {"model.safetensors"}
    assert {request.status for request in pushed.sent if request.method == "PUT"} == {200}
    for request in pushed.sent:
        assert ("Authorization" in request.headers) == (not request.path.startswith("/objects/"))
        assert "xet" not in request.path


def test_who_may_read_it(pushed: Pushed) -> None:
    private = {name: pushed.hub.repositories[name].private for name in ("user/name", "user/secret", "user/two")}
    assert private == {"user/name": False, "user/secret": True, "user/two": False}


def test_shards(pushed: Pushed) -> None:
    files = pushed.hub.repositories["user/shards"].files()
    shards = set(json.loads(files["model.safetensors.index.json"])["weight_map"].values())
    assert len(shards) > 2
    assert {name for name in files if name.endswith(".safetensors")} == shards


# Loading where the package is not


LOAD = """
import json, sys

sys.modules["vanilla_transformer"] = None
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

first, texts = sys.argv[1], json.loads(sys.argv[2])

def by_hand(name, **options):
    model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True, **options)
    config = AutoConfig.from_pretrained(name, trust_remote_code=True, **options)
    assert type(model).__module__.startswith("transformers_modules.user."), type(model)
    assert type(config) is type(model.config), (type(config), type(model.config))
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True, **options)
    lines = [model.generate(**tokenizer(text, return_tensors="pt"))[0] for text in texts]
    return tokenizer.batch_decode(lines, skip_special_tokens=True)

def by_pipeline(name, **options):
    pipe = pipeline("translation", name, trust_remote_code=True, **options)
    return [answer["translation_text"] for answer in pipe(texts)]

found = {}
try:
    AutoModelForSeq2SeqLM.from_pretrained("user/name", trust_remote_code=False)
except ValueError as error:
    found["untrusted"] = str(error)
found |= {
    "main": by_hand("user/name"),
    "main, pipeline": by_pipeline("user/name"),
    "first": by_hand("user/name", revision=first),
    "first, pipeline": by_pipeline("user/name", revision=first),
    "tuned": by_hand("user/name", revision="tuned"),
    "tuned, pipeline": by_pipeline("user/name", revision="tuned"),
    "other code": by_hand("user/name", revision="edited", code_revision=first),
    "shards": by_hand("user/shards"),
    "secret": by_pipeline("user/secret"),
    "two": by_pipeline("user/two"),
    "stock": by_hand("user/stock"),
    "paper": by_pipeline("user/paper"),
}
try:
    by_hand("user/name", revision="edited")
except ImportError as error:
    found["edited"] = str(error)
try:
    by_pipeline("user/name", revision="absent")
except OSError as error:
    found["absent"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The caches of whoever loads."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def loaded(pushed: Pushed, runs: Path, home: Path) -> dict[str, Any]:
    return run(LOAD, pushed.hub, home, pushed.first, json.dumps(TEXTS))


def test_loaded_where_the_package_is_not(loaded: dict[str, Any]) -> None:
    """By the Auto classes and by `pipeline`, in one piece and in shards; a private one by its owner. Not untrusted."""
    first, second = translations(translator(0)), translations(translator(1))
    assert first != second
    assert loaded["main"] == loaded["main, pipeline"] == second
    assert loaded["shards"] == loaded["secret"] == first
    assert "`trust_remote_code=True`" in loaded["untrusted"]


def test_the_target_s_tokenizer_is_found(loaded: dict[str, Any]) -> None:
    expected = translations(two_languages().model, words("v"))
    assert loaded["two"] == expected
    assert all(text.startswith("v") for text in expected)


def test_a_revision_is_pinned(loaded: dict[str, Any]) -> None:
    """A commit's hash, a branch's name; the code by a revision of its own."""
    assert loaded["first"] == loaded["first, pipeline"] == translations(translator(0))
    assert loaded["tuned"] == loaded["tuned, pipeline"] == translations(translator(2))
    assert loaded["edited"] == "edited"
    assert loaded["other code"] == translations(translator(1))
    assert "absent is not a valid git identifier" in loaded["absent"]


def test_loaded_from_the_cache(pushed: Pushed, loaded: dict[str, Any], home: Path) -> None:
    """Without a server."""
    with LocalHub() as gone:
        pass
    found = run(LOAD, gone, home, pushed.first, json.dumps(TEXTS), offline=True)
    assert "couldn't find them in the cached files" in found.pop("absent")
    assert found == {name: value for name, value in loaded.items() if name != "absent"}


# Loading where the package is


KNOWN = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
import vanilla_transformer
from vanilla_transformer.cli import main

token, source, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = {}

def attempt(name, call):
    try:
        call()
    except OSError as error:
        found[name] = [type(error).__name__, str(error)]

def read(name, **options):
    return AutoModelForSeq2SeqLM.from_pretrained(name, **options)

def by_hand():
    lines = [model.generate(**tokenizer(text, return_tensors="pt"))[0] for text in texts]
    return tokenizer.batch_decode(lines, skip_special_tokens=True)

model = read("user/name")
assert type(model) is vanilla_transformer.VanillaTransformerForConditionalGeneration
tokenizer = AutoTokenizer.from_pretrained("user/name")
found["by hand"] = by_hand()
found["pipeline"] = [answer["translation_text"] for answer in pipeline("translation", "user/name")(texts)]
assert not main(["translate", "user/name", "--input", source, "--output", source + ".out"])
found["command"] = open(source + ".out").read().splitlines()

attempt("read", lambda: read("user/secret"))
attempt("read, refused", lambda: read("user/secret", token="hf_of_another"))
attempt("push", lambda: model.push_to_hub("user/name"))
attempt("push, refused", lambda: model.push_to_hub("user/name", token="hf_of_another"))
attempt("push new", lambda: model.push_to_hub("user/new"))
attempt("push new, refused", lambda: model.push_to_hub("user/new", token="hf_of_another"))
attempt("push for another", lambda: model.push_to_hub("another/name", token=token))
found["the model after all"] = by_hand()
ids = tokenizer(texts[0], return_tensors="pt").input_ids
found["read, allowed"] = read("user/secret", token=token).generate(ids).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def known(pushed: Pushed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process finds that has the package, and no token of its own."""
    folder = tmp_path_factory.mktemp("known")
    (folder / "source").write_text("".join(f"{text}\n" for text in TEXTS))
    return run(KNOWN, pushed.hub, folder, pushed.hub.token, str(folder / "source"), json.dumps(TEXTS), token=None)


def test_loaded_where_the_package_is(known: dict[str, Any]) -> None:
    """Without trust in remote code, by the Auto classes, the pipeline and the command."""
    assert known["by hand"] == known["pipeline"] == known["command"] == translations(translator(1))


def test_reading_what_is_private(known: dict[str, Any]) -> None:
    """It needs the owner's token; without it the error names the model and the remedy."""
    for name, told in {"read": "logging in with `hf auth login`", "read, refused": "Invalid credentials"}.items():
        kind, message = known[name]
        assert kind == "OSError"
        assert "user/secret" in message
        assert told in message
    ids = words()(TEXTS[0], return_tensors="pt").input_ids
    assert known["read, allowed"] == translator(0).generate(ids).tolist()


@pytest.mark.parametrize(
    ("attempt", "status", "where", "why"),
    [
        ("push", 401, "/user/name/preupload/main", "Invalid username or password"),
        ("push, refused", 401, "/api/repos/create", "Invalid credentials in Authorization header"),
        ("push new", 401, "/api/repos/create", "Invalid username or password"),
        ("push new, refused", 401, "/api/repos/create", "Invalid credentials in Authorization header"),
        ("push for another", 403, "/api/repos/create", "Make sure your token has the correct permissions"),
    ],
)
def test_a_push_that_is_not_allowed(attempt: str, status: int, where: str, why: str, known: dict[str, Any]) -> None:
    """The client's own error says who refused what, and why: no token or a wrong one, or another's name."""
    kind, message = known[attempt]
    assert kind == "HfHubHTTPError"
    for part in (str(status), where, why):
        assert part in message


def test_a_push_that_is_not_allowed_changes_nothing(known: dict[str, Any], pushed: Pushed) -> None:
    assert pushed.hub.repositories["user/name"].branches["main"] == pushed.last
    assert pushed.hub.repositories.keys().isdisjoint({"user/new", "another/name"})
    assert known["the model after all"] == known["by hand"]


# Training runs


TRAIN = """
import json, sys
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from tests.test_hub import translator, words
from training.data import EncodedPairs
from training.trainer import TranslationTrainer, TranslationTrainingArguments

pairs = [(f"w{i} w{i + 1}", f"w{i + 2}") for i in range(4, 12)]
data = EncodedPairs(pairs, words(), words())
class Wait(TrainerCallback):
    def on_save(self, *arguments, **options):
        trainer.push_in_progress.wait_until_done()

options = {"max_steps": 2, "save_steps": 1, "push_to_hub": True, "report_to": "none", "use_cpu": True}

model = translator(0)
trainer = Seq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(sys.argv[1] + "/stock", hub_model_id="user/stock", **options),
    data_collator=DataCollatorForSeq2Seq(words(), model=model),
    train_dataset=data,
    processing_class=words(),
)
trainer.add_callback(Wait())
trainer.train()
trainer.push_to_hub()

arguments = TranslationTrainingArguments(
    sys.argv[1] + "/paper", hub_model_id="user/paper", hub_private_repo=True, **options
)
model = translator(0, share_encoder_decoder_embeddings=False, decoder_vocab_size=50)
trainer = TranslationTrainer(model, arguments, words(), data, target_tokenizer=words("v"))
trainer.add_callback(Wait())
trainer.train()
trainer.push_to_hub(language="de")
print("null")
"""


@pytest.fixture(scope="module")
def runs(pushed: Pushed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folders of two runs that were pushed."""
    folder = tmp_path_factory.mktemp("runs")
    run(TRAIN, pushed.hub, folder, str(folder))
    return folder


@pytest.mark.parametrize("name", ["stock", "paper"])
def test_a_trainer_pushes_its_run(name: str, runs: Path, pushed: Pushed) -> None:
    """While it trains and at its end: what its output folder holds at the top, and the card it writes."""
    repository = pushed.hub.repositories[f"user/{name}"]
    assert repository.private == (name == "paper")
    steps = ["Training in progress, step 1", "Training in progress, step 2"]
    assert [commit.message for commit in repository.commits] == ["initial commit", *steps, "End of training"]
    for step in (1, 2):
        weights = runs / name / f"checkpoint-{step}" / "model.safetensors"
        assert repository.files(repository.commits[step].oid)["model.safetensors"] == weights.read_bytes()
    top = [path for path in (runs / name).glob("*") if not path.name.startswith("checkpoint-")]
    here = {path.name: path.read_bytes() for path in top if path.is_file()}
    for path in (runs / name / "target_tokenizer").glob("*"):
        here[f"target_tokenizer/{path.name}"] = path.read_bytes()
    files = repository.files()
    assert files.pop(".gitattributes")
    assert files == here
    target = {f"target_tokenizer/{file}" for file in TOKENIZER} if name == "paper" else set()
    assert files.keys() == {*MODEL, *TOKENIZER, *target, "training_args.bin"}
    scheduler = "noam" if name == "paper" else "linear"
    assert f"- lr_scheduler_type: {scheduler}\n" in files["README.md"].decode()


def test_a_pushed_run_is_loaded(loaded: dict[str, Any], runs: Path) -> None:
    stock, paper = (VanillaTransformerForConditionalGeneration.from_pretrained(runs / n) for n in ("stock", "paper"))
    assert loaded["stock"] == translations(stock)
    assert loaded["paper"] == translations(paper, words("v"))


# What breaks off


BREAK = """
import json
from huggingface_hub.errors import HTTPError
from tests.test_hub import translator

def attempt(seed, **options):
    try:
        return translator(seed).push_to_hub("user/broken", **options).oid
    except (RuntimeError, HTTPError) as error:
        return [type(error).__name__, str(error)]

print(json.dumps([*(attempt(0, max_shard_size="20KB") for _ in range(3)), attempt(1)]))
"""


def test_a_push_that_breaks_off_is_repeated(tmp_path: Path) -> None:
    """One in the middle of a shard, one in the middle of the commit; the third sends no shard again, and is whole."""
    translator(0).save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    translator(1).save_pretrained(tmp_path / "model")
    shards = {sha256(path.read_bytes()): path.name for path in sorted((tmp_path / "shards").glob("*.safetensors"))}
    second = list(shards)[1]
    whole = sha256((tmp_path / "model" / "model.safetensors").read_bytes())
    with LocalHub() as hub:
        hub.break_request("PUT", second, status=400)
        hub.break_request("POST", "/commit/")
        hub.break_request("PUT", whole)
        uploading, committing, oid, last = run(BREAK, hub, tmp_path / "home")
    assert uploading == ["RuntimeError", f"Error while uploading '{shards[second]}' to the Hub."]
    assert committing[0] in {"RemoteProtocolError", "ReadError", "WriteError"}
    repository = hub.repositories["user/broken"]
    assert [commit.oid for commit in repository.commits[1:]] == [oid, last]
    pushed, here = repository.files(oid), contents(tmp_path / "shards")
    assert {name: pushed[name] for name in here} == here
    assert pushed.keys() - here.keys() == {".gitattributes", "README.md"}
    pushed, here = repository.files(last), contents(tmp_path / "model")
    assert {name: pushed[name] for name in here} == here
    sent: dict[str, list[int]] = {}
    for request in hub.requests:
        if request.method == "PUT":
            sent.setdefault(urlsplit(request.path).path.removeprefix("/objects/"), []).append(request.status)
    # The client itself repeats one that ended with a closed connection.
    assert sent == {oid: [200] for oid in shards} | {second: [400, 200], whole: [0, 200]}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# The Hub of these tests, asked by the client


ASK = """
import hashlib, json
from pathlib import Path
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

api, name, found = HfApi(), "user/asked", {}

def add(**files):
    return [CommitOperationAdd(path.replace("__", "/"), data) for path, data in files.items()]

def refused(call):
    try:
        call()
    except HfHubHTTPError as error:
        return [type(error).__name__, error.response.status_code]

found["user"] = api.whoami()["name"]
api.create_repo(name)
first = api.create_commit(name, add(a=b"a", sub__w=bytes(100), sub__deep__b=b"b"), commit_message="one").oid
found["tree"] = [entry.path for entry in api.list_repo_tree(name)]
found["below"] = [entry.path for entry in api.list_repo_tree(name, "sub", recursive=True)]
found["sizes"] = {entry.path: [entry.size, entry.lfs is not None]
                  for entry in api.get_paths_info(name, ["a", "sub/w", "absent"])}
api.create_branch(name, branch="dev/x", revision=first)
api.create_branch(name, branch="dev/x", exist_ok=True)
found["other"] = api.create_commit(name, add(a=b"other"), commit_message="two", revision="dev/x").oid
api.delete_folder("sub", name)
found["left"] = api.list_repo_files(name)
found["branches"] = {branch.name: branch.target_commit for branch in api.list_repo_refs(name).branches}
found["main"] = api.model_info(name).sha
found["a"] = [Path(api.hf_hub_download(name, "a", revision=revision)).read_text() for revision in ("dev/x", first)]
found["refused"] = [
    refused(lambda: api.create_repo(name)),
    refused(lambda: api.create_branch(name, branch="dev/x")),
    refused(lambda: api.create_branch(name, branch="y", revision="absent")),
    refused(lambda: api.create_commit(name, add(c=b"c"), commit_message="late", parent_commit=first)),
    refused(lambda: api.create_commit(name, add(c=b"c"), commit_message="nowhere", revision=first)),
    refused(lambda: api.delete_file("absent", name)),
    refused(lambda: list(api.list_repo_tree(name, "absent"))),
    refused(lambda: api.hf_hub_download(name, "absent")),
    refused(lambda: api.hf_hub_download(name, "a", revision="absent")),
    refused(lambda: api.model_info("user/absent")),
    refused(lambda: HfApi(token=False).model_info("user/absent")),
    refused(lambda: HfApi(token="hf_of_another").whoami()),
]
try:
    api.upload_file(path_or_fileobj=b"---\\nlicense: free\\n---\\n", path_in_repo="README.md", repo_id=name)
except ValueError as error:
    found["card"] = str(error)
found["large"] = hashlib.sha256(Path(api.hf_hub_download("user/large", "w")).read_bytes()).hexdigest()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def large() -> Blob:
    """More than twice what the client takes at a time, 10 MiB."""
    return Blob(random.Random(0).randbytes(25 * 2**20), large=True)


@pytest.fixture(scope="module")
def asked(large: Blob, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalHub, dict[str, Any]]:
    with LocalHub() as hub:
        hub.objects[large.oid] = large.data
        hub.repositories["user/large"] = Repository()
        hub.repositories["user/large"].commit("main", "large", {"w": large})
        hub.break_request("GET", "/objects/")
        return hub, run(ASK, hub, tmp_path_factory.mktemp("asking"))


def test_the_client_s_questions(asked: tuple[LocalHub, dict[str, Any]]) -> None:
    hub, found = asked
    repository = hub.repositories["user/asked"]
    assert found["user"] == "user"
    assert found["tree"] == [".gitattributes", "a", "sub"]
    assert found["below"] == ["sub/deep", "sub/deep/b", "sub/w"]
    assert found["sizes"] == {"a": [1, False], "sub/w": [100, True]}
    assert found["left"] == [".gitattributes", "a"]
    assert found["branches"] == repository.branches == {"main": found["main"], "dev/x": found["other"]}
    assert found["a"] == ["other", "a"]
    assert [commit.message for commit in repository.commits][:3] == ["initial commit", "one", "two"]
    assert '"license" must be one of' in found["card"]


def test_what_the_client_makes_of_refusals(asked: tuple[LocalHub, dict[str, Any]]) -> None:
    assert asked[1]["refused"] == [
        ["HfHubHTTPError", 409],
        ["HfHubHTTPError", 409],
        ["RevisionNotFoundError", 404],
        ["HfHubHTTPError", 412],
        ["RevisionNotFoundError", 404],
        ["RemoteEntryNotFoundError", 404],
        ["RemoteEntryNotFoundError", 404],
        ["RemoteEntryNotFoundError", 404],
        ["RevisionNotFoundError", 404],
        ["RepositoryNotFoundError", 404],
        ["RepositoryNotFoundError", 401],
        ["HfHubHTTPError", 401],
    ]


def test_a_download_that_breaks_off_is_resumed(asked: tuple[LocalHub, dict[str, Any]], large: Blob) -> None:
    hub, found = asked
    assert found["large"] == large.oid
    gets = [request for request in hub.requests if (request.method, request.path[:9]) == ("GET", "/objects/")]
    assert [(request.status, request.headers["Range"]) for request in gets] == [(200, None), (206, "bytes=10485760-")]


@pytest.mark.parametrize(
    ("wanted", "status", "part", "found"),
    [
        ("bytes=0-4", 206, b"01234", "bytes 0-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
    ],
)
def test_parts_of_a_file(wanted: str, status: int, part: bytes | None, found: str) -> None:
    with LocalHub() as hub:
        hub.repositories["user/name"] = Repository()
        hub.repositories["user/name"].commit("main", "digits", {"digits": Blob(b"0123456789", large=False)})
        asking = http.Request(f"{hub.url}/user/name/resolve/main/digits", headers={"Range": wanted})
        try:
            with http.urlopen(asking) as answer:
                assert answer.read() == part
        except HTTPError as error:
            answer = error
        assert (answer.status, answer.headers["Content-Range"]) == (status, found)
