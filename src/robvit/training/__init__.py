"""Training whole networks: recipes, losses, one loop.

from robvit.training import job_of, load_recipe, train

record = train(job_of(load_recipe("mini", epochs=1), "robvit-mini", "sample"), Path("runs/mini"))
"""

from robvit.training.fit import Fit, Splits
from robvit.training.losses import LOSSES, Loss
from robvit.training.recipe import Recipe, load_recipe, make_recipe
from robvit.training.train import Job, job_of, train

__all__ = [
    "LOSSES",
    "Fit",
    "Job",
    "Loss",
    "Recipe",
    "Splits",
    "job_of",
    "load_recipe",
    "make_recipe",
    "train",
]
