"""Code from elsewhere by name: `module:function`, and what installed packages offer by entry points.

It is imported, so name only modules you trust. Nothing is imported before somebody asks for its name.
"""

from __future__ import annotations

import importlib
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from robvit.errors import InputError

SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# What a registry holds: the group of entry points under which packages offer more of it.
GROUPS = {"attack": "robvit.attacks", "training loss": "robvit.losses", "data set": "robvit.datasets"}


def is_spec(text: str) -> bool:
    """Whether it reads as module:function."""
    return SPEC.fullmatch(text) is not None


def imported(text: str) -> Any:
    """What `module:function` names; the module is looked for in the working folder too."""
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise InputError(f"{text}: {error}; run in the folder of {module}, or set PYTHONPATH") from error
    except AttributeError:
        raise InputError(f"{text}: module {module} has no {name}") from None


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
