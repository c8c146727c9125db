"""Segmentation with and without tokens: the mIoU cells of Tables 1 and 2, and the panels of Fig. 3."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from PIL import Image

from robvit.attacks import run
from robvit.backbones.heads import SegmentationHead
from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.defenses.tokens import RobustTokens
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import coloured_mask, photo, save_png
from robvit.errors import DataError
from robvit.evaluation.masks import image_miou, pixel_counts, score_of
from robvit.progress import progress
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.judging import Attempt
from robvit.studies.rob.common import PAPER, backbone, images_for, random_like, tokens_for
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.rob.variants import PUBLISHED_REGULAR
from robvit.verdict import Claim, claim_of

PANELS = 4  # images whose masks are shown
COLUMNS = (
    "truth",
    "clean",
    "no tokens, clean",
    "tokens, clean",
    "adversarial",
    "no tokens, attacked",
    "tokens, attacked",
)


@dataclass(frozen=True)
class Scenes:
    """Images with masks: a dataset, how many a head learns from, and how many are judged."""

    data: str
    learn: int
    judged: int

    def open(self, size: int) -> tuple[ImageDataset, ImageDataset]:
        """Those a head learns from and those that are judged."""
        limits = (("train", self.learn), ("test", self.judged))
        learn, judged = (open_data(self.data, split=part, size=size, limit=limit) for part, limit in limits)
        if learn.kind != "masks":
            raise DataError(
                f"segmentation needs images with masks, {self.data} has {learn.kind}; name a set such as "
                "shapes or camvid:FOLDER (`robvit data list`)"
            )
        return learn, judged


@dataclass
class Masks:
    """mIoU of each variant, clean and attacked, and what the first images looked like for the panels.

    `each` has every image's own mIoU.
    """

    clean: dict[str, float] = field(default_factory=dict)
    attacked: dict[str, float] = field(default_factory=dict)
    each: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    first: dict[str, torch.Tensor] = field(default_factory=dict)
    classes: int = 0

    def claim(self, kind: str) -> Claim:
        """That tokens raise the mIoU of more images than they lower; in points of all images."""
        pairs = list(zip(self.each["tokens", kind], self.each["no tokens", kind], strict=True))
        text = f"images whose mIoU tokens raise over those whose they lower, {kind}"
        return claim_of(text, [a > b for a, b in pairs], [b > a for a, b in pairs])


def segmentation(
    model: Model, tokens: RobustTokens, scenes: Scenes, attempt: Attempt | None, *, per_image: bool = False
) -> Masks:
    """Dataset-level mIoU of linear heads; without an attack, on clean images only.

    Attacked on the token-free model with the judged model's head, as in the published code, whose figure
    under attack is the mean of each image's mIoU (`per_image`).
    """
    learn, judged = scenes.open(model.input_size[0])
    heads = [
        SegmentationHead.fit(m, list(learn.batches(16)), len(learn.classes), names=learn.classes)
        for m in (model, model.replace(tokens=tokens))
    ]
    variants: dict[str, tuple[RobustTokens | None, int]] = {
        "no tokens": (None, 0),
        "random tokens": (random_like(tokens), 0),
        "tokens": (tokens, 0),
        "tokens, head on hardened features": (tokens, 1),
        PUBLISHED_REGULAR: (None, 1),
    }
    surrogates = [model.replace(tokens=None, head=head) for head in heads]
    victims = {
        name: (model.replace(tokens=some, head=heads[which]), which)
        for name, (some, which) in variants.items()
    }
    masks = Masks(classes=len(learn.classes))
    counts: dict[tuple[str, str], list[torch.Tensor]] = defaultdict(list)
    with progress("segmentation", total=len(judged)) as advance:
        for x, y in judged.batches(8):
            adv = [x] * 2 if attempt is None else [_attack(s, x, y, attempt) for s in surrogates]
            for name, (victim, which) in victims.items():
                for kind, images in (("clean", x), ("attacked", adv[which])):
                    with torch.no_grad():
                        output = victim(images)
                    counts[name, kind].append(pixel_counts(output.argmax(1), y, masks.classes))
                    masks.first.setdefault(f"{name}, {kind}", output.argmax(1)[:PANELS])
            for name, some in (("truth", y), ("clean", x), ("adversarial", adv[0])):
                masks.first.setdefault(name, some[:PANELS])
            advance(len(x))
    for (name, kind), each in counts.items():
        own = masks.each[name, kind] = image_miou(torch.cat(each)).tolist()
        whole = kind == "clean" or not per_image
        getattr(masks, kind)[name] = score_of(each, masks.classes).miou if whole else mean(own)
    return masks


def _attack(model: Model, x: torch.Tensor, y: torch.Tensor, attempt: Attempt) -> torch.Tensor:
    assert attempt.threat is not None
    # Naming the victim makes the attack run to its full objective.
    settings = dict(attempt.settings)
    return run(attempt.attack, model, x, y, attempt.threat, victim=model, eight_bit=True, **settings).adv


@study(
    "rob-fig3",
    paper=PAPER,
    title="Fig. 3: what a segmentation head sees, clean and attacked",
    effort=TokenEffort(),
)
def panels(
    context: StudyContext,
    effort: TokenEffort,
    *,
    tokens: str = "",
    attack_steps: int = 30,
    segmentation_data: str = "shapes",
    scenes: int = 64,
) -> Record:
    """Masks with and without tokens on clean and on attacked images; panels.png shows the first ones."""
    views = Scenes(segmentation_data, scenes, context.count(16))
    model = backbone(context, effort)
    learn, _ = images_for(context, effort, model, learn=1 if tokens else effort.learn, judged=1)
    values = tokens_for(context, effort, model, learn, tokens)
    masks = segmentation(model, values, views, effort.mask_attack(attack_steps), per_image=effort.published)
    save_png(_panels(masks), context.out / "panels.png")
    rows = [[name, 100 * masks.clean[name], 100 * masks.attacked[name]] for name in masks.clean]
    attacked = "mean of each image's mIoU" if effort.published else "dataset-level too"
    table = Table(
        "Fig. 3: dataset-level mIoU, %", ["model", "clean", "attacked"], rows, f"Attacked: {attacked}."
    )
    judged = open_data(segmentation_data, split="test", limit=views.judged)
    claims = [masks.claim("clean"), masks.claim("attacked")]
    return context.record(model, judged, tables=[table, claims_table(claims)], claims=claims)


def _panels(masks: Masks) -> Image.Image:
    """One row an image, in the order of the paper's figure: truth, clean and its masks, attacked and its."""
    rows = [
        Row([Tile(photo(one) if one.ndim == 3 else coloured_mask(one, masks.classes)) for one in shown])
        for shown in zip(*(masks.first[name] for name in COLUMNS), strict=True)
    ]
    return draw_grid(Grid(rows, COLUMNS))
