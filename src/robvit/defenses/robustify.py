"""`robustify`: secret tokens for a frozen backbone, from names to results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from robvit.attacks.compute import settle
from robvit.attacks.cost import Passes, forecast_of, probed
from robvit.backbones.heads import FeatureHead, LinearHead, load_head
from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.data import ImageDataset, open_data
from robvit.data.folders import NoSplits
from robvit.defenses.attack_cache import TensorImages
from robvit.defenses.batches import TokenBatches
from robvit.defenses.lora import LoRA
from robvit.defenses.pool import TokenPool
from robvit.defenses.recipe import AdaptiveAttack, TokenRecipe, changed, preset
from robvit.defenses.secret import TokenSecret
from robvit.defenses.token_training import TrainedTokens, train_pool
from robvit.defenses.tokens import SECRET, RobustTokens
from robvit.errors import InputError, check_images
from robvit.loading import load
from robvit.locks import alone_in
from robvit.processes import processes
from robvit.progress import Advance, Log, silent
from robvit.record import Curve, Record

COSINES = {"clean": "hardened cosine, clean", "attacked": "hardened cosine under attack"}
OPEN = (
    "These tokens are not a secret: they were made with a seed, so whoever knows it can make them again; "
    "leave the seed out for tokens that nobody can."
)


@dataclass(frozen=True)
class LearnedTokens:
    """What makes a model robust: secret tokens or a pool of them, a head if one learned along, the record."""

    tokens: RobustTokens | TokenPool
    record: Record
    head: LinearHead | None = None

    @property
    def sets(self) -> tuple[RobustTokens, ...]:
        """The sets of tokens: one, or those of the pool."""
        return self.tokens.sets if isinstance(self.tokens, TokenPool) else (self.tokens,)

    def harden(self, model: Model) -> Model:
        """The model with these tokens, and with the head that learned along."""
        if self.head is None:
            return model.replace(tokens=self.tokens)
        return model.replace(tokens=self.tokens, head=self.head)

    @property
    def file(self) -> str:
        """What the secret's file is called."""
        return "pool.safetensors" if isinstance(self.tokens, TokenPool) else "tokens.safetensors"

    def save(self, out: Path) -> None:
        """Write tokens or pool, head and record into a folder."""
        self.tokens.save(out / self.file)
        if self.head is not None:
            self.head.save(out / "head.safetensors")
        self.record.save(out / "record.json")


