"""The rules of the house: who may import whom, what is public, what stays quick."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import robvit

PACKAGE = Path(robvit.__file__).parent
LONGEST_FILE, LONGEST_FUNCTION = 300, 70
# What everyone may import: plain data, files and processes; records are read where no torch is.
BASE = {"budget", "errors", "registry", "threat", "files", "fetch", "progress", "attention", "processes"}
BASE |= {"decoding", "decode_worker"}
BASE |= {
    "audit",
    "autoattack",
    "record",
    "record_checks",
    "statistics",
    "verdict",
    "names",
    "plugins",
    "settings",
}
BASE |= {"specs", "locks", "resuming", "revisions", "signing", "augmentation", "versions", "sharing"}
BASE |= {"places", "sharing_card", "texts", "tensor_files", "trial"}

# Room: the rooms it may import besides itself. A model is a callable, so attacks know no backbone.
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "drawing": BASE,
    "backbones": BASE,
    "data": BASE | {"drawing"},
    "attacks": BASE,
    "defenses": BASE | {"backbones", "attacks"},
    # Who attacks a hardened model may train tokens of their own, so judging knows the defences.
    "evaluation": BASE | {"attacks", "data", "backbones", "defenses", "drawing", "loading"},
    "training": BASE | {"attacks", "data", "backbones", "certification", "defenses", "evaluation", "loading"},
    "loading": BASE | {"backbones", "defenses"},
    "hardening": BASE | {"backbones", "data", "defenses", "training"},
    "report": BASE | {"evaluation", "drawing"},
    "exporting": BASE | {"backbones", "defenses", "__init__"},
    "serve": BASE | {"backbones", "data", "__init__"},
    "pushing": BASE | {"backbones", "defenses", "report"},
    "certification": BASE | {"attacks", "data", "backbones", "drawing", "evaluation", "loading"},
    "checking": BASE | {"backbones", "data", "defenses", "certification", "evaluation", "training"},
    "challenging": BASE | {"backbones", "attacks", "data", "evaluation", "diagnosis"},
    "reviewing": BASE | {"backbones", "data", "evaluation", "diagnosis", "report"},
    "measuring": BASE | {"attacks", "data", "evaluation"},
    "diagnosis": BASE | {"attacks", "data", "backbones", "evaluation", "loading"},
    "explanation": BASE
    | {"attacks", "data", "backbones", "defenses", "drawing", "evaluation", "loading", "measuring", "report"},
}
# Verbs open models and images by their names; the rest of their room does not.
VERBS = dict.fromkeys(("defenses/robustify.py", "defenses/rotate.py"), "defenses:verbs")
MAY_IMPORT["defenses:verbs"] = MAY_IMPORT["defenses"] | {"defenses", "data", "loading"}
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


@pytest.mark.slow
def test_imports_go_one_way() -> None:
    upward = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        room = VERBS.get(name, file.relative_to(PACKAGE).parts[0].removesuffix(".py"))
        if room != "__init__" and (
            wrong := rooms_imported(file) - MAY_IMPORT[room] - {room.partition(":")[0]}
        ):
            upward[name] = sorted(wrong)
    assert not upward


def test_contributing_shows_the_rooms_as_they_are() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[a-z`, ]+`|the base) \| (.+) \| (.*)\|$", text, flags=re.MULTILINE)
    shown = {name: imports for rooms, _, imports in rows for name in re.findall(r"`(\w+)`", rooms)}
    base = next(what for room, what, _ in rows if room == "the base")
    assert set(re.findall(r"`(\w+)`", base)) == BASE
    assert set(shown) == {room for room in MAY_IMPORT if room.isalpha()} - BASE
    for room, imports in shown.items():
        if "everything" not in imports:
            assert set(re.findall(r"`(\w+)`", imports)) == MAY_IMPORT[room] - BASE - {"__init__"}, room


def test_every_public_name_is_there() -> None:
    assert set(robvit.__all__) == set(robvit._PUBLIC)
    for name in robvit.__all__:
        assert getattr(robvit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = robvit.nonsense


def test_what_people_handle_has_the_signature_it_is_said_to_have() -> None:
    assert list(inspect.signature(robvit.compare).parameters) == ["a", "b"]
    assert {"adv", "success", "distance", "forward", "backward"} <= set(
        inspect.signature(robvit.Outcome).parameters
    )
    assert {"name", "about", "threat", "attacks"} <= set(inspect.signature(robvit.Protocol).parameters)
    verbs = ("evaluate", "attack", "doctor", "explain", "certify", "check", "review", "robustify", "curve")
    for verb in verbs:
        model, data, *others = inspect.signature(getattr(robvit, verb)).parameters.values()
        assert (model.name, data.name) == ("model", "data"), verb
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in others), verb
        assert "out" in [parameter.name for parameter in others], verb
    for verb in ("train", "reproduce"):  # the recipe or study has a model and data of its own
        _, *others = inspect.signature(getattr(robvit, verb)).parameters.values()
        assert {"model", "data", "out"} <= {parameter.name for parameter in others}, verb


def test_importing_robvit_and_its_command_line_loads_no_torch() -> None:
    code = "import sys, robvit, robvit.cli; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_files_and_functions_fit_in_a_head() -> None:
    large = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        text, name = file.read_text(), str(file.relative_to(PACKAGE))
        if (lines := len(text.splitlines())) > LONGEST_FILE:
            large[name] = lines
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (length := _length(node)) > LONGEST_FUNCTION:
                large[f"{name}: {node.name}"] = length
    assert not large


def _length(function: ast.FunctionDef) -> int:
    """The lines of a function's body, without its signature and docstring: what has to fit on a screen."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if documented and len(function.body) > 1:
        first = function.body[1]
    return (function.end_lineno or 0) - first.lineno + 1


@pytest.mark.slow
def test_what_only_unix_has_is_not_needed_to_import() -> None:
    unix = {"fcntl", "grp", "pwd", "resource", "termios"}
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not unix & set(names), file
