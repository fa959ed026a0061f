"""A model's page on the Hub, made from what a run's folder knows; what it does not know is left out."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from babel import Locale
from huggingface_hub import EvalResult, ModelCardData

from training.data import read_lines
from training.finished_run import PICTURE, SPLITS, FinishedRun
from training.languages import language_part
from training.score import DECODING
from vanilla_transformer import VanillaTransformerConfig

MARKER = "<!-- Made by `python -m training.publish`, which makes it anew. To keep your changes, remove this line. -->"
TAGS = ["vanilla_transformer", "attention-is-all-you-need"]
METRICS = {"bleu": "BLEU", "chrf": "chrF"}
ALGORITHMS = {"bpe": "byte-pair encoding", "wordpiece": "word pieces", "unigram": "a unigram language model"}
# What makes a model another than the paper's, beside its sizes.
STRUCTURE = (
    *(
        "norm_position",
        "position_encoding",
        "attention_score",
        "attention_window",
        "activation_function",
        "d_k",
        "d_v",
    ),
    *("attention_bias", "layer_norm_eps", "scale_embedding", "final_logits_bias", "position_offset"),
    *("tie_word_embeddings", "share_encoder_decoder_embeddings"),
)
PAPER = {
    "title": "Attention Is All You Need",
    "author": r"Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and "
    r"Gomez, Aidan N. and Kaiser, {\L}ukasz and Polosukhin, Illia",
    "booktitle": "Advances in Neural Information Processing Systems",
    "volume": "30",
    "year": "2017",
}
DROPOUTS = {"dropout": "", "attention_dropout": " of attention weights", "activation_dropout": " of activations"}


def model_card(run: FinishedRun, repository: str, licence: str | None = None, revision: str | None = None) -> str:
    """The card of a run's model for a repository `user/name`: the metadata that the Hub reads, and the page.

    Args:
        licence: the Hub's identifier; `None` names none.
        revision: the branch where the model will be; `None` for the main one.

    Raises:
        UsageError: the weights cannot be read.
    """
    name = repository.split("/")[-1]
    sections = (
        f"{MARKER}\n\n# {name}",
        _introduction(run),
        _use(run, repository, revision),
        _scores(run),
        _limits(run, licence),
        _recipe(run),
        _data(run),
        _tokenizer(run),
        _training(run),
        _decoding(run),
        _citation(run),
    )
    page = "\n\n".join(section for section in sections if section)
    return f"---\n{card_data(run, name, licence).to_yaml()}\n---\n\n{page}\n"


def card_data(run: FinishedRun, name: str, licence: str | None) -> ModelCardData:
    """The card's metadata."""
    dataset = run.facts.get("hub_dataset")
    # The Hub takes codes of ISO 639 alone: `pt` for `pt-BR`.
    languages = [language for code in run.languages if (language := language_part(code))]
    results = [_result(run, prefix, metric) for prefix in run.scored for metric in _measured(run)]
    return ModelCardData(
        language=languages or None,
        license=licence,
        library_name="transformers",
        pipeline_tag="translation",
        tags=TAGS,
        datasets=[dataset] if dataset else None,
        metrics=_measured(run) or None,
        model_name=name if results else None,
        eval_results=results or None,
    )


def _result(run: FinishedRun, prefix: str, metric: str) -> EvalResult:
    files, name = run.own_text(prefix), run.options.get("dataset")
    return EvalResult(
        task_type="translation",
        dataset_type=run.corpus if name and not files else "text",
        dataset_name=files or run.corpus,
        dataset_config=None if files else run.options.get("dataset_config"),
        dataset_split=SPLITS[prefix],
        metric_type=metric,
        metric_name=METRICS[metric],
        metric_value=round(run.results[f"{prefix}_{metric}"], 2),
        metric_args={"signature": run.results[f"{metric}_signature"]},
    )


def _measured(run: FinishedRun) -> list[str]:
    return [name for name in METRICS if any(f"{prefix}_{name}" in run.results for prefix in run.scored)]


def _introduction(run: FinishedRun) -> str:
    config, paper = run.config, VanillaTransformerConfig().to_dict()
    languages = [f"{_language(code)} (`{code}`)" for code in run.languages]
    translates = f"Translates {' into '.join(languages)}. " if len(languages) == 2 else ""
    heads, ffn = (
        " + ".join(dict.fromkeys(str(config[f"{side}_{size}"]) for side in ("encoder", "decoder")))
        for size in ("attention_heads", "ffn_dim")
    )
    text = (
        f"{translates}The Transformer of *Attention Is All You Need* (2017) with {config['encoder_layers']} + "
        f"{config['decoder_layers']} layers, d_model {config['d_model']}, {heads} heads and d_ff {ffn}: "
        f"{run.parameters():,} parameters."
    )
    other = [f"`{name}: {config[name]}`" for name in STRUCTURE if config[name] != paper[name]]
    return text + (f" Unlike the paper's it has {', '.join(other)}." if other else "")