def robustify(
    model: Model | str,
    data: ImageDataset | torch.Tensor | str | Path,
    *,
    out: str | Path | None = None,
    recipe: TokenRecipe | str = "paper",
    count: int | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    start: float | None = None,
    layers: Sequence[int] | str | None = None,
    attacks: Sequence[str] = (),
    eps: float | str | None = None,
    attack_steps: int | None = None,
    psnr: float | None = None,
    adaptive: AdaptiveAttack | None = None,
    head: FeatureHead | str | Path | None = None,
    task: float | None = None,
    pool: int = 1,
    seed: int | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    img_size: int | None = None,
    arch: str | None = None,
    cache: Path | None = None,
    precision: str = "auto",
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> LearnedTokens:
    """Learn a few secret tokens, without labels, that make a frozen backbone's features survive attacks.

    Interrupted, the same call with the same `out` resumes to the same tokens, bit for bit: the folder keeps
    the secret they grow from. With a seed anybody can make them again, so they are none, and say so.

    model: a Model, or an alias, a timm name or a checkpoint's path
    data: images (N 3 H W) in [0,1], an open dataset, a dataset's name, or a folder, of which the training
        part is taken or, where it has no parts, every image; labels are not needed
    out: the folder for tokens or pool, head, secret, state and record.json
    recipe: "paper", "deep", "reference" (the published code's choices), or a TokenRecipe; it decides all
        that is left out below
    count: how many tokens enter each layer
    steps, batch, lr, start: the training's steps, images in a step, Adam's rate, the random start's scale
    layers: the blocks before which tokens enter, or "all"
    attacks: several take turns: "feature", "feature@2/255", or "pgd@4/255", which needs a head and labels
    eps, attack_steps, psnr: the attacks' budget (L-inf), their steps, the decibels images keep (0 for none)
    adaptive: an attacker who sees the tokens as they are learned
    head, task: a linear head, and the share of its loss in the objective; above 0 it learns along
    pool: how many independent sets to learn
    seed: makes start and order repeatable, and so no secret; left out, they are drawn in secret, unless a
        TokenRecipe brings its seed
    split, resize, limit: which part of a named dataset, how images are made square, at most how many;
        if left out half as many as the steps draw, since an attack that serves twice costs half
    img_size, arch: how a named model is loaded
    cache: where attacked images are kept; the user's cache if left out
    precision: of the attacks; tokens learn in fp32: "fp32", "bf16", "fp16", or "auto", which probes what is
        fastest on this device and keeps to it in the folder `out`
    log: takes a forecast of the cost in words, before the work starts
    progress: told each share of the work, one in all, with a note
    command: what the record says it was started by
    """
    named = isinstance(recipe, str)
    chosen = changed(
        preset(recipe) if isinstance(recipe, str) else recipe,
        attacks=attacks,
        eps=eps,
        attack_steps=attack_steps,
        psnr=psnr,
        layers=layers,
        count=count,
        steps=steps,
        batch=batch,
        lr=lr,
        start=start,
        adaptive=adaptive,
        task=task,
        seed=seed,
    )
    if pool > 1 and chosen.task:
        raise InputError("a head learns along with one set of tokens; leave out pool or task")
    published = recipe == "reference"
    usual = None if published else max(1, chosen.steps * chosen.batch // 2)
    net = open_model(model, head=head, img_size=img_size, arch=arch, published=published)
    images = open_images(data, net, split=split, resize=resize, limit=limit, usual=usual)
    folder = None if out is None else Path(out)
    with nullcontext() if folder is None else alone_in(folder):
        secret = TokenSecret.kept_in(folder) if seed is None and named else None
        device = next(net.parameters()).device
        few = range(probed(min(chosen.batch, len(images)), device.type))
        x = torch.stack([images[i][0] for i in few]).to(device)
        search = TokenBatches(net, images, chosen, cache, secret).search()
        keep = None if folder is None else folder / "compute.json"
        compute = settle(net, x, wanted=precision, passes=search.work, keep=keep)
        with compute.in_use():
            if log is not silent:
                learning = Passes(2, 2).times(chosen.steps * chosen.batch * pool)
                cost = forecast_of(search.plus(learning), compute.searched(net), x, at_most=False)
                log(f"{net.name} on {len(images)} images: {cost}; {compute}")
            sets, trainings = train_pool(
                net,
                images,
                chosen,
                pool,
                secret=secret,
                state=folder,
                cache=cache,
                precision=compute.precision,
                progress=progress,
            )
        tokens = sets if pool > 1 else sets[0]
        record = _record(net, images, trainings, command)
        record.protocol, record.machine = compute.rules(), compute.machine()
        record.notes[1:1] = compute.notes()
        hardening = LearnedTokens(tokens, record, trainings[0].head)
        if folder is not None:
            hardening.save(folder)
    return hardening


def open_model(
    model: Model | nn.Module | str | Path,
    *,
    head: FeatureHead | str | Path | None,
    img_size: int | None,
    arch: str | None,
    lora: LoRA | str | Path | None = None,
    published: bool = False,
) -> Model:
    """A model that is open already, with the head if one is given, or the one that a name stands for."""
    if isinstance(model, str | Path):
        # The published tokens were trained with the positions of DINOv2's own code.
        hub = published and "dinov2" in str(model)
        positions: Literal["hub", "timm"] = "hub" if hub else "timm"
        net = load(str(model), img_size=img_size, arch=arch, head=head, lora=lora, pos_embed=positions)
        return net.to(processes().device)
    if not isinstance(model, Model):
        model = load(model)  # a network of timm's, say; others are told to give mean and std
    if img_size is not None or arch is not None or lora is not None:
        raise InputError(f"{model.name} is loaded already; give its name to choose img_size, arch or lora")
    if head is None:
        return model
    made = head if isinstance(head, FeatureHead) else load_head(head)
    made.check(model)
    return model.replace(head=made)


def open_images(
    data: ImageDataset | torch.Tensor | str | Path,
    model: Model,
    *,
    split: str | None,
    resize: str | None,
    limit: int | None,
    usual: int | None = None,
) -> ImageDataset | TensorImages:
    """Images to learn from, at the model's size; of a named set at most `limit`, or the `usual` number."""
    size = model.input_size[0]
    if not isinstance(data, torch.Tensor | ImageDataset):
        options: dict[str, Any] = {"size": size, "resize": fitting(model, resize), "limit": limit or usual}
        try:
            return open_data(data, split=split or "train", **options)
        except NoSplits:
            if split is not None:
                raise
            return open_data(data, **options)
    if limit is not None:
        raise InputError("limit goes with the name of a dataset; give fewer images instead")
    if isinstance(data, ImageDataset):
        return data.resized(size, data.resize)
    check_images(data)
    return TensorImages(data)


def _record(
    model: Model, images: ImageDataset | TensorImages, trainings: list[TrainedTokens], command: str
) -> Record:
    """What was learned and how, with both parts of the objective; of the tokens, their keys alone.

    The cosines are means over whole passes, to two decimals: finer ones are a fingerprint of the
    order of the images, by which a guess of the secret could be told to be right.
    """
    lines: dict[str, list[list[float]]] = {}
    metrics: dict[str, float] = {}
    for number, training in enumerate(trainings, 1):
        of = f", set {number}" if len(trainings) > 1 else ""
        metrics[f"un-hardened cosine under attack{of}"] = round(training.baseline, 2)
        if training.means:
            steps, *cosines = zip(*training.means, strict=True)
            for (short, long), values in zip(COSINES.items(), cosines, strict=True):
                lines[f"{short}{of}"] = [list(point) for point in zip(steps, values, strict=True)]
                metrics[f"{long}{of}"] = values[-1]
    secret = all(training.tokens.origin == SECRET for training in trainings)
    return Record(
        kind="robustify",
        model={**model.facts(), "keys": [training.tokens.key_id for training in trainings], "secret": secret},
        data=images.facts(),
        trials=[],
        metrics=metrics,
        curves=_curves(lines, round(trainings[0].baseline, 2)),
        notes=[
            "These figures are from the training; what attackers can do is another question.",
            *([] if secret else [OPEN]),
        ],
        # Whoever has the seed can make the same tokens.
        command=re.sub(r"--seed[ =]\S+", "--seed ...", command),
    )


def _curves(lines: dict[str, list[list[float]]], baseline: float) -> list[Curve]:
    """The course of the training, where it was long enough to be told."""
    if not lines:
        return []
    steps = [point[0] for line in lines.values() for point in line]
    lines["un-hardened, attacked"] = [[min(steps), baseline], [max(steps), baseline]]
    note = f"Means over {min(steps):.0f} steps of both parts; 1 is what the frozen backbone says."
    return [Curve("Learning tokens", "step", "cosine with the original features", lines, note)]
