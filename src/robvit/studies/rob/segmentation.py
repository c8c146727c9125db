"""Segmentation with and without tokens: the mIoU cells of Tables 1 and 2, and the panels of Fig. 3."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import torch
from PIL import Image

from robvit.backbones.heads import SegmentationHead
from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.defenses.tokens import RobustTokens
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import coloured_mask, photo, save_png
from robvit.errors import DataError
from robvit.evaluation.masks import image_miou, pixel_counts, score_of
from robvit.evaluation.shards import read_images
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study, told
from robvit.studies.judging import Attempt, transferred
from robvit.studies.rob.common import PAPER, backbone, fit_head, images_for, random_like, tokens_for
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.rob.variants import PUBLISHED_REGULAR
from robvit.verdict import Claim, claim_of

BATCH = 8
PANELS = 4  # images whose masks are shown, of the first batch
Counts = dict[tuple[str, str], list[torch.Tensor]]  # of pixels by variant and kind, batch by batch
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

    def counted(self) -> Scenes:
        """The same with no more judged than there are: what those can tell is said before anything runs."""
        judged = open_data(self.data, split="test", limit=self.judged)
        if judged.kind != "masks":
            raise DataError(
                f"segmentation needs images with masks, {self.data} has {judged.kind}; name a set such as "
                "shapes or camvid:FOLDER (`robvit data list`)"
            )
        return replace(self, judged=told(len(judged)))

    def open(self, size: int) -> tuple[ImageDataset, ImageDataset]:
        """Those a head learns from and those that are judged."""
        limits = (("train", self.learn), ("test", self.judged))
        learn, judged = (open_data(self.data, split=part, size=size, limit=limit) for part, limit in limits)
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
    context: StudyContext,
    model: Model,
    tokens: RobustTokens,
    scenes: Scenes,
    attempt: Attempt | None,
    *,
    per_image: bool = False,
) -> Masks:
    """Dataset-level mIoU of linear heads; without an attack, on clean images only.

    Attacked on the token-free model with the judged model's head, as in the published code, whose figure
    under attack is the mean of each image's mIoU (`per_image`).
    """
    learn, judged = scenes.open(model.input_size[0])
    learners = {"segmentation-head": model, "hardened-segmentation-head": model.replace(tokens=tokens)}
    public, hardened = (
        fit_head(context, SegmentationHead, learner, learn, name, batch=16)
        for name, learner in learners.items()
    )
    variants = {
        "no tokens": model.replace(tokens=None, head=public),
        "random tokens": model.replace(tokens=random_like(tokens), head=public),
        "tokens": model.replace(tokens=tokens, head=public),
        "tokens, head on hardened features": model.replace(tokens=tokens, head=hardened),
        PUBLISHED_REGULAR: model.replace(tokens=None, head=hardened),
    }
    masks = Masks(classes=len(learn.classes))
    for surrogate in (variants["no tokens"], variants[PUBLISHED_REGULAR]):
        mine = {name: victim for name, victim in variants.items() if victim.head is surrogate.head}
        counts, adv = _counts(context, surrogate, mine, judged, attempt)
        for (name, kind), each in counts.items():
            own = masks.each[name, kind] = image_miou(torch.cat(each)).tolist()
            whole = kind == "clean" or not per_image
            getattr(masks, kind)[name] = score_of(each, masks.classes).miou if whole else mean(own)
        masks.first = masks.first or _first(mine, judged, adv)
    return masks


def _counts(
    context: StudyContext,
    surrogate: Model,
    victims: dict[str, Model],
    images: ImageDataset,
    attempt: Attempt | None,
) -> tuple[Counts, torch.Tensor | None]:
    """What each victim makes of images, clean and attacked on the surrogate; and the first attacked ones."""
    counts: Counts = defaultdict(list)
    if attempt is None:
        for name, victim in victims.items():
            for x, y in images.batches(BATCH):
                with torch.no_grad():
                    found = pixel_counts(victim(x).argmax(1), y, len(images.classes))
                counts[name, "clean"].append(found)
        return counts, None
    made, shown = transferred(
        context, surrogate, victims, images, attempt, label="attacking masks", batch=BATCH
    )
    for name, shards in shown.items():
        for shard in shards:
            for kind, some in (("clean", shard.clean_counts), ("attacked", shard.counts)):
                assert some is not None
                counts[name, kind].append(some)
    return counts, read_images(made.folder, 0)[:PANELS]


@torch.no_grad()
def _first(
    victims: dict[str, Model], images: ImageDataset, adv: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The first images and what becomes of their masks, for the panels."""
    x, y = images.take(range(min(PANELS, len(images)))).tensors()
    found = {"truth": y, "clean": x} | ({} if adv is None else {"adversarial": adv})
    for name, victim in victims.items():
        found[f"{name}, clean"] = victim(x).argmax(1)
        if adv is not None:
            found[f"{name}, attacked"] = victim(adv).argmax(1)
    return found


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
    views = Scenes(segmentation_data, scenes, context.images or 16).counted()
    model = backbone(context, effort)
    learn, _ = images_for(context, effort, model, learn=1 if tokens else effort.learn, judged=1)
    values = tokens_for(context, effort, model, learn, tokens)
    attempt = effort.mask_attack(attack_steps)
    masks = segmentation(context, model, values, views, attempt, per_image=effort.published)
    save_png(_panels(masks), context.out / "panels.png")
    rows = [[name, 100 * masks.clean[name], 100 * masks.attacked[name]] for name in masks.clean]
    attacked = "mean of each image's mIoU" if effort.published else "dataset-level too"
    note = f"Attacked: {attacked}, {attempt.title} within {attempt.threat}. {effort.told(values)}"
    table = Table("Fig. 3: dataset-level mIoU, %", ["model", "clean", "attacked"], rows, note)
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
