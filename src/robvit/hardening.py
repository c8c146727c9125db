"""`robvit.robustify`: one verb for every way to make a model robust.

Secret tokens hold against attacks on the public model. Tuned factors or weights are no secret: they are
meant to hold when the attacker has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from robvit.backbones.heads import FeatureHead, LinearHead
from robvit.backbones.model import Model
from robvit.budget import parse_number
from robvit.data import ImageDataset
from robvit.defenses import robustify as tokens_verb
from robvit.defenses.lora import LoRA
from robvit.defenses.pool import TokenPool
from robvit.defenses.recipe import AdaptiveAttack, TokenRecipe
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.progress import Advance, Log, silent
from robvit.record import Record
from robvit.training.finetune import finetune
from robvit.training.tuning import METHODS, Tuning

TUNED_IN = {"auto": "auto", "fp32": "no", "bf16": "bf16", "fp16": "fp16"}  # and a recipe's words for them
Data = ImageDataset | torch.Tensor | str | Path


@dataclass(frozen=True)
class Hardening:
    """A model made robust, ready to use, and what made it so.

    model: the robust model, with the head it was given or that learned along
    record: how it came about, and what it cost
    file: where tokens, factors or weights were written; None without `out`
    tokens: the secret tokens or pool of the method "tokens"
    lora: the factors of the method "lora", merged into the model
    head: the head, if it learned along with tokens
    """

    model: Model
    record: Record
    file: Path | None = None
    tokens: RobustTokens | TokenPool | None = None
    lora: LoRA | None = None
    head: LinearHead | None = None

    @property
    def sets(self) -> tuple[RobustTokens, ...]:
        """The sets of tokens: none, one, or those of the pool."""
        if isinstance(self.tokens, TokenPool):
            return self.tokens.sets
        return () if self.tokens is None else (self.tokens,)


def robustify(
    model: Model | nn.Module | str | Path,
    data: Data,
    *,
    method: Literal["tokens", "lora", "full"] = "tokens",
    out: str | Path | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    eps: float | str | None = None,
    seed: int | None = None,
    head: FeatureHead | str | Path | None = None,
    recipe: TokenRecipe | str | None = None,
    count: int | None = None,
    start: float | None = None,
    layers: Sequence[int] | str | None = None,
    attacks: Sequence[str] | None = None,
    attack_steps: int | None = None,
    psnr: float | None = None,
    adaptive: AdaptiveAttack | None = None,
    task: float | None = None,
    pool: int | None = None,
    cache: Path | None = None,
    precision: str | None = None,
    tuning: Tuning | None = None,
    extra: Data | None = None,
    extra_share: float | None = None,
    lora: LoRA | str | Path | None = None,
    rank: int | None = None,
    inner_steps: int | None = None,
    clean_weight: float | None = None,
    clean_cosine: float | None = None,
    keep: float | None = None,
    hide: int | None = None,
    norms: bool | None = None,
    loss: Literal["features", "task", "trades"] | None = None,
    minutes: float | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    img_size: int | None = None,
    arch: str | None = None,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Hardening:
    """Make a model survive attacks; unless told otherwise, without labels.

    Interrupted, the same call with the same `out` resumes to the same bits. Options that the method does not
    have are refused.

    model: a Model, an alias, a timm name, a checkpoint's path, or a network of timm's
    data: images (N 3 H W) in [0,1], an open dataset, a dataset's name, or a folder, of which the training
        part is taken or, where it has no parts, every image; labels are not needed
    method: "tokens", a secret against attacks on the public model; "lora" or "full", factors beside the
        linear layers or all weights, tuned to stand when the attacker has them
    out: the folder for tokens, factors or weights, the run's state and record.json
    steps, batch, lr: the training's steps, images in a step, learning rate
    eps: the budget of the attacks (L-inf), 8/255 for tokens and 2/255 for tuning if left out
    seed: makes the result repeatable, and so tokens no secret; left out they are drawn in secret, and tuning
        takes 0
    head: a head on the original's features, which the robust model takes over
    recipe: tokens: "paper", "deep", "reference" (the published code's choices), or a TokenRecipe
    count: tokens: how many enter each layer
    start: tokens: the random start's scale
    layers: tokens: the blocks before which they enter, or "all"
    attacks: tokens: several take turns: "feature", "feature@2/255", or "pgd@4/255", which needs labels
    attack_steps, psnr: tokens: the attacks' steps, the decibels that images keep (0 for none)
    adaptive: tokens: an attacker who sees them as they are learned
    task: tokens: the share of the head's loss in the objective; above 0 the head learns along
    pool: tokens: how many independent sets to learn
    cache: tokens: where attacked images are kept; the user's cache if left out
    precision: of the attacks, while tokens learn in fp32, or of a whole tuning: "fp32", "bf16", "fp16", or
        "auto", which probes what is fastest on this device; auto if left out
    tuning: lora, full: all numbers of a tuning; what is given here besides wins
    extra, extra_share: lora, full: more images to learn from, and their share of each batch, 0.5 say
    lora: factors of an earlier tuning: tokens are learned on the tuned network; lora goes on from them,
        towards the same original
    rank: lora: the rank of the factors, 16
    inner_steps: lora, full: steps of the attack inside a training step, 2, and more beyond 2/255
    clean_weight, clean_cosine: lora, full: the weight of a term that keeps clean features, or the cosine with
        the original that they are to keep, by which the weight is chosen
    keep: lora, full: the share of patch tokens that a step sees, 1; 0.5 about halves the work of the blocks
    hide: lora, full: the side in pixels of patches against which the model will be certified: a step sees
        images without two of the windows that cover them
    norms: lora: whether normalisations and layer scales learn along
    loss: lora, full: "features", without labels; "task" or "trades": the loss of the head or the model's own
        classifier on attacked images, or TRADES, which need labels
    minutes: lora, full: plan steps and batch for so long, by a probe of the model on this machine
    split, resize, limit: which part of a named dataset, how images are made square, at most how many
    img_size, arch: how a named model is loaded
    log: told a forecast of the cost, or for lora and full what each validation saw, line by line
    progress: told each share of the work, one in all, with a note
    command: what the record says it was started by
    """
    shared = {"steps": steps, "batch": batch, "lr": lr, "eps": eps, "seed": seed}
    of_tokens = {
        "recipe": recipe,
        "count": count,
        "start": start,
        "layers": layers,
        "attacks": attacks,
        "attack_steps": attack_steps,
        "psnr": psnr,
        "adaptive": adaptive,
        "task": task,
        "pool": pool,
        "cache": cache,
    }
    of_tuning = {
        "rank": rank,
        "inner_steps": inner_steps,
        "clean_weight": clean_weight,
        "clean_cosine": clean_cosine,
        "keep": keep,
        "hide": hide,
        "extra_share": extra_share,
        "norms": norms,
        "loss": loss,
    }
    published = recipe == "reference"
    if method not in ("tokens", *METHODS):
        raise InputError(f"method must be tokens, {' or '.join(METHODS)}, got {method!r}")
    if method == "tokens":
        only = {"tuning": tuning, "minutes": minutes, "extra": extra}
        _refuse(of_tuning | only, method, "lora and full")
    else:
        _refuse(of_tokens, method, "tokens")
        _refuse({"rank": rank, "norms": norms, "lora": lora} if method == "full" else {}, method, "lora")
    merged = lora if method == "tokens" else None
    net = tokens_verb.open_model(
        model, head=head, img_size=img_size, arch=arch, lora=merged, published=published
    )
    place: dict[str, Any] = {"split": split, "resize": resize, "limit": limit}
    outputs: dict[str, Any] = {"out": out, "progress": progress, "command": command}
    if method == "tokens":
        wishes = _given(shared | of_tokens | {"precision": precision})
        learned = tokens_verb.robustify(net, data, log=log, **wishes, **place, **outputs)
        file = None if out is None else Path(out) / learned.file
        return Hardening(learned.harden(net), learned.record, file, tokens=learned.tokens, head=learned.head)
    images = _opened(data, net, **place)
    more = None if extra is None else _opened(extra, net, split=None, resize=resize, limit=None)
    wishes = _given(shared | of_tuning) | {"method": method}
    if eps is not None:
        wishes["eps"] = parse_number(eps)
    chosen = _in_precision(replace(tuning or Tuning(), **wishes), precision)
    tuned = finetune(
        net, images, chosen, extra=more, lora=lora, minutes=minutes, arch=arch, log=log, **outputs
    )
    return Hardening(
        tuned.model, tuned.record, None if out is None else Path(out) / METHODS[method], lora=tuned.lora
    )


def _opened(data: Data, net: Model, **place: Any) -> ImageDataset | torch.Tensor:
    """Images as a tuning takes them; a tensor stays one unless fewer of it are asked for."""
    if isinstance(data, torch.Tensor) and place["limit"] is None:
        return data
    opened = tokens_verb.open_images(data, net, **place)
    assert isinstance(opened, ImageDataset)
    return opened


def _in_precision(tuning: Tuning, precision: str | None) -> Tuning:
    """The tuning in a precision, by a recipe's word for it."""
    if precision is None:
        return tuning
    if precision not in TUNED_IN:
        raise InputError(f"a tuning's precision must be {', '.join(TUNED_IN)}, got {precision!r}")
    return replace(tuning, changes=tuning.changes | {"precision": TUNED_IN[precision]})


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], method: str, owner: str) -> None:
    """Refuse options that the chosen method does not have, rather than ignore them."""
    if wrong := list(_given(options)):
        raise InputError(f"{wrong[0]} is for the method {owner}, got method {method!r}; leave it out")
