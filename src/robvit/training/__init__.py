"""Training by recipes: whole networks by any loss, adapters on a frozen one; one loop.

from robvit import train

record = train("mini", data="sample", out="runs/mini", epochs=1)

Names are looked up when they are first used, so that a recipe is checked before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robvit.training.fit import Fit as Fit
    from robvit.training.losses import LOSSES as LOSSES
    from robvit.training.losses import Loss as Loss
    from robvit.training.recipe import Recipe as Recipe
    from robvit.training.recipe import load_recipe as load_recipe
    from robvit.training.recipe import make_recipe as make_recipe
    from robvit.training.splits import Splits as Splits

_PUBLIC = {
    "LOSSES": "losses",
    "Fit": "fit",
    "Loss": "losses",
    "Recipe": "recipe",
    "Splits": "splits",
    "load_recipe": "recipe",
    "make_recipe": "recipe",
}
__all__ = ["LOSSES", "Fit", "Loss", "Recipe", "Splits", "load_recipe", "make_recipe"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'robvit.training' has no attribute {name!r}")
    if name == "LOSSES":
        importlib.import_module("robvit.training.fit")  # so that all losses are filed
    return getattr(importlib.import_module(f"robvit.training.{_PUBLIC[name]}"), name)
