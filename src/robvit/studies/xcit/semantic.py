"""Figures 11 and 12 and Table 9 of the XCiT thesis: do a robust network's perturbations mean something?

A perturbation is rescaled to an image and shown to networks that were trained without attacks; and a class
is drawn from noise by a network's gradient alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from robvit.attacks import pgd
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import photo, save_png
from robvit.drawing.perturbation import grey_perturbation, rescaled_perturbation
from robvit.evaluation.metrics import interval
from robvit.evaluation.record import Record, Table
from robvit.explanation.figures.accumulation import accumulate_gradient, noise
from robvit.loading import load
from robvit.progress import progress
from robvit.studies.common import Request, study, study_record
from robvit.studies.xcit.paper import PAPER, TABLE9
from robvit.threat import Threat

BATCH, SHOWN = 64, 6
SMALL = (
    "A small run, not the paper's: robvit-mini-robust and robvit-mini stand for the robust and the standard "
    "XCiT-S12, images of 32x32 pixels for ImageNet. The paper's networks: --model ROBUST.pth.tar "
    "--set arch=xcit-s12 --set standard=xcit-s12 --data imagenet:FOLDER --fit crop{}."
)


def pair(request: Request, standard: str, arch: str) -> dict[str, Model]:
    """The robust network and the standard one."""
    robust = load(request.model or "robvit-mini-robust", arch=arch or None, img_size=request.img_size)
    return {"robust": robust, "standard": load(standard, img_size=request.img_size)}


def perturbed(
    models: dict[str, Model], images: ImageDataset, threat: Threat, *, steps: int, seed: int
) -> dict[str, torch.Tensor]:
    """The images as PGD left them, for each network: (N 3 H W)."""
    made: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    for name, model in models.items():
        with progress(f"PGD-{steps} on the {name} network", total=len(images)) as advance:
            for x, y in images.batches(BATCH):
                # Images that the network gets wrong anyway are attacked to the end too.
                made[name].append(pgd(model, x, y, threat, steps=steps, early_stop=False, seed=seed))
                advance(len(x))
    return {name: torch.cat(parts) for name, parts in made.items()}


@study("xcit-table9", paper=PAPER, title="Table 9: standard networks classify the perturbation itself")
def classified(
    request: Request,
    *,
    standard: str = "robvit-mini",
    judges: Sequence[str] = ("robvit-mini",),
    arch: str = "",
    top: int = 1,
    steps: int = 100,
    eps: float = 8 / 255,
) -> Record:
    """How often a perturbation, in colours and in grey, is taken for the class of the image it attacks."""
    models = pair(request, standard, arch)
    size = models["robust"].input_size[0]
    images = request.dataset("sample", "test", size, request.images or 100)
    threat = Threat("linf", eps)
    adv = perturbed(models, images, threat, steps=steps, seed=request.seed)
    x, y = images.arrays()
    rows: list[list[Any]] = []
    for judge in judges:
        model = load(judge, img_size=request.img_size)
        rows.append([judge, "the images themselves", *_judged(model, x, y, y, top), None])
        for name, generator in models.items():
            colours = rescaled_perturbation(x, adv[name], eps=eps)
            grey = grey_perturbation(x, adv[name], eps=eps).expand_as(x)
            with torch.no_grad():
                said = torch.cat([generator(part).argmax(1) for part in adv[name].split(BATCH)])
            shares = _judged(model, colours, y, said, top)
            published = {"robust": 43.86, "standard": 0.84}[name]
            rows.append([judge, f"{name}, colours", *shares, published])
            rows.append([judge, f"{name}, grey", *_judged(model, grey, y, said, top), None])
    columns = [
        "judge",
        "perturbation of",
        f"the image's class, top-{top} %",
        "what the attacked says %",
        "paper: ConvNeXt-XL, top-5 %",
    ]
    chance = 100 * top / len(images.classes)
    note = f"Chance is {chance:.3g} %; the paper's, of 1,000 classes, 0.5 %. 95 % intervals."
    record = study_record(request, models["robust"], images)
    record.tables = [Table("Table 9: perturbations classified", columns, rows, note), _published()]
    record.notes = _scale(request, " --set eps=4/255 --set top=5 --images 5000")
    if standard in judges:
        record.notes.append(
            f"{standard} is both a judge and the standard network under attack: what its own perturbations "
            "push it to is part of its figure."
        )
    return record


def _judged(model: Model, x: torch.Tensor, y: torch.Tensor, said: torch.Tensor, top: int) -> list[str]:
    """How often the model's best guesses hold the image's class, and that which the attack led to."""
    with torch.no_grad():
        guesses = torch.cat([model(part).topk(top).indices for part in x.split(BATCH)])
    return [_share((guesses == want[:, None]).any(1)) for want in (y, said)]


def _share(hits: torch.Tensor) -> str:
    low, high = (100 * bound for bound in interval(int(hits.sum()), len(hits)))
    return f"{100 * float(hits.float().mean()):.1f} ({low:.1f} to {high:.1f})"


def _published() -> Table:
    rows = [[f"{kind} {network}", *figures] for (kind, network), figures in TABLE9.items()]
    columns = ["perturbation of", "ConvNeXt-XL", "BeiT-L", "Swin-L"]
    return Table("The paper's Table 9, top-5 accuracy in per cent", columns, rows)


@study("xcit-fig11", paper=PAPER, title="Fig. 11: perturbations of a robust and of a standard network")
def shown(
    request: Request, *, standard: str = "robvit-mini", arch: str = "", steps: int = 100, eps: float = 8 / 255
) -> Record:
    """Images, their perturbations in grey, and how far these follow the images' edges."""
    models = pair(request, standard, arch)
    images = request.dataset("sample", "test", models["robust"].input_size[0], request.images or 64)
    adv = perturbed(models, images, Threat("linf", eps), steps=steps, seed=request.seed)
    x, _ = images.arrays()
    grey = {name: grey_perturbation(x, made, eps=eps) for name, made in adv.items()}
    few = range(min(SHOWN, len(x)))
    names = [images.classes[label] for label in images.labels[: len(few)]]
    tiles = [Row([Tile(photo(x[i]), names[i]) for i in few], "image")]
    tiles += [Row([Tile(photo(made[i])) for i in few], name) for name, made in grey.items()]
    save_png(draw_grid(Grid(tiles)), request.out / "fig11.png")
    rows: list[list[Any]] = []
    for name, made in grey.items():
        follow = [correlation(edges(a), edges(b)) for a, b in zip(x, made, strict=True)]
        mean = sum(follow) / len(follow)
        spread = 1.96 * float(torch.tensor(follow).std()) / len(follow) ** 0.5 if len(follow) > 1 else 0.0
        rows.append([name, f"{mean:+.3f} ({mean - spread:+.3f} to {mean + spread:+.3f})"])
    columns = ["perturbation of", "correlation with the image's edges (95 % interval)"]
    note = "The thesis shows images only: shapes are visible for the robust XCiT, not for the standard one."
    record = study_record(request, models["robust"], images)
    record.tables = [Table("Fig. 11: do perturbations follow shapes?", columns, rows, note)]
    record.notes = _scale(request, " --set eps=4/255")
    return record


