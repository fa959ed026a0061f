"""`pipeline("translation")`: what goes in, what comes out, where it is found (B57)."""

import copy
import importlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoConfig,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

import vanilla_transformer
from tests.tiny import reload, scale, tiny
from training.continuing import check_model
from training.errors import UsageError
from vanilla_transformer import TranslationPipeline, VanillaTransformerConfig, translate

ROOT = Path(vanilla_transformer.__file__).parents[1]
METRIC = ROOT / "training" / "metrics" / "compound_split_bleu"
CUSTOM_PIPELINES = {
    "translation": {"impl": "pipeline_vanilla_transformer.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
}
MARGIN = 6


def word_tokenizer(letter: str, size: int = 50) -> PreTrainedTokenizerFast:
    """A word of that letter for each id; a text ends in the end token."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"{letter}{i}" for i in range(4, size))]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def translator(**changes: Any) -> Any:
    """A random model in float64: some of its translations end by themselves, some at their limit."""
    changes = {"final_logits_bias": True, "tie_word_embeddings": False, **changes}
    model = scale(tiny(**changes), 4)
    assert model.final_logits_bias is not None
    with torch.no_grad():
        model.final_logits_bias[:, 2] = 4
    model.generation_config.max_length_margin = MARGIN
    return model.double()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer("w")


@pytest.fixture
def model() -> Any:
    return translator()


@pytest.fixture
def pipe(model: Any, tokenizer: PreTrainedTokenizerFast) -> TranslationPipeline:
    return TranslationPipeline(model, tokenizer)


@pytest.fixture
def folder(model: Any, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def texts(n: int = 10) -> list[str]:
    rng = random.Random(1)
    return [" ".join(f"w{rng.randint(4, 49)}" for _ in range(rng.randint(1, 7))) for _ in range(n)]


def encoded(text: str) -> Tensor:
    return torch.tensor([[*(int(word[1:]) for word in text.split()), 2]])


def decoded(ids: Tensor, letter: str = "w") -> str:
    return " ".join(f"{letter}{i}" for i in ids.tolist() if i > 3)


def by_hand(model: Any, text: str, **options: Any) -> list[dict[str, str]]:
    """The answer for one text, from `generate` and a decoder of its own."""
    return [{"translation_text": decoded(row)} for row in model.generate(encoded(text), **options)]


def listen(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """What the model will be asked for."""
    given: list[list[list[int]]] = []
    generate = model.generate

    def listening(**inputs: Any) -> Any:
        given.append(inputs["input_ids"].tolist())
        return generate(**inputs)

    monkeypatch.setattr(model, "generate", listening)
    return given


def unasked(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("the model was asked")


# What goes in, what comes out


def test_one_text(model: Any, pipe: TranslationPipeline) -> None:
    answers = [pipe(text) for text in texts()]
    assert answers == [by_hand(model, text) for text in texts()]
    assert len({answer[0]["translation_text"] for answer in answers}) > 4
    assert [answer[0]["translation_text"] for answer in answers] == list(translate(model, pipe.tokenizer, texts()))


@pytest.mark.parametrize(
    "form",
    [list, tuple, lambda lines: Dataset.from_dict({"en": lines})["en"]],
    ids=["list", "tuple", "column"],
)
def test_a_sequence_gives_a_list(form: Callable[[list[str]], Any], model: Any, pipe: TranslationPipeline) -> None:
    """A dict for each text, as in transformers 4."""
    answers = pipe(form(texts()))
    assert answers == [by_hand(model, text)[0] for text in texts()]
    assert type(answers) is list


@pytest.mark.parametrize(
    "form",
    [
        lambda lines: (line for line in lines),
        iter,
        lambda lines: dict.fromkeys(lines).keys(),
        lambda lines: KeyDataset(Dataset.from_dict({"en": lines}), "en"),
    ],
    ids=["generator", "iterator", "iterable", "KeyDataset"],
)
def test_a_stream_gives_an_iterator(form: Callable[[list[str]], Any], model: Any, pipe: TranslationPipeline) -> None:
    """A list for each text, as in transformers 4."""
    assert len(set(texts())) == len(texts())
    for batch_size in (1, 3):
        answers = pipe(form(texts()), batch_size=batch_size)
        assert not isinstance(answers, list)
        assert list(answers) == [by_hand(model, text) for text in texts()]


def test_a_stream_is_read_as_it_is_asked_for(pipe: TranslationPipeline) -> None:
    read: list[str] = []

    def endless() -> Iterator[str]:
        while True:
            read.append("w5")
            yield "w5"

    answers = iter(pipe(endless(), batch_size=2))
    for _ in range(3):
        next(answers)
    assert len(read) <= 6


def test_a_key_dataset_tells_its_length(pipe: TranslationPipeline) -> None:
    assert len(pipe(KeyDataset(Dataset.from_dict({"en": texts(4)}), "en"))) == 4


@pytest.mark.parametrize(
    "nothing",
    [[], (), KeyDataset(Dataset.from_dict({"en": []}), "en"), iter(())],
    ids=lambda value: type(value).__name__,
)
def test_no_text_gives_no_answer(nothing: Any, pipe: TranslationPipeline) -> None:
    assert list(pipe(nothing)) == []


def test_several_translations_of_each(model: Any, pipe: TranslationPipeline) -> None:
    expected = [by_hand(model, text, num_beams=3, num_return_sequences=2) for text in texts()]
    assert all(len(group) == 2 for group in expected)
    options = {"num_beams": 3, "num_return_sequences": 2}
    assert [pipe(text, **options) for text in texts()] == expected
    assert pipe(texts(), **options) == expected
    assert pipe(texts(), batch_size=4, **options) == expected
    assert list(pipe(iter(texts()), **options)) == expected


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("n", [1, 2])
def test_the_batch_changes_nothing(n: int, side: str, model: Any) -> None:
    """Neither texts nor ids, with blank texts in between."""
    tokenizer = word_tokenizer("w")
    tokenizer.padding_side = side
    pipe = TranslationPipeline(model, tokenizer, num_return_sequences=n, return_tensors=True, return_text=True)
    lines = ["", *texts(5), " ", "", *texts(10)[5:], "\t\u2028"]

    def plain(answers: list[Any]) -> list[Any]:
        flat = [record for answer in answers for record in (answer if n > 1 else [answer])]
        return [(record["translation_text"], record["translation_token_ids"].tolist()) for record in flat]

    alone = plain([pipe(line) if n > 1 else pipe(line)[0] for line in lines])
    assert len({ids[-1] for _, ids in alone if ids}) > 2
    for batch_size in (1, 2, 3, 7, 50):
        assert plain(pipe(lines, batch_size=batch_size)) == alone


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_blank_text_is_not_given_to_the_model(
    batch_size: int, model: Any, pipe: TranslationPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_hand(model, "w5 w6")[0]["translation_text"]
    given = listen(model, monkeypatch)
    blank = ["", " ", "\u2003\n", "\u200b", "\ufeff", "\x00", "\u00ad", "\t\u2028"]
    answers = [answer["translation_text"] for answer in pipe(["w5 w6", *blank], batch_size=batch_size)]
    assert answers == [expected, *[""] * len(blank)]
    assert given == [[[5, 6, 2]]]
    monkeypatch.setattr(model, "generate", unasked)
    assert pipe("") == [{"translation_text": ""}]
    assert pipe(["", " "], batch_size=batch_size) == [{"translation_text": ""}] * 2
    assert pipe("", num_return_sequences=2) == [{"translation_text": ""}] * 2
    two = GenerationConfig(num_beams=2, num_return_sequences=2)
    assert pipe(["", " "], batch_size=batch_size, generation_config=two) == [[{"translation_text": ""}] * 2] * 2
    assert pipe("", return_tensors=True)[0]["translation_token_ids"].tolist() == []
    monkeypatch.setattr(model.generation_config, "num_return_sequences", 3)
    assert pipe([""]) == [[{"translation_text": ""}] * 3]


def test_ids_and_text(model: Any, pipe: TranslationPipeline) -> None:
    (ids,) = model.generate(encoded("w5 w6"))
    (record,) = pipe("w5 w6", return_tensors=True)
    assert record.keys() == {"translation_token_ids"}
    assert record["translation_token_ids"].equal(ids)
    (record,) = pipe("w5 w6", return_tensors=True, return_text=True)
    assert list(record) == ["translation_token_ids", "translation_text"]
    assert record["translation_text"] == decoded(ids)
    assert pipe("w5 w6", return_text=True, return_tensors=False) == [{"translation_text": decoded(ids)}]
    with pytest.raises(ValueError, match="nothing to return"):
        pipe("w5 w6", return_text=False)


def test_ids_are_without_padding(model: Any, pipe: TranslationPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever id it is."""
    output = torch.tensor([[1, 0, 5, 9, 9], [9, 5, 2, 0, 0]])
    monkeypatch.setattr(model, "generate", lambda **inputs: output)

    def ids(**options: Any) -> list[list[int]]:
        records = pipe(["w5", "w6"], batch_size=2, return_tensors=True, **options)
        return [record["translation_token_ids"].tolist() for record in records]

    assert ids() == [[1, 0, 5, 9, 9], [9, 5, 2]]
    assert ids(pad_token_id=9) == [[1, 0, 5], [9, 5, 2, 0, 0]]
    monkeypatch.setattr(model.generation_config, "pad_token_id", None)
    assert ids() == output.tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        b"w5",
        {"text": "w5"},
        [1],
        ["w5", None],
        [["w5"]],
        [b"w5"],
        [{"role": "user", "content": "w5"}],
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_text_is_refused(
    wrong: Any, model: Any, pipe: TranslationPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is translated."""
    monkeypatch.setattr(model, "generate", unasked)
    found = type(wrong[1] if wrong == ["w5", None] else wrong[0] if isinstance(wrong, list) else wrong).__name__
    with pytest.raises(TypeError, match=f"a string, or a list or other iterable of strings, not {found}$"):
        pipe(wrong)


@pytest.mark.parametrize("wrong", [3, None, ["w5"]], ids=str)
def test_what_is_no_text_in_a_stream_is_refused(wrong: Any, pipe: TranslationPipeline) -> None:
    answers = iter(pipe(iter(["w5", wrong])))
    next(answers)
    with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
        next(answers)
    with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
        list(pipe(KeyDataset(Dataset.from_dict({"en": [wrong]}), "en")))


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 3, "length_penalty": 2.0},
        {"max_new_tokens": 3},
        {"max_length": 5, "num_beams": 1},
        {"num_beams": 2, "no_repeat_ngram_size": 1},
        {"num_beams": 1, "output_scores": True, "return_dict_in_generate": True},
    ],
    ids=str,
)
def test_every_option_of_generate(options: dict[str, Any], model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """In a call or at construction."""
    plain = {name: value for name, value in options.items() if name != "return_dict_in_generate"}
    expected = [by_hand(model, text, **plain)[0] for text in texts()]
    pipe = TranslationPipeline(model, tokenizer)
    assert pipe(texts(), **options) == expected
    assert TranslationPipeline(model, tokenizer, **options)(texts()) == expected
    assert pipe(texts()) == [by_hand(model, text)[0] for text in texts()], "a call's options do not stay"


def test_options_of_a_call_come_first(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    pipe = TranslationPipeline(model, tokenizer, max_new_tokens=1, num_beams=1, return_tensors=True, batch_size=4)
    (record,) = pipe("w5 w6", max_new_tokens=4, return_tensors=False)
    assert [record] == by_hand(model, "w5 w6", max_new_tokens=4, num_beams=1)
    assert len(pipe("w5 w6")[0]["translation_token_ids"]) == 2


def test_a_generation_config(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    config = copy.deepcopy(model.generation_config)
    config.num_beams, config.num_return_sequences, config.max_new_tokens = 3, 2, 4
    expected = by_hand(model, "w5 w6", num_beams=3, num_return_sequences=2, max_new_tokens=4)
    assert TranslationPipeline(model, tokenizer)("w5 w6", generation_config=config) == expected
    assert TranslationPipeline(model, tokenizer, generation_config=config)("w5 w6") == expected


def test_each_text_has_its_own_limit(tokenizer: PreTrainedTokenizerFast) -> None:
    """Source length + margin, where no length is asked for."""
    model = translator()
    with torch.no_grad():
        model.final_logits_bias[:, :3] = -1e4
    pipe = TranslationPipeline(model, tokenizer, num_beams=2)
    lines = ["w5", "w5 w6 w7 w8", "w9 w10"]

    def lengths(**options: Any) -> list[int]:
        records = pipe(lines, batch_size=3, return_tensors=True, **options)
        return [len(record["translation_token_ids"]) for record in records]

    assert lengths() == [1 + 2 + MARGIN, 1 + 5 + MARGIN, 1 + 3 + MARGIN]
    assert lengths(max_length_margin=1) == [4, 7, 5]
    assert lengths(max_new_tokens=4) == [5, 5, 5]
    assert lengths(max_length=4) == [4, 4, 4]


def test_truncation(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = word_tokenizer("w")
    tokenizer.model_max_length = 3
    pipe = TranslationPipeline(model, tokenizer)
    given = listen(model, monkeypatch)
    pipe("w5 w6 w7 w8", truncation=True)
    pipe("w5 w6 w7 w8")
    TranslationPipeline(model, tokenizer, truncation=True)(["w5 w6 w7 w8"])
    assert given == [[[5, 6, 2]], [[5, 6, 7, 8, 2]], [[5, 6, 2]]]


def test_spaces_are_cleaned_up_on_demand(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = word_tokenizer("w")
    tokenizer.add_tokens(["."])
    monkeypatch.setattr(model, "generate", lambda **inputs: torch.tensor([[1, 5, len(tokenizer) - 1, 2]]))
    pipe = TranslationPipeline(model, tokenizer)
    assert pipe("w5") == [{"translation_text": "w5 ."}]
    assert pipe("w5", clean_up_tokenization_spaces=True) == [{"translation_text": "w5."}]


def test_device_and_dtype(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    assert pipeline("translation", model=str(folder)).dtype is torch.float64
    pipe = pipeline("translation", model=str(folder), device="cpu", dtype="bfloat16")
    assert (pipe.dtype, pipe.device) == (torch.bfloat16, torch.device("cpu"))
    assert pipe("w5", num_beams=1, max_new_tokens=2)
    assert TranslationPipeline(model, tokenizer, device=-1).device == torch.device("cpu")
    assert TranslationPipeline(model, tokenizer, device=torch.device("meta")).model.device.type == "meta"


def test_other_models(tokenizer: PreTrainedTokenizerFast) -> None:
    """Any model for sequence to sequence: here one whose first token is the padding."""
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    marian = MarianMTModel(config).double().eval()
    pipe = pipeline("translation", model=marian, tokenizer=tokenizer, max_new_tokens=5)
    alone = [pipe(text, return_tensors=True)[0]["translation_token_ids"].tolist() for text in texts(4)]
    expected = [marian.generate(encoded(text), max_new_tokens=5)[0].tolist() for text in texts(4)]
    assert alone == expected
    assert pipe(texts(4), batch_size=4) == [by_hand(marian, text, max_new_tokens=5)[0] for text in texts(4)]


# Construction and where it is found


def test_construction(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    for pipe in (
        TranslationPipeline(model, tokenizer),
        TranslationPipeline(model=model, tokenizer=tokenizer),
        pipeline("translation", model=model, tokenizer=tokenizer),
    ):
        assert type(pipe) is TranslationPipeline
        assert (pipe.task, pipe.model, pipe.tokenizer, pipe.target_tokenizer) == (
            "translation",
            model,
            tokenizer,
            tokenizer,
        )
    with pytest.raises(ValueError, match="needs a `tokenizer`"):
        TranslationPipeline(model)


@pytest.mark.parametrize("trust", [None, False, True])
def test_the_package_needs_no_trust(trust: bool | None, folder: Path, model: Any) -> None:
    """With the package imported its own code runs, whatever the folder holds."""
    (folder / "pipeline_vanilla_transformer.py").write_text("raise SystemExit")
    pipe = pipeline("translation", model=str(folder), trust_remote_code=trust)
    assert type(pipe) is TranslationPipeline
    assert type(pipe.model) is vanilla_transformer.VanillaTransformerForConditionalGeneration
    assert pipe(texts(3)) == [by_hand(model, text)[0] for text in texts(3)]


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    """With the words of what could not be loaded."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises((OSError, ValueError)) as caught:
        pipeline("translation", model=str(folder))
    assert "needs a `tokenizer`" not in str(caught.value)


def test_nothing_is_looked_for_in_vain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither processors, nor a second tokenizer of a model with one vocabulary."""
    asked: list[str] = []
    for name in ("AutoProcessor", "AutoImageProcessor", "AutoVideoProcessor", "AutoFeatureExtractor"):
        loader = SimpleNamespace(from_pretrained=lambda *args, name=name, **kwargs: asked.append(name))
        monkeypatch.setattr(f"transformers.pipelines.{name}", loader)
    monkeypatch.setattr(
        f"{TranslationPipeline.__module__}.has_file", lambda *args, **kwargs: asked.append("tokenizer")
    )
    pipeline("translation", model=str(folder))
    assert asked == []


def test_importing_twice_is_quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    importlib.reload(vanilla_transformer)
    assert caplog.records == []


# What is saved


def custom_pipelines(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text()).get("custom_pipelines")


def test_every_saved_model_names_the_pipeline(folder: Path, model: Any, tmp_path: Path) -> None:
    assert custom_pipelines(folder) == CUSTOM_PIPELINES
    model.model.save_pretrained(tmp_path / "base")
    reload(model).save_pretrained(tmp_path / "again")
    arguments = Seq2SeqTrainingArguments(str(tmp_path / "run"), use_cpu=True, report_to="none")
    Seq2SeqTrainer(model=model, args=arguments).save_model(str(tmp_path / "trained"))
    for name in ("base", "again", "trained"):
        assert custom_pipelines(tmp_path / name) == CUSTOM_PIPELINES
        assert (tmp_path / name / "pipeline_vanilla_transformer.py").is_file()


def test_a_config_alone(folder: Path, tmp_path: Path) -> None:
    """A config keeps what its file named; a new one names no file that is not there."""
    loaded = AutoConfig.from_pretrained(folder)
    for config in (loaded, copy.deepcopy(loaded), VanillaTransformerConfig.from_dict(loaded.to_dict())):
        assert config.to_dict()["custom_pipelines"] == CUSTOM_PIPELINES
        assert config.to_dict() == loaded.to_dict()
        config.save_pretrained(tmp_path / "config")
        assert custom_pipelines(tmp_path / "config") == CUSTOM_PIPELINES
    VanillaTransformerConfig().save_pretrained(tmp_path / "new")
    assert custom_pipelines(tmp_path / "new") is None


def test_a_run_knows_its_model(folder: Path, model: Any) -> None:
    """The pipeline's entry makes no other model of it."""
    recipe = translator().config
    check_model(recipe, folder, folder)
    check_model(model.config, folder, folder)
    recipe.d_model = 32
    with pytest.raises(UsageError, match="d_model"):
        check_model(recipe, folder, folder)


def test_two_pipelines_of_one_config(folder: Path) -> None:
    """Making a pipeline leaves the config as it was."""
    config = AutoConfig.from_pretrained(folder)
    for _ in range(2):
        pipeline("translation", model=str(folder), config=config)
    assert config.to_dict()["custom_pipelines"] == CUSTOM_PIPELINES


@pytest.mark.parametrize("what", ["model", "pipeline"])
def test_what_is_pushed(what: str, pipe: TranslationPipeline, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code and the entry that names it."""
    pushed: dict[str, bytes] = {}

    class Hub:
        def create_repo(self, repo_id: str, **options: Any) -> Any:
            return SimpleNamespace(repo_id=repo_id)

        def create_commit(self, operations: list[Any], **options: Any) -> None:
            pushed.update({item.path_in_repo: Path(item.path_or_fileobj).read_bytes() for item in operations})

    card = SimpleNamespace(save=lambda path: None)
    monkeypatch.setattr("transformers.utils.hub.hf_api", Hub)
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *args, **kwargs: card)
    pushing: Any = {"model": model, "pipeline": pipe}[what]
    pushing.push_to_hub("someone/translator")
    assert json.loads(pushed["config.json"])["custom_pipelines"] == CUSTOM_PIPELINES
    assert b"class TranslationPipeline" in pushed["pipeline_vanilla_transformer.py"]
    assert ("tokenizer.json" in pushed) == (what == "pipeline")


def test_saved_and_made_again(folder: Path, model: Any, tmp_path: Path) -> None:
    pipe = pipeline("translation", model=str(folder))
    pipe.save_pretrained(tmp_path / "again")
    assert custom_pipelines(tmp_path / "again") == CUSTOM_PIPELINES
    assert {path.name for path in (tmp_path / "again").iterdir()} == {path.name for path in folder.iterdir()}
    again = pipeline("translation", model=str(tmp_path / "again"))
    assert again(texts(3)) == [by_hand(model, text)[0] for text in texts(3)]


# Two vocabularies


@pytest.fixture
def separate() -> Any:
    return translator(share_encoder_decoder_embeddings=False, decoder_vocab_size=40)


@pytest.fixture
def two_tokenizers(separate: Any, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """A folder as training leaves it."""
    separate.save_pretrained(tmp_path / "two")
    tokenizer.save_pretrained(tmp_path / "two")
    word_tokenizer("v", 40).save_pretrained(tmp_path / "two" / "target_tokenizer")
    return tmp_path / "two"


def in_target(model: Any, text: str, letter: str = "v") -> list[dict[str, str]]:
    return [{"translation_text": decoded(model.generate(encoded(text))[0], letter)}]


def test_local_files_alone(two_tokenizers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[dict[str, Any]] = []
    module = TranslationPipeline.__module__

    def has_file(*args: Any, **options: Any) -> bool:
        looked.append(options)
        return True

    monkeypatch.setattr(f"{module}.has_file", has_file)
    found = SimpleNamespace(from_pretrained=lambda *args, **options: looked.append(options))
    monkeypatch.setattr(f"{module}.AutoTokenizer", found)
    for local in (True, False):
        pipeline("translation", model=str(two_tokenizers), local_files_only=local)
    assert [options["local_files_only"] for options in looked] == [True, True, False, False]


def test_the_target_has_a_tokenizer_of_its_own(separate: Any, two_tokenizers: Path, tmp_path: Path) -> None:
    """It is found in the model's folder, kept in saving, and may be given."""
    pipe = pipeline("translation", model=str(two_tokenizers))
    assert [pipe(text) for text in texts(4)] == [in_target(separate, text) for text in texts(4)]
    assert "v" in pipe(texts(1)[0])[0]["translation_text"]
    pipe.save_pretrained(tmp_path / "again")
    again = pipeline("translation", model=str(tmp_path / "again"))
    assert [again(text) for text in texts(4)] == [in_target(separate, text) for text in texts(4)]
    pipe = pipeline("translation", model=str(two_tokenizers), local_files_only=True)
    assert pipe(texts(1)[0]) == in_target(separate, texts(1)[0])
    given = word_tokenizer("x", 40)
    pipe = pipeline("translation", model=str(two_tokenizers), target_tokenizer=given)
    assert pipe(texts(1)[0]) == in_target(separate, texts(1)[0], "x")
    assert TranslationPipeline(separate, pipe.tokenizer, target_tokenizer=given).target_tokenizer is given


def test_two_matrices_may_have_one_tokenizer(
    separate: Any, two_tokenizers: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    assert TranslationPipeline(separate, tokenizer).target_tokenizer is tokenizer
    shutil.rmtree(two_tokenizers / "target_tokenizer")
    pipe = pipeline("translation", model=str(two_tokenizers))
    assert pipe.target_tokenizer is pipe.tokenizer
    pipe.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again" / "target_tokenizer").exists()


def test_a_folder_that_is_gone_is_no_silent_answer(two_tokenizers: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = pipeline("translation", model=str(two_tokenizers)).model
    shutil.rmtree(two_tokenizers)
    with pytest.raises(ValueError, match="give `target_tokenizer`"):
        TranslationPipeline(model, tokenizer)
    assert TranslationPipeline(model, tokenizer, target_tokenizer=tokenizer).target_tokenizer is tokenizer


def test_half_a_push_is_refused(two_tokenizers: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"call `push_to_hub\(REPOSITORY\)`"):
        pipeline("translation", model=str(two_tokenizers)).save_pretrained(tmp_path / "again", push_to_hub=True)
    assert not (tmp_path / "again").exists()


# Where the package is not


STRANGER = """
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

folder, target, texts, expected = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
sys.modules["vanilla_transformer"] = None
try:
    pipeline("translation", model=folder, trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code" in str(error), error
else:
    raise SystemExit("remote code ran without being trusted")

def check(pipe):
    assert type(pipe).__module__.startswith("transformers_modules"), type(pipe)
    assert type(pipe.model).__module__.startswith("transformers_modules"), type(pipe.model)
    assert pipe(texts, batch_size=3) == [{"translation_text": text} for text in expected]
    assert pipe(texts[1]) == [{"translation_text": expected[1]}]

pipe = pipeline("translation", model=folder, trust_remote_code=True)
check(pipe)
check(pipeline(model=folder, trust_remote_code=True))
for _ in range(2):
    pipe.save_pretrained(target)
    check(pipeline("translation", model=target, config=pipe.model.config, trust_remote_code=True))
AutoModelForSeq2SeqLM.from_pretrained(target, trust_remote_code=True).save_pretrained(target + "-model")
AutoTokenizer.from_pretrained(target, trust_remote_code=True).save_pretrained(target + "-model")
check(pipeline("translation", model=target + "-model", trust_remote_code=True))

pipe = pipeline("translation", model="someone/translator", trust_remote_code=True)
assert type(pipe).__module__.startswith("transformers_modules.someone"), type(pipe)
expected = json.loads(sys.argv[5])
assert [answer["translation_text"] for answer in pipe(texts)] == expected
pipe.save_pretrained(target + "-two")
pipe = pipeline("translation", model=target + "-two", trust_remote_code=True)
assert [answer["translation_text"] for answer in pipe(texts)] == expected
"""

REMOTE_FIRST = """
import json, sys
from transformers import pipeline

folder, texts, expected = sys.argv[1], json.loads(sys.argv[3]), json.loads(sys.argv[4])
remote = pipeline("translation", model=folder, trust_remote_code=True)
assert type(remote).__module__.startswith("transformers_modules"), type(remote)
sys.path.insert(0, sys.argv[6])
import vanilla_transformer
local = pipeline("translation", model=folder)
assert type(local) is vanilla_transformer.TranslationPipeline
for pipe in (remote, local):
    assert [answer["translation_text"] for answer in pipe(texts)] == expected
    pipe.save_pretrained(sys.argv[2])
    again = pipeline("translation", model=sys.argv[2])
    assert [answer["translation_text"] for answer in again(texts)] == expected
"""


def put_on_hub(source: Path, cache: Path) -> None:
    """`someone/translator` in a cache of the Hub, as downloading leaves it."""
    repository, commit = cache / "models--someone--translator", "0" * 40
    shutil.copytree(source, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


@pytest.mark.parametrize("script", [STRANGER, REMOTE_FIRST], ids=["without the package", "remote code first"])
def test_remote_code(
    script: str, folder: Path, model: Any, separate: Any, two_tokenizers: Path, tmp_path: Path
) -> None:
    """In a fresh process, offline, from a folder and from the Hub's cache; saved and loaded again."""
    lines = ["", *texts(4)]
    put_on_hub(two_tokenizers, tmp_path / "hub")
    expected = ["", *(by_hand(model, text)[0]["translation_text"] for text in lines[1:])]
    in_other = ["", *(in_target(separate, text)[0]["translation_text"] for text in lines[1:])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "OMP_NUM_THREADS": "1",
    }
    arguments = [str(folder), str(tmp_path / "again"), json.dumps(lines), json.dumps(expected), json.dumps(in_other)]
    with tempfile.TemporaryDirectory() as elsewhere:
        result = subprocess.run(
            [sys.executable, "-I", "-c", script, *arguments, str(ROOT)],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
        )
    assert result.returncode == 0, result.stderr


# In `evaluate`


@pytest.mark.parametrize("what", ["folder", "model"])
def test_evaluator(
    what: str, folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluator("translation")` takes a folder's name, or a model and a tokenizer.

    It insists on SciPy, of which it uses the bootstrap alone.
    """
    evaluate = pytest.importorskip("evaluate")
    monkeypatch.setattr(sys.modules["evaluate.evaluator.base"], "SCIPY_AVAILABLE", True)
    lines = texts()
    references = [by_hand(model, text)[0]["translation_text"] for text in lines]
    references[0] = "w4 w5 w6 w7"
    data = Dataset.from_dict({"text": lines, "label": references})
    metric = evaluate.load(str(METRIC))
    given: dict[str, Any] = {
        "folder": {"model_or_pipeline": str(folder)},
        "model": {"model_or_pipeline": model, "tokenizer": tokenizer},
    }[what]
    found = evaluate.evaluator("translation").compute(**given, data=data, metric=metric)
    hypotheses = [by_hand(model, text)[0]["translation_text"] for text in lines]
    assert found["score"] == metric.compute(predictions=hypotheses, references=references)["score"]
    assert 0 < found["score"] < 100
    assert found["total_time_in_seconds"] > 0
