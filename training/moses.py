"""Text as Moses' scripts make it, by sacremoses: what the numbers of the older literature were measured on.

python -m training.moses tokenize OUTPUT_DIR FILE... --lang de [--lowercase]
python -m training.moses detokenize OUTPUT_DIR FILE... --lang de
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from tqdm.auto import tqdm

from training.data import read_lines
from training.errors import UsageError, run_command
from training.files import check_folder, write_lines
from training.languages import check_language


def moses_tokenizer(lang: str, lowercase: bool = False) -> Callable[[str], str]:
    """Lowercasing where asked for, `normalize-punctuation.perl`, `tokenizer.perl`, in this order, that of Multi30k.

    Tokens come with a space between two of them, and `&`, `|`, `<`, `>`, `'`, `"`, `[` and `]` as XML entities.
    The abbreviations are those of `lang`; a language that Moses does not know is taken as English.
    """
    normalizer, tokenizer = MosesPunctNormalizer(lang), MosesTokenizer(lang)

    def tokenize(line: str) -> str:
        tokens: str = tokenizer.tokenize(normalizer.normalize(line.lower() if lowercase else line), return_str=True)
        return tokens

    return tokenize


def moses_detokenizer(lang: str) -> Callable[[str], str]:
    """`detokenizer.perl`: from tokens with a space between two of them to text, entities resolved."""
    detokenizer = MosesDetokenizer(lang)

    def detokenize(line: str) -> str:
        text: str = detokenizer.detokenize(line.split())
        return text

    return detokenize


def convert_files(convert: Callable[[str], str], files: list[str], output_dir: Path) -> list[Path]:
    """Convert files, plain or .gz, line by line into plain ones of the same names in a folder.

    Raises:
        UsageError: a file cannot be read, or two files would become one, or a file itself; or the folder is none.
    """
    check_folder(output_dir)
    results = [output_dir / Path(file).name.removesuffix(".gz") for file in files]
    for file, result in zip(files, results, strict=True):
        if results.count(result) > 1 or result.resolve() == Path(file).resolve():
            raise UsageError(f"{file}: its result, {result}, would overwrite another file: give another OUTPUT_DIR")
    for file, result in zip(files, results, strict=True):
        lines = tqdm(read_lines(file), Path(file).name, unit=" lines", disable=None)
        write_lines(result, map(convert, lines))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.moses", description="Tokenise text as Moses' scripts do, or undo it."
    )
    parser.add_argument("action", choices=("tokenize", "detokenize"), help="tokenize normalises punctuation first")
    parser.add_argument("output_dir", metavar="OUTPUT_DIR", type=Path, help="folder of the results; made if missing")
    parser.add_argument("files", metavar="FILE", nargs="+", help="text, plain or .gz; its name stays, without .gz")
    parser.add_argument("--lang", required=True, help="language code of the text")
    parser.add_argument("--lowercase", action="store_true", help="lowercase first (default: case stays)")
    arguments = parser.parse_args()
    if arguments.action == "detokenize":
        if arguments.lowercase:
            raise UsageError("--lowercase goes with `tokenize` only")
        convert = moses_detokenizer
    else:
        convert = partial(moses_tokenizer, lowercase=arguments.lowercase)
    for result in convert_files(convert(check_language(arguments.lang)), arguments.files, arguments.output_dir):
        print(result)


if __name__ == "__main__":
    run_command(main)