def edges(x: torch.Tensor) -> torch.Tensor:
    """How steep an image (C H W) is at every inner pixel, whatever the colour: (H-2 W-2)."""
    across, down = x[:, 1:-1, 2:] - x[:, 1:-1, :-2], x[:, 2:, 1:-1] - x[:, :-2, 1:-1]
    return (across.square() + down.square()).sum(0).sqrt()


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Pearson's, over pixels; 0 where one of them is flat."""
    a, b = (v.flatten().double() - v.double().mean() for v in (a, b))
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else 0.0


@study("xcit-fig12", paper=PAPER, title="Fig. 12: classes drawn from noise by the gradient")
def accumulated(
    request: Request, *, standard: str = "robvit-mini", arch: str = "", steps: int = 100, eps: float = 15.0
) -> Record:
    """Targeted ascent from uniform noise within L2 15; the other network judges what came out."""
    models = pair(request, standard, arch)
    count = request.images or 40
    images = request.dataset("sample", "test", models["robust"].input_size[0], count)
    target = torch.arange(count) % len(images.classes)
    start = noise(count, models["robust"].input_size, seed=request.seed)
    made = {"noise": start}
    for name, model in models.items():
        with progress(f"gradients of the {name} network", total=count) as advance:
            parts = []
            for some, from_ in zip(target.split(BATCH), start.split(BATCH), strict=True):
                parts.append(
                    accumulate_gradient(model, some, start=from_, steps=steps, threat=Threat("l2", eps))
                )
                advance(len(some))
        made[name] = torch.cat(parts)
    rows: list[list[Any]] = []
    for name, drawn in made.items():
        cells = [_seen(models[judge], drawn, target) for judge in ("robust", "standard")]
        rows.append([name, *(value for cell in cells for value in cell)])
    columns = [
        "drawn by",
        "seen by the robust network %",
        "mean probability",
        "seen by the standard one %",
        "mean probability",
    ]
    few = range(min(2 * SHOWN, len(target)))
    tiles = [Row([Tile(photo(drawn[i])) for i in few], name) for name, drawn in made.items()]
    classes = [images.classes[int(target[i])] for i in few]
    save_png(draw_grid(Grid(tiles, classes)), request.out / "fig12.png")
    note = (
        "What a network sees in its own drawing is what the ascent optimised; the other network is the "
        "independent judge. The thesis shows images only."
    )
    record = study_record(request, models["robust"], images)
    record.tables = [Table("Fig. 12: who recognises the target class", columns, rows, note)]
    told = f"{count} starts, {steps} steps within L2 {eps:g}; of the data only the classes' names are used."
    record.notes = [told, *_scale(request, "")]
    return record


def _scale(request: Request, more: str) -> list[str]:
    return [] if request.model else [SMALL.format(more)]


def _seen(model: Model, x: torch.Tensor, target: torch.Tensor) -> tuple[str, float]:
    """How often a network's answer is the target, and the probability that it gives it."""
    with torch.no_grad():
        logits = torch.cat([model(part) for part in x.split(BATCH)])
    sure = logits.softmax(1).gather(1, target[:, None]).mean()
    return _share(logits.argmax(1) == target), float(sure)
