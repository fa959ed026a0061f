"""The wheel ships the package alone, with its types; importing it is light."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.recipes import ROOT


def test_wheel_holds_the_package_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == "vanilla_transformer-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"vanilla_transformer", "vanilla_transformer-0.1.0.dist-info"}
    assert "vanilla_transformer/py.typed" in names
    package = {path.name for path in (ROOT / "vanilla_transformer").glob("*.py")}
    assert {Path(name).name for name in names if name.endswith(".py")} == package


def test_remote_code_imports_torch_and_transformers_alone() -> None:
    """The files that travel with a saved model need nothing else, and import only each other."""
    code = """
import ast, pathlib, sys
allowed = set(sys.stdlib_module_names) | {"torch", "transformers"}
for path in pathlib.Path("vanilla_transformer").glob("*_vanilla_transformer.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 and node.module.endswith("_vanilla_transformer"), (path, node.module)
            continue
        else:
            continue
        for name in names:
            assert name.split(".")[0] in allowed, (path, name)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_import_is_light() -> None:
    """Neither training code nor its libraries come with the package."""
    heavy = ("training", "datasets", "sacrebleu")
    code = f"import sys, vanilla_transformer; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
