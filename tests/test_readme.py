"""The README's Python runs as printed (B57), and its commands exist."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.recipes import ROOT, run_module, write_recipe

README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/quickstart`, trained for a moment."""
    folder = tmp_path_factory.mktemp("readme")
    recipe = write_recipe(folder / "quickstart")
    done = run_module("training.train", str(recipe), "--dataset", "builtin", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_snippets_run_in_order_in_one_session(folder: Path) -> None:
    assert len(SNIPPETS) == 5
    code = "\n".join(SNIPPETS)
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-W", "error::DeprecationWarning:__main__", "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "65110016"


def test_named_files_and_modules_exist() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
    for module in re.findall(r"python -m (training\.\w+)", README):
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), target


def test_import_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "error::DeprecationWarning:vanilla_transformer",
                "-c",
                "import vanilla_transformer",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
