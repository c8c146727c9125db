"""Table 2's feature column, with the published code's choices and with one choice at a time made honest."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import REFERENCE
from robvit.errors import InputError
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.rob.common import PAPER, PUBLISHED, attack_features, cosine_claim, cosines, open_tokens
from robvit.studies.rob.effort import PAPER_SCALE, REFERENCE_SCALE, TokenEffort
from robvit.threat import Threat

REFERENCE_ATTACK = REFERENCE.attack
STATED = "the paper's attack as it is stated"
PUBLISHED_CHOICES = (REFERENCE_ATTACK, 1)
# What is changed in the attack, and over which axis the cosine is then taken.
CHANGES: dict[str, tuple[AttackSetting, int]] = {
    "cosine over each token's features": (replace(REFERENCE_ATTACK, settings={"axis": -1}), -1),
    "rounding to the nearest grey level": (replace(REFERENCE_ATTACK, settings={"nearest": True}), 1),
    "budget and steps in pixels": (replace(REFERENCE_ATTACK, settings={"pixels": True}), 1),
    "three times the steps": (replace(REFERENCE_ATTACK, settings={"steps": 90}), 1),
    STATED: (AttackSetting("feature", Threat("linf", 8 / 255)), -1),
}
COLUMNS = ["", "images", "no tokens", "tokens, own clean features", "tokens, original clean features"]
NOTE = (
    "The attack is crafted without tokens. The paper compares a hardened model with its own clean features; "
    "the last column compares with the original's, as its text says."
)


@study("rob-choices", paper=PAPER, title="Table 2, DINOv2-S: what each choice of the published code does")
def choices(
    context: StudyContext, *, tokens: str = "", few: int = 16, scale: str = REFERENCE_SCALE
) -> Record:
    """Feature cosines with published tokens: all images with the published choices, `few` with each change.

    Every change is set beside the published choices on the same few images. The `scale` decides the size of
    the images and, with "paper", that all images meet the attack as the paper states it.
    """
    if not tokens:
        raise InputError("say which tokens: --set tokens=small.pt, a published file, or one of your own")
    size = context.img_size or TokenEffort().changed({"scale": scale}).side
    whole = STATED if scale == PAPER_SCALE else "published choices"
    model = context.load("dinov2-small", pos_embed="hub", img_size=size)
    hardened = model.replace(tokens=open_tokens(tokens, model))
    images = context.dataset("sample", None, model.input_size[0], context.count(32))
    part = images.take(range(min(few, len(images))))
    regular, with_tokens = PUBLISHED["table2"].row("dinov2-small")[:2]
    all_of_them = _measured(whole, model, hardened, images, *CHANGES.get(whole, PUBLISHED_CHOICES))
    found = [
        _measured(name, model, hardened, part, *change)
        for name, change in {"published choices": PUBLISHED_CHOICES, **CHANGES}.items()
    ]
    other = context.load("dinov2-small", pos_embed="timm", img_size=size)
    moved = other.replace(tokens=open_tokens(tokens, other))
    found.insert(-1, _measured("positions interpolated by timm", other, moved, part, *PUBLISHED_CHOICES))
    rows: list[list[object]] = [["paper, Table 2", 50_000, regular, with_tokens, None]]
    rows += [one.row() for one in (all_of_them, *found)]
    gain = PUBLISHED["table2"].step("dinov2-small", "cosine", "cosine, tokens")
    text = f"tokens over no tokens, each with its own features, {whole}"
    claims = [cosine_claim(text, all_of_them.own, all_of_them.bare, gain)]
    claims += [cosine_claim(f"{c.name} over {found[0].name}, tokens", c.own, found[0].own) for c in found[1:]]
    table = Table("Mean feature cosine under the feature attack", COLUMNS, rows, NOTE)
    return context.record(model, images, tables=[table, claims_table(claims)], claims=claims)


class Measured(NamedTuple):
    """Each image's cosines under one attack: without tokens; with them, to their own and the original's."""

    name: str
    bare: list[float]
    own: list[float]
    original: list[float]

    def row(self) -> list[object]:
        return [self.name, len(self.bare), mean(self.bare), mean(self.own), mean(self.original)]


def _measured(
    name: str, model: Model, hardened: Model, images: ImageDataset, attack: AttackSetting, axis: int
) -> Measured:
    pairs = attack_features(model, images, attack, name)
    bare, strong = (cosines(model, judged, pairs, axis) for judged in (model, hardened))
    return Measured(name, bare["own"], strong["own"], strong["original"])
