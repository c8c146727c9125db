"""The tree of errors that is drawn is the tree there is."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import robvit
from robvit import errors
from robvit.errors import RobvitError

PACKAGE = Path(robvit.__file__).parent


def drawn() -> dict[str, tuple[str, str]]:
    """Each error in the docstring: the one above it, and the module where it is, if that is another."""
    tree, above = {}, ["RobvitError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ((?:\|  )*)\|- (\w+) +(.*)", line):
            depth, name, text = len(match[1]) // 3, match[2], match[3]
            module = re.search(r"\((robvit\.[\w.]+)\)$", text)
            del above[depth + 1 :]
            tree[name] = (above[depth], module[1] if module else "robvit.errors")
            above.append(name)
    return tree


def defined() -> dict[str, tuple[str, str]]:
    """Each error in the sources, found without importing them."""
    classes = {}
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(("robvit", *file.relative_to(PACKAGE).with_suffix("").parts))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if isinstance(base, ast.Name):
                        classes[node.name, base.id] = module
    found: dict[str, tuple[str, str]] = {}
    known = {"RobvitError"}
    while more := {c: m for c, m in classes.items() if c[1] in known and c[0] not in known}:
        found |= {name: (base, module) for (name, base), module in more.items()}
        known |= {name for name, _ in more}
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    assert drawn() == defined()
    for name, (above, module) in drawn().items():
        if module == "robvit.errors":
            found = getattr(importlib.import_module(module), name)
            assert issubclass(found, RobvitError)
            assert above in (base.__name__ for base in found.__mro__)
