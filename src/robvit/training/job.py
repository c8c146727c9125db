"""A training by names: which recipe on which model and images, and these opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit import plugins
from robvit.backbones import weights
from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.data import ImageDataset
from robvit.data.opening import open_to_learn
from robvit.errors import InputError
from robvit.evaluation.probe import answers_digest
from robvit.loading import load
from robvit.tensor_files import tensors_sha256
from robvit.training.losses import LOSSES
from robvit.training.recipe import Recipe
from robvit.training.splits import Splits, held_out


@dataclass(frozen=True)
class Job:
    """What is trained on what: names as a person gives them, or a model and images that are open already."""

    recipe: Recipe
    model: str | nn.Module
    data: str | Path | ImageDataset
    extra: str | Path | ImageDataset | None = None
    split: str = "train"
    resize: str | None = None
    limit: int | None = None
    arch: str | None = None

    @property
    def model_name(self) -> str:
        """What the model is called."""
        if isinstance(self.model, str):
            return self.model
        return str(getattr(self.model, "name", type(self.model).__name__))

    @property
    def data_name(self) -> str:
        """What the images are called."""
        return "" if isinstance(self.data, ImageDataset) else str(self.data)

    def about(self) -> dict[str, Any]:
        """What `save_model` must know to make the weights open by path alone."""
        named = isinstance(self.model, str)
        arch = weights.architecture(self.model_name, self.arch) if named else self.arch or self.model_name
        about = {"arch": arch, "patch_size": self.recipe.patch_size if named else None}
        if isinstance(self.model, str | Model):
            return about
        return about | {"answers": answers_digest(self.model, self.recipe.img_size)}


def job_of(
    recipe: Recipe,
    model: str | nn.Module | None = None,
    data: str | Path | ImageDataset | None = None,
    **more: Any,
) -> Job:
    """A job with what the recipe names where nothing else is given."""
    model = recipe.model if model is None else model
    data = recipe.data if data is None else data
    for name, value in (("model", model), ("data", data)):
        if value is None:
            raise InputError(f"this recipe names no {name}; give --{name}")
    assert model is not None
    assert data is not None
    if isinstance(model, str) and plugins.is_spec(model):
        if model == recipe.model:  # a file may come from anybody
            raise InputError(f"a recipe names no code to run, got {model}; give it yourself with --model")
        # Its own weights are trained, as a module's are.
        model = load(model, img_size=recipe.img_size, normalise=recipe.normalise)
    return Job(recipe, model, data, **more)


def prepare(job: Job) -> tuple[nn.Module, Splits]:
    """The model as it starts, with a classifier for the images' classes, and what it learns from."""
    recipe = job.recipe
    torch.manual_seed(recipe.seed)
    model = _opened_model(job)
    size = model.input_size[0] if isinstance(model, Model) else recipe.img_size
    resize = fitting(model, job.resize)
    images = _opened(job.data, job, limit=job.limit).resized(size, resize)
    loss: Any = LOSSES[recipe.loss]
    if isinstance(model, Model) and getattr(loss, "needs_classifier", True):
        net: Any = model.net
        if model.classes != len(images.classes):
            net.reset_classifier(len(images.classes))
    extra = None if job.extra is None else _opened(job.extra, job).resized(size, resize)
    if extra is not None and extra.classes != images.classes:
        raise InputError(
            f"the extra data's classes must be those of {job.data_name or 'the data'}, "
            f"got {extra.classes[:5]}"
        )
    train, validation = held_out(images, recipe.validation, recipe.seed)
    return model, Splits(train, validation, extra)


def model_facts(model: nn.Module) -> dict[str, Any]:
    """What the record of a training tells of its model."""
    if isinstance(model, Model):
        return model.facts()
    return {"name": type(model).__name__, "identity": tensors_sha256(model.state_dict())}


def _opened_model(job: Job) -> nn.Module:
    recipe = job.recipe
    if isinstance(job.model, str):
        return load(
            job.model,
            pretrained=recipe.pretrained,
            img_size=recipe.img_size,
            patch_size=recipe.patch_size,
            normalise=recipe.normalise,
            drop_path=recipe.drop_path,
            arch=job.arch,
        )
    if isinstance(job.model, Model) and (
        job.model.hardened or job.model.head is not None or job.model.adapters is not None
    ):
        raise InputError(
            f"a network is trained as it is; {job.model.name} has tokens, a head or adapters: leave them out"
        )
    wanted = recipe.img_size
    if isinstance(job.model, Model) and wanted and job.model.input_size != (wanted, wanted):
        raise InputError(
            f"the recipe is for images of {wanted} pixels, {job.model.name} takes {job.model.input_size[0]}; "
            f"load it with img_size={wanted}, or set img_size"
        )
    return job.model


def _opened(data: str | Path | ImageDataset, job: Job, limit: int | None = None) -> ImageDataset:
    if not isinstance(data, ImageDataset):
        data = open_to_learn(data, job.split if job.split != "train" else None, limit=limit)
    elif limit is not None:
        raise InputError("limit goes with the name of a dataset; take fewer of an open one: data.take(...)")
    if data.kind == "labels" and not data.classes:  # a program's own have numbers alone
        count = max(data.listing.labels or [0]) + 1
        data = data.relabelled(list(range(count)), [f"class {number}" for number in range(count)])
    return data