def _use(run: FinishedRun, repository: str, revision: str | None) -> str:
    at = f', revision="{revision}"' if revision else ""
    text = f"""\
## How to use it

With torch and transformers (5.17 or newer, below 6) and nothing else:

```python
from transformers import pipeline

translator = pipeline("translation", model="{repository}"{at}, trust_remote_code=True)
for translation in translator(["A first text.", "A second text."]):
    print(translation["translation_text"])
```

`trust_remote_code=True` runs the Python files of this repository. `AutoModelForSeq2SeqLM` and `AutoTokenizer` load it
too, with the same option."""
    if run.options.get("tokenized"):
        text += (
            "\n\nThe training text was tokens with spaces between them. A text must be prepared in the same way, "
            "and a translation is such tokens too."
        )
    return text


def _scores(run: FinishedRun) -> str:
    measured, options = _measured(run), run.options
    if not measured:
        return ""
    names = [METRICS[metric] for metric in measured]
    rows = [["text", "sentences", *names, "perplexity"]]
    for prefix in run.scored:
        translations = run.folder / f"{prefix}_hypotheses.txt"
        sentences = f"{sum(1 for _ in read_lines(translations)):,}" if translations.is_file() else "-"
        scores = (run.results[f"{prefix}_{name}"] for name in (*measured, "perplexity"))
        text = f"{SPLITS[prefix]}: {run.own_text(prefix) or run.corpus}"
        rows.append([text, sentences, *(f"{score:.2f}" for score in scores)])
    signatures = "\n".join(f"- {METRICS[metric]}: `{run.results[f'{metric}_signature']}`" for metric in measured)
    language = f" --target-lang {options['target_lang']}" if options.get("target_lang") else ""
    return f"""\
## Scores

{_table(rows)}

{" and ".join(names)} by sacrebleu, of translations made as said under Decoding; perplexity is per token of the
vocabulary, end token counted. The signatures:

{signatures}

Two commands in a checkout of the project give such scores. MODEL is this repository or a copy of it, SOURCES and
REFERENCES are the text, a sentence a line:

```
vanilla-transformer translate MODEL < SOURCES > hypotheses.txt
python -m training.score hypotheses.txt REFERENCES{language}{" --tokenized" if options.get("tokenized") else ""}
```"""


def _limits(run: FinishedRun, licence: str | None) -> str:
    limits = [
        "It translates one sentence at a time and knows nothing of the others: split paragraphs first.",
        "It knows its training text alone. Words and kinds of text that are rare there it translates badly.",
        "A translation can read well and be wrong, and nothing in the output says so: names, numbers and negations "
        "deserve a look.",
        "What is one-sided or offensive in the training text can come back in a translation. This was not examined.",
    ]
    if len(run.languages) == 2:
        source, target = map(_language, run.languages)
        limits.insert(0, f"One direction: {source} into {target}. Of other languages it makes nonsense, not errors.")
    if longest := run.options.get("max_length"):
        limits.append(f"It was trained on texts of at most {longest:,} tokens and has never seen a longer one.")
    if run.config["position_encoding"] == "learned":
        limits.append(f"No text can have more than {run.config['max_position_embeddings']:,} tokens, on either side.")
    if licence is None:
        limits.append("No licence is named, so none is given.")
    return "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits)


def _recipe(run: FinishedRun) -> str:
    if "recipe" not in run.facts:
        return ""
    text = (
        f"## The recipe\n\nTrained by the recipe `{run.facts['recipe']}`. What this run did is in the sections below"
    )
    body = recipe_text(run.facts.get("recipe_card", ""))
    return f"{text}; the recipe says of itself:\n\n{body}" if body else f"{text}."


def recipe_text(card: str) -> str:
    """A recipe's card as a section of another, which has metadata, a title and results of its own."""
    body = re.sub(r"\A---\n.*?^---\n", "", card, flags=re.DOTALL | re.MULTILINE)
    body = re.sub(r"\A\s*# .*\n", "", body)
    body = re.sub(r"^\| this recipe \|.*\n", "", body, flags=re.MULTILINE)
    body = re.sub(r"^## Results\n.*?(?=^## |\Z)", "", body, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"(^```.*?^```)", body, flags=re.DOTALL | re.MULTILINE)
    below = [part if part.startswith("```") else re.sub(r"^#", "##", part, flags=re.MULTILINE) for part in parts]
    return "".join(below).strip()


def _data(run: FinishedRun) -> str:
    options, pairs = run.options, dict(run.results.get("train_pairs", {}))
    text = ""
    if run.corpus:
        what = "the project's built-in corpus, made without a download" if run.corpus == "builtin" else run.corpus
        config = f", configuration {options['dataset_config']}" if options.get("dataset_config") else ""
        text += f"\n\nTraining text: {what}{config}{', read as a stream' if options.get('streaming') else ''}."
    if pairs:
        pairs.pop("epoch", None)  # of a stream
        used = f"{pairs.pop('used'):,}"
        text += "\n\n" + _table(
            [("pairs", "number"), ("used", used), *((f"left out, {why}", f"{n:,}") for why, n in pairs.items())]
        )
    return f"## Data{text}" if text else ""


