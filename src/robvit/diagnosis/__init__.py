"""The doctor: does an evaluation of a model's robustness deserve belief?

The package is a function too: `robvit.doctor(model, pictures)`. A new check is one function under
`@CHECKS.add` in `alone.py` (the model by itself) or `compared.py` (attacks side by side).
"""

import sys
from types import ModuleType
from typing import Any


class _Door(ModuleType):
    """Importing a part of this package puts the package where `robvit.doctor` is; so it can be called."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from robvit.diagnosis.doctor import doctor

        return doctor(*args, **settings)


sys.modules[__name__].__class__ = _Door
