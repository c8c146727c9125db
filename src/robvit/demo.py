"""The main job in a few minutes: a real frozen backbone, real pictures, a real attack.

Everything here is the public API; read it as an example.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from robvit.attacks import run
from robvit.attacks.pixels import eight_bit
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.data import PictureSet, open_data
from robvit.evaluate.crafting import levels
from robvit.evaluate.record import Record, Trial
from robvit.loading import load
from robvit.progress import progress
from robvit.report.panels import Panel, attack_sheet
from robvit.threat import Threat


class Scale(NamedTuple):
    """How much the demo does: pictures to learn a head from, pictures to judge, steps of the attack."""

    learn: int = 512
    judge: int = 64
    steps: int = 10


def demo(
    name: str,
    out: Path,
    *,
    img_size: int | None,
    threat: Threat,
    scale: Scale,
    say: Callable[[str], None] = print,
) -> Record:
    """Load a backbone, put a linear head on its features, attack it, and tell what happened.

    Writes record.json and sheet.png into `out`.
    """
    model = load(name, img_size=img_size)
    size = model.input_size[0]
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    say(f"{name}: {millions:.1f} million frozen parameters, {size}x{size} pictures")
    learn = open_data("sample", split="train", size=size, limit=scale.learn)
    judge = open_data("sample", split="test", size=size, limit=scale.judge)
    with progress("features", total=len(learn)) as advance:
        model.head = LinearHead.fit(model, learn.batches(32), 10, names=learn.classes, report=advance)
    x, y = judge.arrays()
    record, adv = _attack(model, judge, x, y, threat, scale.steps)
    record.save(out / "record.json")
    _sheet(record, judge, x, adv, out / "sheet.png")
    return record


def _attack(
    model: Model, pictures: PictureSet, x: torch.Tensor, y: torch.Tensor, threat: Threat, steps: int
) -> tuple[Record, torch.Tensor]:
    """PGD on the classifier, and how far it moves the features of every picture."""
    parts, passes = [], [0, 0]
    with progress(f"PGD-{steps} within {threat}", total=len(x)) as advance:
        for some, labels in zip(x.split(16), y.split(16), strict=True):
            outcome = run("pgd", model, some, labels, threat, steps=steps, keep_broken=True)
            parts.append(eight_bit(some, outcome.adv, threat))
            passes[0] += outcome.forward
            passes[1] += outcome.backward
            advance(len(some))
    adv = torch.cat(parts)
    cosine = []
    predictions: dict[str, list[int]] = {"clean": [], "pgd": []}
    with torch.no_grad():
        for before, after in zip(x.split(32), adv.split(32), strict=True):
            cosine += (
                F.cosine_similarity(model.features(before), model.features(after), dim=-1).mean(1).tolist()
            )
            predictions["clean"] += model(before).argmax(1).tolist()
            predictions["pgd"] += model(after).argmax(1).tolist()
    trials = []
    for attack, seen in predictions.items():
        right = [a == b for a, b in zip(seen, y.tolist(), strict=True)]
        distance = threat.size((adv if attack == "pgd" else x) - x).tolist()
        budget = str(threat) if attack == "pgd" else "none"
        settings = {"steps": steps} if attack == "pgd" else {}
        count = passes if attack == "pgd" else (len(x), 0)
        trials.append(Trial(attack, budget, settings, right, seen, distance, *count))
    record = Record(
        kind="demo",
        model={"name": model.name, "fingerprint": model.fingerprint(), "input": model.input_size},
        data={"spec": "sample", "digest": pictures.digest(), "count": len(pictures), "names": pictures.names,
              "labels": y.tolist()},
        trials=trials,
        figures={"feature cosine under attack": sum(cosine) / len(cosine)},
    )  # fmt: skip
    return record, adv


def _sheet(record: Record, pictures: PictureSet, x: torch.Tensor, adv: torch.Tensor, path: Path) -> None:
    clean, attacked = record.trials
    names = pictures.classes
    before, after = (levels(t).permute(0, 2, 3, 1).numpy() for t in (x, adv))
    rows = [
        Panel(
            before[i],
            after[i],
            f"seen as {names[clean.predicted[i]]}",
            f"seen as {names[attacked.predicted[i]]}",
            attacked.right[i],
        )
        for i in range(min(8, len(x)))
    ]
    attack_sheet(rows, path, title=f"{record.model['name']}: pgd within {attacked.threat}")
