"""Trackers of a training, such as TensorBoard, through accelerate."""

from __future__ import annotations

import importlib.util

from accelerate import Accelerator

from robvit.errors import InputError
from robvit.training.recipe import Recipe

TRACKERS = ("tensorboard", "wandb", "mlflow")


def of(recipe: Recipe) -> list[str]:
    """The trackers a recipe names; if it names none, TensorBoard where it is installed."""
    if recipe.track is None:
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    for name in recipe.track:
        if name not in TRACKERS:
            raise InputError(f"track knows {', '.join(TRACKERS)}, got {name!r}")
        if importlib.util.find_spec(name) is None:
            raise InputError(f"{name} is not installed; pip install {name}, or leave it out of track")
    return list(recipe.track)


def start(accelerator: Accelerator, recipe: Recipe, names: list[str]) -> None:
    """Open the trackers with the recipe's values."""
    plain = {k: v if isinstance(v, int | float | str) else str(v) for k, v in recipe if v is not None}
    try:
        accelerator.init_trackers("robvit", config=plain)
    except Exception as error:  # a tracker fails in whatever way it likes: no login, no server, another store
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{', '.join(names)} could not start: {reason}; set it up, or train without it: --set 'track=[]'"
        ) from error
