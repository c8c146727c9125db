"""Training whole networks: recipes, losses, one loop.

from robvit.training import job_of, load_recipe, train

record = train(job_of(load_recipe("mini", epochs=1), "robvit-mini", "sample"), Path("runs/mini"))
"""

from robvit.training.fit import Course, Fit
from robvit.training.losses import LOSSES, Loss
from robvit.training.recipe import Recipe, load_recipe, make_recipe
from robvit.training.run import Job, job_of, train

__all__ = [
    "LOSSES",
    "Course",
    "Fit",
    "Job",
    "Loss",
    "Recipe",
    "job_of",
    "load_recipe",
    "make_recipe",
    "train",
]
