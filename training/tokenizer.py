"""Training a tokenizer that `AutoTokenizer.from_pretrained` loads without this package."""

from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain
from typing import Literal

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNK = MARKERS = ("<pad>", "<s>", "</s>", "<unk>")  # their ids are their positions
BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))

# WordPiece marks a piece inside a word with this undertie (U+203F). It is not in the byte alphabet: removing the mark
# cannot damage text, as with "##" it could.
CONTINUATION = "\N{UNDERTIE}"
# WordPiece turns a longer word into <unk>, so it is cut first. Pieces are joined without blanks: nothing is lost.
MAX_WORD_BYTES = 100

MIN_VOCAB_SIZE = {
    "bpe": len(MARKERS) + len(BYTES),
    "wordpiece": len(MARKERS) + 2 * len(BYTES),
    "unigram": len(MARKERS) + len(BYTES),
}


def train_tokenizer(
    lines: Iterable[str],
    vocab_size: int,
    algorithm: Literal["bpe", "wordpiece", "unigram"] = "bpe",
    *,
    model_max_length: int = 1024,
    min_frequency: int = 2,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a lossless subword tokenizer on `lines`.

    The paper (§5.1) encodes English-German with byte-pair encoding and English-French with word pieces, each with one
    vocabulary for both languages: chain the lines of both. For separate vocabularies call twice. The unigram language
    model (Kudo, 2018) is younger than the paper.

    - Text is not normalised. Words are written in GPT-2's byte alphabet and the vocabulary always holds all 256 bytes:
      any text encodes without `<unk>`, and `decode(encode(text), skip_special_tokens=True) == text`.
    - The ids are `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3. Every encoded text, source or `text_target`, ends in exactly
      one `</s>`; no `<s>` is added. Truncation cuts the text and keeps the `</s>`, within the length asked for.
    - User text never becomes a special id: `"</s>"` in a text is split into ordinary pieces, also after reloading.
    - The same lines in the same order and the same arguments give the same files, byte for byte.

    Args:
        lines: the corpus: any iterable of strings, read once. Blank strings are skipped; no string is split further,
            whatever line separators it holds.
        vocab_size: the size with the four special tokens. The result is smaller where the corpus yields fewer pieces.
        algorithm: `"bpe"` (the default), `"wordpiece"` or `"unigram"`.
        model_max_length: the length, `</s>` included, that `truncation=True` cuts to. Default 1024.
        min_frequency: how often a pair must occur to be merged (BPE, WordPiece). Default 2. Unigram does not read it:
            its trainer prunes by likelihood.
        show_progress: write the trainer's progress to the terminal. Default False.

    Raises:
        ValueError: an unknown algorithm, a `vocab_size` below the special tokens and bytes (260; 516 for WordPiece,
            where each byte has two forms), a `model_max_length` below 1, or a corpus without text.
        TypeError: `lines` is one string.
    """
    if algorithm not in MIN_VOCAB_SIZE:
        raise ValueError(f"algorithm must be one of {', '.join(map(repr, MIN_VOCAB_SIZE))}, got {algorithm!r}")
    if vocab_size < MIN_VOCAB_SIZE[algorithm]:
        raise ValueError(f"vocab_size must be at least {MIN_VOCAB_SIZE[algorithm]} for {algorithm}, got {vocab_size}")
    if model_max_length < 1:
        raise ValueError(f"model_max_length must be at least 1, got {model_max_length}")
    if isinstance(lines, str):
        raise TypeError("lines must be an iterable of strings, got one string")
    texts = (line for line in lines if line.strip())
    first = next(texts, None)
    if first is None:
        raise ValueError("lines hold no text: there is nothing to train a tokenizer on")
    corpus = chain([first], texts)

    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if algorithm == "wordpiece":
        steps.append(pre_tokenizers.Split(Regex(f".{{1,{MAX_WORD_BYTES}}}"), behavior="isolated"))
    pre_tokenizer = pre_tokenizers.Sequence(steps)
    model: models.Model
    if algorithm == "unigram":
        model = _train_unigram(corpus, pre_tokenizer, vocab_size, show_progress)
    else:
        model = _train_merges(corpus, pre_tokenizer, vocab_size, algorithm, min_frequency, show_progress)

    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in MARKERS])
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace(CONTINUATION, ""), decoders.ByteLevel()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, MARKERS.index(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="right",
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def _train_merges(
    corpus: Iterator[str],
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    vocab_size: int,
    algorithm: str,
    min_frequency: int,
    show_progress: bool,
) -> models.Model:
    """A BPE or WordPiece model of at most `vocab_size` pieces, the markers first."""
    model: models.Model
    trainer: trainers.Trainer
    if algorithm == "bpe":
        model = models.BPE()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            show_progress=show_progress,
            special_tokens=list(MARKERS),
            initial_alphabet=list(BYTES),
        )
    else:
        model = models.WordPiece(unk_token=UNK)
        # The trainer numbers continuing bytes as a hash map yields them, in another order each run, and breaks ties by
        # number. As "special tokens" they have fixed numbers; only the model is kept, and in it they are ordinary.
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            show_progress=show_progress,
            special_tokens=[*MARKERS, *(CONTINUATION + byte for byte in BYTES)],
            initial_alphabet=list(BYTES),
            continuing_subword_prefix=CONTINUATION,
        )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer.model


def _train_unigram(
    corpus: Iterator[str], pre_tokenizer: pre_tokenizers.PreTokenizer, vocab_size: int, show_progress: bool
) -> models.Unigram:
    """A unigram model of at most `vocab_size` pieces, the markers first.

    Pieces and scores are SentencePiece's: with one thread it is deterministic, which tokenizers' own trainer is not.
    """
    words = Counter(word for line in corpus for word, _ in pre_tokenizer.pre_tokenize_str(line))
    proto = BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in sorted(words.items())),
        input_format="tsv",
        model_writer=proto,
        model_type="unigram",
        # The words come cut and in the byte alphabet: what SentencePiece does to raw text is switched off.
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        character_coverage=1.0,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,
        minloglevel=0 if show_progress else 2,
    )
    trained = SentencePieceProcessor(model_proto=proto.getvalue())
    # In falling order of score, without SentencePiece's own unknown piece at 0.
    scores = {trained.id_to_piece(i): trained.get_score(i) for i in range(1, trained.get_piece_size())}
    # SentencePiece keeps only the bytes that occur. The rest get the lowest score and the place of the last pieces.
    lowest = min(scores.values())
    singles = [(byte, scores.get(byte, lowest)) for byte in BYTES]
    longer = [(piece, score) for piece, score in scores.items() if len(piece) > 1]
    specials = [(marker, 0.0) for marker in MARKERS]
    return models.Unigram([*specials, *singles, *longer][:vocab_size], unk_id=MARKERS.index(UNK))
