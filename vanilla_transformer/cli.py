"""The command `vanilla-transformer`."""

import argparse
import errno
import math
import os
import sys
from collections.abc import Sequence

from .errors import CommandError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED, BROKEN_PIPE = 128 + 2, 128 + 13  # as a shell reports SIGINT and SIGPIPE

TRANSLATE = """\
Translate text, a sentence a line, from stdin to stdout or from file to file.

Each input line gives exactly one output line, in order; a blank line gives a blank one. A line ends at LF or CRLF:
U+2028, U+0085, form feeds and lone carriage returns are text. A line end in a translation becomes a space."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vanilla-transformer", description="Use a trained model.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    translate = commands.add_parser(
        "translate",
        help="translate text, a sentence a line",
        description=TRANSLATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    translate.set_defaults(run=_translate, parser=translate)
    translate.add_argument("model", metavar="MODEL", help="a model's folder, or its name on the Hub")

    text = translate.add_argument_group("text")
    text.add_argument("--input", metavar="FILE", help="UTF-8 text, plain or .gz (default: stdin)")
    text.add_argument("--output", metavar="FILE", help="plain or .gz; it is there when it is whole (default: stdout)")
    text.add_argument(
        "--split-sentences",
        action="store_true",
        help="lines are paragraphs: translate their sentences and join these with a space (needs sentencex)",
    )
    text.add_argument(
        "--source-lang", metavar="CODE", help="with --split-sentences, the language of the input, as `en`"
    )
    text.add_argument("--interactive", action="store_true", help="answer each line of stdin at once, without a prompt")
    text.add_argument(
        "--max-source-tokens",
        metavar="N",
        type=_count,
        default=1024,
        help="warn of longer lines; they are translated all the same (default: %(default)s)",
    )

    decoding = translate.add_argument_group("decoding", "Defaults are those of the model's generation config.")
    decoding.add_argument("--num-beams", metavar="N", type=_count, help="beams of the search; 1 is greedy")
    decoding.add_argument(
        "--length-penalty",
        metavar="A",
        type=_number,
        help="the exponent alpha: a hypothesis of L tokens, end token counted, is ranked by its log-probability "
        "divided by ((5+L)/6)^alpha or L^alpha, as --length-penalty-kind says; larger values favour longer ones",
    )
    decoding.add_argument(
        "--length-penalty-kind",
        choices=("gnmt", "power"),
        help="gnmt: ((5+L)/6)^alpha, the paper's; power: L^alpha, that of transformers, "
        "which is also that of a generation config that names none",
    )
    decoding.add_argument(
        "--nbest",
        metavar="N",
        type=_count,
        help="print N lines for each input line, best first: its index from 0, the text, and the score by which they "
        "are ranked, with ` ||| ` between (default: the best text alone)",
    )
    decoding.add_argument(
        "--attention",
        metavar="FILE",
        help="also write a JSON line for each input line: `source` and `target` pieces as they stand in the "
        "vocabulary, `attention` of each target piece to each source piece (last layer, mean over heads), and "
        "`alignment`, pairs of a source and a target index: where each target piece attends to most",
    )

    speed = translate.add_argument_group("speed and memory")
    speed.add_argument(
        "--max-batch-tokens",
        metavar="N",
        type=_count,
        help="rows times longest source of a batch, padding counted (default: 4096)",
    )
    speed.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights (default: that of the model)"
    )
    speed.add_argument(
        "--quantize",
        choices=("int8",),
        help="multiply 8-bit integers on the CPU; their scale is measured batch by batch, so that a translation may "
        "depend a little on its neighbours (default: none)",
    )
    speed.add_argument("--device", metavar="D", help="`cpu`, `cuda:1` … (default: the accelerator if there is one)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 0, 1 for what could not be written, 2 for what the user gave.

    Ctrl-C and a reader that has gone end it without a word, with 130 and 141, as a shell reports them.
    """
    try:
        options = build_parser().parse_args(arguments)
        _check_combinations(options)
        options.run(options)
        _flush()
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        print(f"error: {error}: free some space and run the same command again", file=sys.stderr)
        return 1
    finally:
        _drop_what_cannot_be_written()
    return 0


def _drop_what_cannot_be_written() -> None:
    """What is left in the buffer would be written at the interpreter's end, in vain, with a message and a status."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush() -> None:
    if sys.stdout is not None:  # closed, as by `>&-`
        sys.stdout.flush()


def _check_combinations(options: argparse.Namespace) -> None:
    """End with status 2 where one option makes no sense beside another."""
    split, nbest = options.split_sentences, options.nbest
    files = [os.path.realpath(name) for name in (options.output, options.attention) if name]
    for refused, message in (
        (options.interactive and options.input, "--interactive reads stdin: leave --input out"),
        (options.interactive and options.output, "--interactive writes stdout: leave --output out"),
        (split and not options.source_lang, "--split-sentences needs --source-lang"),
        (options.source_lang and not split, "--source-lang is for --split-sentences"),
        (split and nbest, "--nbest lists translations of one sentence: leave --split-sentences out"),
        (split and options.attention, "--attention is of one sentence: leave --split-sentences out"),
        (len(set(files)) < len(files), "--attention and --output name the same file"),
        (nbest and options.num_beams and nbest > options.num_beams, "--nbest needs as many --num-beams"),
        (options.quantize and options.dtype not in (None, "float32"), "--quantize needs --dtype float32"),
        (options.quantize and options.device not in (None, "cpu"), "--quantize needs --device cpu"),
    ):
        if refused:
            options.parser.error(message)


def _translate(options: argparse.Namespace) -> None:
    from .translate_command import run  # torch and transformers come with it

    run(options)


def _count(text: str) -> int:
    """A whole number of 1 or more."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number


if __name__ == "__main__":
    sys.exit(main())
