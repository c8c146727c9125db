"""Code from elsewhere by name: `module:function`, and what installed packages offer by entry points.

It is imported, so name only modules you trust. Nothing is imported before somebody asks for its name.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from robvit.errors import InputError

SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# What a registry holds: the group of entry points under which packages offer more of it.
GROUPS = {"attack": "robvit.attacks", "training loss": "robvit.losses", "dataset": "robvit.datasets"}


def is_spec(text: str) -> bool:
    """Whether it reads as module:function."""
    return SPEC.fullmatch(text) is not None


def is_there(text: str) -> bool:
    """Whether there is a module of the name before the colon, or a package that should hold it."""
    _look_here()
    return find_spec(re.split(r"[.:]", text)[0]) is not None


def check_there(text: str) -> None:
    """Refuse module:function whose module is not there; nothing is imported."""
    if not is_there(text):
        module = text.partition(":")[0]
        raise InputError(f"{text}: there is no module {module}; run in its folder, or set PYTHONPATH")


def _look_here() -> None:
    """Have modules found in the working folder too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def imported(text: str) -> Any:
    """What `module:function` names; the module is looked for in the working folder too."""
    check_there(text)
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise InputError(f"{text}: {error}; run in the folder of {module}, or set PYTHONPATH") from error
    except AttributeError:
        raise InputError(f"{text}: module {module} has no {name}") from None


def made(text: str) -> Any:
    """What the function that `module:function` names returns, a model, say; it takes no arguments."""
    function = imported(text)
    if not callable(function):
        raise InputError(f"{text} must be a function that returns a model, got {type(function).__name__}")
    return function()


def offered(kind: str) -> list[str]:
    """The names under which installed packages offer things of this kind."""
    return sorted(entry_points(group=GROUPS[kind]).names)


def is_offered(kind: str, name: str) -> bool:
    """Whether an installed package offers a thing of this kind under this name."""
    group = GROUPS.get(kind)
    return bool(group and entry_points(group=group, name=name))


def found(kind: str, name: str) -> Any:
    """What a name means outside robvit: module:function, or an installed package's; None for neither."""
    if is_spec(name):
        return imported(name)
    if is_offered(kind, name):
        return next(iter(entry_points(group=GROUPS[kind], name=name))).load()
    return None
