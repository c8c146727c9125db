"""Judging: what a model is worth on untouched and on attacked pictures, as a record.

The package is a function too: `robvit.evaluate(model, data, protocol="quick@1")`.
"""

import sys
from types import ModuleType
from typing import Any


class _Door(ModuleType):
    """Importing a part of this package puts the package where `robvit.evaluate` is; so it can be called."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from robvit.evaluation.evaluate import evaluate

        return evaluate(*args, **settings)


sys.modules[__name__].__class__ = _Door
