"""Explanations as pictures: what a model attends to, what an attack changes, and what hardening restores.

The package is a function too: `robvit.explain(Subject(model, x), "runs/explain")`. Every figure is also
a function of its own here, `FIGURES["attention"](subject)`, and what it draws comes from functions on
models and tensors in the same file.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from robvit.explanation.subject import FIGURES, Subject, figure

for _name in ("activations", "attention", "gaps", "features", "landscape", "gradients", "masks", "gates"):
    import_module(f"{__name__}.{_name}")  # the order of the report
for _found in iter_modules(__path__):  # files nobody names above file their figures too
    import_module(f"{__name__}.{_found.name}")


class _Door(ModuleType):
    """Importing a part of this package puts the package where `robvit.explain` is; so it can be called."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from robvit.explanation.explain import explain

        return explain(*args, **settings)


sys.modules[__name__].__class__ = _Door

__all__ = ["FIGURES", "Subject", "figure"]
