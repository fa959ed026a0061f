"""`vanilla-transformer translate`: lines in, lines out."""

import json
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice

import torch

from .attention_maps import attention_map
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .errors import UsageError
from .model_folder import find_model, quantize_int8, quiet
from .paragraphs import sentence_splitter
from .text_files import check_text, open_input, open_output, read_lines, warn, write_line
from .translation import WINDOW, Hypothesis, hypotheses

GIVEN = ("num_beams", "length_penalty", "length_penalty_kind", "max_batch_tokens")  # where not, a default holds


def run(options: Namespace) -> None:
    """Translate as the options say; what can be wrong with them is found before the model's weights are read.

    Raises:
        CommandError: why not, in one line.
    """
    lines = InputLines(options)
    with quiet(), ExitStack() as stack:
        folder = find_model(options.model)
        beams = options.num_beams or folder.decoding.get("num_beams") or 1
        if options.nbest is not None and options.nbest > beams:
            raise UsageError(f"--nbest {options.nbest} needs as many beams: --num-beams is {beams}")
        if beams > folder.config.target_vocab_size:
            pieces = folder.config.target_vocab_size
            raise UsageError(f"--num-beams {beams}: more than the {pieces} pieces that a translation can begin with")
        device = _device(options)
        source = stack.enter_context(open_input(options.input))
        output = stack.enter_context(open_output(options.output))
        attention = stack.enter_context(open_output(options.attention)) if options.attention else None
        tokenizer, target_tokenizer = folder.load_tokenizers()
        dtype = "float32" if options.quantize else options.dtype
        model = folder.load(getattr(torch, dtype) if dtype else None, device)
        if options.quantize:
            model = quantize_int8(model)
        try:
            results = hypotheses(
                model,
                tokenizer,
                lines.sentences(source, model.config),
                target_tokenizer=target_tokenizer,
                num_return_sequences=options.nbest or 1,
                with_scores=options.nbest is not None,
                window=1 if options.interactive else WINDOW,
                on_length=lines.check_length,
                progress=_shows_progress(options),
                total=lines.total,
                **{name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None},
            )
        except ValueError as error:
            raise UsageError(f"{options.model}: {error}") from error
        at_once = options.interactive or (options.output is None and sys.stdout.isatty())
        for index, (line, sentences) in enumerate(lines.translated(results)):
            if options.nbest is None:
                write_line(output, " ".join(best.text for best, *_ in sentences))
            else:
                for hypothesis in sentences[0]:
                    write_line(output, f"{index} ||| {hypothesis.text} ||| {hypothesis.score:.4f}")
            if at_once:
                output.flush()
            if attention is not None:
                found = attention_map(model, tokenizer, line, sentences[0][0].ids, target_tokenizer)
                write_line(attention, json.dumps(asdict(found), ensure_ascii=False))


class InputLines:
    """The lines of the input from where they are read to where all sentences of one are translated.

    Attributes:
        total: the number of sentences, where it is known.

    Raises:
        UsageError: the input file cannot be read, or is not UTF-8.
    """

    def __init__(self, options: Namespace) -> None:
        self.name = options.input or "stdin"
        self.max_source_tokens = options.max_source_tokens
        self.split = sentence_splitter(options.source_lang) if options.split_sentences else None
        lines = None if options.input is None else check_text(options.input)
        self.total = lines if self.split is None else None
        self.room: int | None = None  # source tokens that there are positions for
        self.waiting: deque[tuple[str, int]] = deque()  # lines that are not yet translated, and their sentences
        self.unmeasured: deque[int] = deque()  # the line's number of each sentence not yet tokenised
        self.warned_of = 0

    def sentences(self, source: Iterable[bytes], config: VanillaTransformerConfig) -> Iterator[str]:
        """The sentences of each line, which are the line itself unless it is to be split."""
        if config.position_encoding == "learned":
            self.room = config.max_position_embeddings - config.position_offset
        for number, line in enumerate(read_lines(source, self.name), start=1):
            sentences = [line] if self.split is None else self.split(line)
            self.waiting.append((line, len(sentences)))
            for sentence in sentences:
                self.unmeasured.append(number)
                yield sentence

    def check_length(self, tokens: int) -> None:
        """Refuse what does not fit the model; warn, once a line, of what is longer than models translate well."""
        number = self.unmeasured.popleft()
        if self.room is not None and tokens > self.room:
            raise UsageError(
                f"{self.name}: line {number} has {tokens} tokens, the model {self.room} learned positions: shorten it"
            )
        if tokens > self.max_source_tokens and number != self.warned_of:
            warn(f"{self.name}: line {number} has {tokens} tokens, more than --max-source-tokens")
            self.warned_of = number

    def translated(self, results: Iterator[list[Hypothesis]]) -> Iterator[tuple[str, list[list[Hypothesis]]]]:
        """Each line with the hypotheses of its sentences."""
        for first in results:
            line, count = self.waiting.popleft()
            yield line, [first, *islice(results, count - 1)]


def _device(options: Namespace) -> torch.device:
    """The device asked for, or else the accelerator if there is one; int8 is for a CPU."""
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if options.device is None:
        return torch.device("cpu") if options.quantize or here is None else here
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        raise UsageError(f"--device {options.device}: no such kind of device") from error
    if device.type == "cpu":
        return device
    if here is None or device.type != here.type or (device.index or 0) >= torch.accelerator.device_count():
        raise UsageError(f"--device {options.device}: not in this machine")
    return device


def _shows_progress(options: Namespace) -> bool:
    """A bar is for a terminal that shows no translations."""
    return sys.stderr.isatty() and not options.interactive and (options.output is not None or not sys.stdout.isatty())
