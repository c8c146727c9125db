"""Segmentation with and without tokens: the mIoU cells of Tables 1 and 2, and the panels of Fig. 3."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch

from robvit.attacks import run
from robvit.attacks.pixels import eight_bit
from robvit.backbones.heads import SegmentationHead
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.defenses.tokens import RobustTokens
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import coloured_mask, photo, save_png
from robvit.errors import DataError
from robvit.evaluation.masks import pixel_counts, score_of
from robvit.evaluation.record import Record, Table
from robvit.progress import progress
from robvit.studies.common import Request, study, study_record
from robvit.studies.rob.common import PAPER, Effort, backbone, given, learned, parts, random_like
from robvit.threat import Threat


@dataclass(frozen=True)
class Scenes:
    """Images with masks: a data set, how many a head learns from, and how many are judged."""

    data: str
    learn: int
    judge: int


@dataclass
class Masks:
    """mIoU of each variant, clean and attacked, and what the first images looked like for the panels."""

    clean: dict[str, float] = field(default_factory=dict)
    attacked: dict[str, float] = field(default_factory=dict)
    first: dict[str, torch.Tensor] = field(default_factory=dict)
    classes: int = 0


def segmentation(
    model: Model, tokens: RobustTokens, scenes: Scenes, threat: Threat | None, steps: int, *, kept: int = 4
) -> Masks:
    """Dataset-level mIoU of linear heads; without a threat, on clean images only.

    Attacked on the token-free model with the victim's head, as in the published code.
    """
    size = model.input_size[0]
    learn = open_data(scenes.data, split="train", size=size, limit=scenes.learn)
    judge = open_data(scenes.data, split="test", size=size, limit=scenes.judge)
    for part in (learn, judge):
        if part.kind != "masks":
            raise DataError(
                f"segmentation needs images with masks, {scenes.data} has {part.kind}; name a set such as "
                "shapes or camvid:FOLDER (`robvit data list`)"
            )
    classes = len(learn.classes)
    hardened = model.replace(tokens=tokens)
    heads = [
        SegmentationHead.fit(m, list(learn.batches(16)), classes, names=learn.classes)
        for m in (model, hardened)
    ]
    variants: dict[str, tuple[RobustTokens | None, int]] = {
        "no tokens": (None, 0),
        "random tokens": (random_like(tokens), 0),
        "tokens": (tokens, 0),
        "tokens, head on hardened features": (tokens, 1),
    }
    victims = {}
    for name, (extra, which) in variants.items():
        victims[name] = model.replace(tokens=extra, head=heads[which])
    surrogates = [model.replace(tokens=None, head=head) for head in heads]
    found = Masks(classes=classes)
    counts: dict[tuple[str, str], list[torch.Tensor]] = defaultdict(list)
    with progress("segmentation", total=len(judge)) as advance:
        for x, y in judge.batches(8):
            adv = [x] * 2
            if threat is not None:
                adv = [_attack(surrogate, x, y, threat, steps) for surrogate in surrogates]
            for name, victim in victims.items():
                seen = {"clean": x, "attacked": adv[variants[name][1]]}
                for kind, images in seen.items():
                    with torch.no_grad():
                        output = victim(images)
                    counts[name, kind].append(pixel_counts(output, y, classes))
                    found.first.setdefault(f"{name}, {kind}", output.argmax(1)[:kept])
            found.first.setdefault("truth", y[:kept])
            found.first.setdefault("clean", x[:kept])
            found.first.setdefault("adversarial", adv[0][:kept])
            advance(len(x))
    for (name, kind), each in counts.items():
        getattr(found, kind)[name] = score_of(each, classes).miou
    return found


def _attack(model: Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, steps: int) -> torch.Tensor:
    made = run("segpgd", model, x, y, threat, victim=model, steps=steps, weighted=False)
    return eight_bit(x, made.adv, threat)


@study("rob-fig3", paper=PAPER, title="Fig. 3: what a segmentation head sees, clean and attacked")
def panels(
    request: Request,
    *,
    tokens: str = "",
    learn: int = 192,
    steps: int = 60,
    attack_steps: int = 30,
    eps: float = 3 / 255,
    segmentation_data: str = "shapes",
    scenes: int = 64,
) -> Record:
    """Masks with and without tokens on clean and on attacked images; panels.png shows the first ones."""
    model, effort = backbone(request), Effort(learn=learn, steps=steps, eps=eps)
    if tokens:
        values = given(tokens, model)
    else:
        images, _ = parts(request, model.input_size[0], learn, 1)
        values = learned(request, model, images, effort.recipe(seed=request.seed)).tokens
    views = Scenes(segmentation_data, scenes, request.images or 16)
    found = segmentation(model, values, views, Threat("linf", eps), attack_steps)
    draw_panels(found, request.out / "panels.png")
    rows = [[name, 100 * found.clean[name], 100 * found.attacked[name]] for name in found.clean]
    table = Table("Fig. 3: dataset-level mIoU, %", ["model", "clean", "attacked"], rows)
    record = study_record(request, model, open_data(segmentation_data, split="test", limit=views.judge))
    record.data["spec"], record.tables = segmentation_data, [table]
    return record


def draw_panels(found: Masks, path: Path) -> None:
    """One row an image, in the order of the paper's figure: truth, clean and its masks, attacked and its."""
    columns = (
        "truth",
        "clean",
        "no tokens, clean",
        "tokens, clean",
        "adversarial",
        "no tokens, attacked",
        "tokens, attacked",
    )
    rows = [
        Row([Tile(photo(s) if s.ndim == 3 else coloured_mask(s, found.classes)) for s in shown])
        for shown in zip(*(found.first[name] for name in columns), strict=True)
    ]
    save_png(draw_grid(Grid(rows, columns)), path)
