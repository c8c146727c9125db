"""Training by recipes: whole networks by any loss, adapters on a frozen one; one loop.

from robvit import train

record = train("mini", data="sample", out="runs/mini", epochs=1)
"""

from robvit.training.fit import Fit
from robvit.training.losses import LOSSES, Loss
from robvit.training.recipe import Recipe, load_recipe, make_recipe
from robvit.training.splits import Splits
from robvit.training.train import train

__all__ = [
    "LOSSES",
    "Fit",
    "Loss",
    "Recipe",
    "Splits",
    "load_recipe",
    "make_recipe",
    "train",
]
