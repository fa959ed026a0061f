"""transformers' own common tests, of the installed version, which its wheel leaves out.

Its source distribution holds them: pip downloads it, with the user's own index settings, and the test files stay in a
cache folder.
"""

import functools
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import transformers
from filelock import FileLock
from transformers import testing_utils

from . import stubs

# Not `tests`, the name they have at home: this project has a folder of that name.
PACKAGE = "transformers_test_suite"
STUBS: dict[str, dict[str, Any]] = {
    "exporters.test_export": {"ExportTesterMixin": stubs.ExportTesterMixin},
    "generation.test_utils": {"GenerationTesterMixin": stubs.GenerationTesterMixin},
    "utils.test_configuration_utils": {"config_common_kwargs": stubs.CONFIG_COMMON_KWARGS},
}


class SuiteUnavailableError(RuntimeError):
    """The source distribution of the installed transformers cannot be had; the message says why."""


@dataclass(frozen=True)
class Suite:
    """What a model's tester is built from; `Any`, since these classes are known only when the tests run."""

    model_tester_mixin: Any
    generation_tester_mixin: Any
    config_tester: Any


def load_suite() -> Suite:
    """Import the common tests, downloading them where they are not cached yet."""
    folder = fetch_tests()
    _add_module(PACKAGE, {}, str(folder))
    for name, contents in STUBS.items():
        _add_module(f"{PACKAGE}.{name.partition('.')[0]}", {})
        _add_module(f"{PACKAGE}.{name}", contents)
    modeling = importlib.import_module(f"{PACKAGE}.test_modeling_common")
    configuration = importlib.import_module(f"{PACKAGE}.test_configuration_common")
    return Suite(modeling.ModelTesterMixin, stubs.GenerationTesterMixin, configuration.ConfigTester)


def marker_names() -> set[str]:
    """The pytest markers that the common tests set, which pytest must know of to accept them."""
    sources = (fetch_tests() / "test_modeling_common.py", Path(testing_utils.__file__))
    return {name for source in sources for name in re.findall(r"\bmark\.(\w+)", source.read_text(encoding="utf-8"))}


def fetch_tests(version: str = transformers.__version__) -> Path:
    """The cached folder of test files for a version of transformers, filled at the first call.

    Raises:
        SuiteUnavailableError: it is not cached, and pip cannot get it.
    """
    fetched = _fetch(version)
    if isinstance(fetched, SuiteUnavailableError):
        raise fetched
    return fetched


@functools.cache
def _fetch(version: str) -> Path | SuiteUnavailableError:
    # The error is a result too, so that one process asks an index that does not answer only once.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vanilla-transformer"
    folder = cache / f"transformers-{version}-tests"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Test processes that run side by side wait for one download. The folder appears whole or not at all.
    with FileLock(cache / "lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if folder.is_dir():
            return folder
        try:
            archive = _download(version, Path(scratch))
        except SuiteUnavailableError as error:
            return error
        unpacked = Path(scratch) / "tests"
        unpacked.mkdir()
        _extract_tests(archive, unpacked)
        unpacked.rename(folder)
    return folder


def _download(version: str, folder: Path) -> Path:
    requirement = f"transformers=={version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "transformers"]
    command += ["--dest", str(folder), requirement]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    archives = list(folder.glob("*.tar.gz"))
    if run.returncode or not archives:
        reason = (run.stderr.strip() or run.stdout.strip()).rpartition("\n")[2]
        raise SuiteUnavailableError(f"pip cannot download the source distribution of {requirement}: {reason}")
    return archives[0]


def _extract_tests(archive: Path, folder: Path) -> None:
    """Write the files of the archive's `tests/` into `folder`, its sub-folders left out."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            content = tar.extractfile(member) if len(parts) == 3 and parts[1] == "tests" else None
            if content is not None:
                (folder / parts[2]).write_bytes(content.read())
    # `ConfigTester` asks for this file, which the source distribution lacks as well.
    (folder / "__init__.py").touch()


def _add_module(name: str, contents: dict[str, Any], *path: str) -> None:
    """Make a package importable that has these contents and finds its modules on this path."""
    module = ModuleType(name)
    module.__path__ = list(path)
    vars(module).update(contents)
    sys.modules[name] = module
