"""Explanations as figures: what a model attends to, what an attack changes, and what hardening restores.

Every figure is a function, `FIGURES["attention"](subject)`, and what it draws comes from functions on
models and tensors in the same file.
"""

from importlib import import_module
from pkgutil import iter_modules

from robvit.explanation.subject import FIGURES, Subject, figure

for _name in ("activations", "attention", "gaps", "features", "landscape", "gradients", "masks", "gates"):
    import_module(f"{__name__}.{_name}")  # the order of the report
for _found in iter_modules(__path__):  # files nobody names above file their figures too
    import_module(f"{__name__}.{_found.name}")

__all__ = ["FIGURES", "Subject", "figure"]
