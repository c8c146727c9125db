"""Table 2's feature column, with the published code's choices and with one choice at a time made honest."""

from __future__ import annotations

from dataclasses import replace

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.robustify import REFERENCE
from robvit.errors import InputError
from robvit.evaluation.record import Record, Table
from robvit.studies.common import Request, study, study_record
from robvit.studies.rob.common import PAPER, attacked, cosines, given, mean
from robvit.threat import Threat

PUBLISHED = REFERENCE.attack
# What is changed in the attack, and over which axis the cosine is then taken.
CHANGES: dict[str, tuple[AttackSetting, int]] = {
    "cosine over each token's features": (replace(PUBLISHED, settings={"axis": -1}), -1),
    "rounding to the nearest grey level": (replace(PUBLISHED, settings={"nearest": True}), 1),
    "budget and steps in pixels": (replace(PUBLISHED, settings={"pixels": True}), 1),
    "three times the steps": (replace(PUBLISHED, settings={"steps": 90}), 1),
    "the paper's attack as it is stated": (AttackSetting("feature", Threat("linf", 8 / 255)), -1),
}
ROW = ("", "images", "no tokens", "tokens, own clean features", "tokens, original clean features")


@study("rob-choices", paper=PAPER, title="Table 2, DINOv2-S: what each choice of the published code does")
def choices(request: Request, *, tokens: str = "", few: int = 16) -> Record:
    """Feature cosines with published tokens: all images with the published choices, `few` with each change.

    Every change is set beside the published choices on the same few images.
    """
    if not tokens:
        raise InputError("say which tokens: --set tokens=small.pt, a published file, or one of your own")
    model = request.load("dinov2-small", pos_embed="hub", img_size=request.img_size or 224)
    hardened = model.replace(tokens=given(tokens, model))
    everything = request.dataset("sample", None, model.input_size[0], request.images or 32)
    part = everything.take(range(min(few, len(everything))))
    rows: list[list[object]] = [
        ["paper, Table 2", 50_000, 0.09, 0.93, None],
        _row("published choices", model, hardened, everything, PUBLISHED, 1),
        _row("published choices", model, hardened, part, PUBLISHED, 1),
    ]
    for name, (attack, axis) in CHANGES.items():
        rows.append(_row(name, model, hardened, part, attack, axis))
    other = request.load("dinov2-small", pos_embed="timm", img_size=request.img_size or 224)
    strangers = other.replace(tokens=given(tokens, other))
    rows.insert(-1, _row("positions interpolated by timm", other, strangers, part, PUBLISHED, 1))
    table = Table("Mean feature cosine under the feature attack", list(ROW), rows, NOTE)
    return study_record(request, model, everything, tables=[table])


NOTE = (
    "The attack is crafted without tokens. The paper compares a hardened model with its own clean features; "
    "the last column compares with the original's, as its text says."
)


def _row(
    name: str, model: Model, hardened: Model, images: ImageDataset, attack: AttackSetting, axis: int
) -> list[object]:
    pairs = list(attacked(model, images, attack, name))
    bare, strong = (cosines(model, victim, pairs, axis) for victim in (model, hardened))
    return [name, len(images), mean(bare["own"]), mean(strong["own"]), mean(strong["original"])]