def _tokenizer(run: FinishedRun) -> str:
    algorithm = ALGORITHMS.get(run.options.get("tokenizer_algorithm", ""))
    if algorithm is None:
        return ""
    source, target = (f"{run.config[name] or 0:,}" for name in ("vocab_size", "decoder_vocab_size"))
    joint = run.options.get("joint_vocabulary")
    size = f"{source} entries for both sides" if joint else f"{source} entries for the source, {target} for the target"
    return (
        f"## Tokenizer\n\nSubwords of bytes by {algorithm}, trained on the training text: {size}. "
        "Text is not normalised, and no character is unknown."
    )


def _training(run: FinishedRun) -> str:
    options, state, results, facts = run.options, run.state, run.results, run.facts
    rows = [("", "")]
    if updates := state.get("global_step"):
        early = ", ended by early stopping" if updates < state.get("max_steps", 0) else ""
        rows.append(("updates", f"{updates:,} ({state.get('epoch') or 0:.4g} epochs){early}"))
    if options:
        rows += [
            ("tokens an update", _tokens_an_update(options, facts.get("processes"))),
            ("optimizer", _optimizer(options)),
            ("learning rate", _learning_rate(options)),
            ("label smoothing", f"{options['label_smoothing_factor']:g}"),
            ("precision", next((f"{kind}, mixed" for kind in ("bf16", "fp16") if options[kind]), "float32")),
            ("seed", f"{options['seed']}"),
        ]
    dropouts = [f"{run.config[name]:g}{of}" for name, of in DROPOUTS.items() if run.config[name]]
    rows.append(("dropout", ", ".join(dropouts) or "none"))
    if run.averaged:
        first, last = run.averaged[0], run.averaged[-1]
        rows.append(("weights", f"the average of {len(run.averaged)} checkpoints, {first} to {last}"))
    if "train_runtime" in results:
        rows.append(("time", _duration(results["train_runtime"])))
    if "hardware" in facts:
        rows.append(("hardware", facts["hardware"] + (f", {n} of it" if (n := facts["processes"]) > 1 else "")))
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())))
    picture = f"\n\n![Loss, learning rate and BLEU over the updates]({PICTURE})"
    return f"## Training\n\n{_table(rows)}{picture if (run.folder / PICTURE).is_file() else ''}"


def _tokens_an_update(options: dict[str, Any], processes: int | None) -> str:
    tokens, steps = options["max_batch_tokens"], options["gradient_accumulation_steps"]
    if processes is None:
        return f"at most {tokens * steps:,} a side and process, padding counted"
    product = f"{tokens:,} × {processes} process{'es' if processes > 1 else ''} × {steps} accumulated"
    return f"at most {tokens * steps * processes:,} a side, padding counted ({product})"


def _optimizer(options: dict[str, Any]) -> str:
    betas = f"β {options['adam_beta1']:g} and {options['adam_beta2']:g}, ε {options['adam_epsilon']:g}"
    decay = f", weight decay {options['weight_decay']:g}" if options["weight_decay"] else ""
    clipped = f", gradients clipped to {options['max_grad_norm']:g}" if options["max_grad_norm"] else ""
    return f"`{options['optim']}`, {betas}{decay}{clipped}"


def _learning_rate(options: dict[str, Any]) -> str:
    rate, warmup = f"{options['learning_rate']:g}", f"warm-up {options['warmup_steps']:,}"
    if options["lr_scheduler_type"] == "noam":
        return f"{rate} × the paper's schedule (§5.3), {warmup}"
    return f"{rate}, schedule `{options['lr_scheduler_type']}`, {warmup}"


def _decoding(run: FinishedRun) -> str:
    if run.decoding is None:
        return ""
    beams, alpha, margin = (run.decoding[name] for name in ("num_beams", "length_penalty", "max_length_margin"))
    divisor = f"((5 + L) / 6)^{alpha:g}" if run.decoding["length_penalty_kind"] == "gnmt" else f"L^{alpha:g}"
    text = "Greedy: the most probable token each time."
    if beams > 1:
        text = (
            f"Beam search with {beams} beams. Of two translations that one is better whose log-probability divided by "
            f"{divisor} is higher; L is its length in tokens, end token counted."
        )
    if margin is not None:
        text += f" A translation has at most {margin:,} tokens more than its source."
    if other := [f"`{name}: {value}`" for name, value in run.decoding.items() if name not in DECODING]:
        text += f" Set besides: {', '.join(other)}."
    return f"## Decoding\n\n{text} `generation_config.json` has these settings; an argument of a call goes over them."


def _citation(run: FinishedRun) -> str:
    project = {"title": r"vanilla\_transformer: the Transformer of Attention Is All You Need as a Hugging Face model"}
    if version := run.facts.get("versions", {}).get("vanilla_transformer"):
        project["version"] = version
    return f"## Citation\n\n```bibtex\n{_bibtex('inproceedings', 'vaswani2017attention', PAPER)}\n\n" + (
        f"{_bibtex('software', 'vanilla_transformer', project)}\n```"
    )


def _bibtex(kind: str, key: str, fields: Mapping[str, str]) -> str:
    lines = (f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"


def _language(code: str) -> str:
    return str(Locale("en").languages.get(code, code))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _table(rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines)
