"""The rules of the house: who may import whom, what is public, what stays quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import robvit

PACKAGE = Path(robvit.__file__).parent
BASE = {"errors", "registry", "threat", "files", "progress", "attention", "processes"}

# Room: the rooms it may import besides itself. A model is a callable, so attacks know no backbone.
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "backbones": BASE,
    "data": BASE,
    "attacks": BASE,
    "defenses": BASE | {"backbones", "attacks"},
    # Who attacks a hardened model may train tokens of their own, so judging knows the defences.
    "evaluate": BASE | {"attacks", "data", "backbones", "defenses", "loading"},
    "training": BASE | {"attacks", "data", "backbones", "defenses", "evaluate", "loading"},
    "loading": BASE | {"backbones", "defenses"},
    "report": BASE | {"evaluate"},
    "attacking": BASE | {"evaluate", "report"},
    "exporting": BASE | {"backbones", "defenses", "__init__"},
    "serve": BASE | {"backbones", "data"},
    "doctor": BASE | {"attacks", "data", "backbones", "evaluate", "loading"},
    "explain": BASE | {"attacks", "data", "backbones", "defenses", "evaluate", "loading", "report"},
}
# A study repeats a result of a paper with everything else.
MAY_IMPORT["studies"] = set(MAY_IMPORT)
MAY_IMPORT["app"] = set(MAY_IMPORT) - {"studies"}
MAY_IMPORT["demo"] = set(MAY_IMPORT) | {"demo"}
MAY_IMPORT["cli"] = set(MAY_IMPORT) | {"cli", "__init__"}
MAY_IMPORT["__main__"] = {"cli"}


def rooms_imported(file: Path) -> set[str]:
    """The rooms of robvit that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            if node.module == "robvit":
                modules = [f"robvit.{alias.name}" for alias in node.names]
        for module in modules:
            parts = module.split(".")
            if parts[0] == "robvit" and len(parts) > 1:
                found.add("__init__" if parts[1].startswith("__") else parts[1])
    return found


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_go_one_way(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert rooms_imported(file) <= MAY_IMPORT[room] | {room}


def test_every_public_name_is_there() -> None:
    assert set(robvit.__all__) == set(robvit._PUBLIC)
    for name in robvit.__all__:
        assert getattr(robvit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = robvit.nonsense


def test_importing_robvit_and_its_command_line_loads_no_torch() -> None:
    code = "import sys, robvit, robvit.cli; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_files_and_functions_fit_in_a_head(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= 350
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 80, f"{node.name} is too long"
