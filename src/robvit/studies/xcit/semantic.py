"""Figure 11 and Table 9 of the XCiT thesis: do a robust network's perturbations mean something?

A perturbation is rescaled to an image and shown to networks that were trained without attacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import pgd
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import photo, save_png
from robvit.drawing.perturbation import grey_perturbation, rescaled_perturbation
from robvit.evaluation.classifiers import open_classifier
from robvit.loading import load
from robvit.progress import progress
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, StudySettings, study
from robvit.studies.judging import with_interval
from robvit.studies.xcit.common import PAPER, PUBLISHED
from robvit.threat import Threat
from robvit.verdict import Claim, claim_of, claim_of_means

BATCH, SHOWN = 64, 6
PAPER_TOP = 5  # guesses of the paper's judges
# The paper's judges, by how timm's names of them begin.
JUDGES = {"convnext_xlarge": "ConvNeXt-XL", "beit_large": "BeiT-L", "swin_large": "Swin-L"}
SMALL = (
    "A small run, not the paper's: robvit-mini-robust and robvit-mini stand for the robust and the standard "
    "XCiT-S12, images of 32x32 pixels for ImageNet. The paper's networks: --model ROBUST.pth.tar "
    "--set arch=xcit-s12 --set standard=xcit-s12 --data imagenet:FOLDER --resize crop{}."
)


ROBUST = "robvit-mini-robust"  # the network that is judged if none is given


@dataclass(frozen=True)
class Networks(StudySettings):
    """The networks of these studies: the robust one that is judged, with its parts, and a standard one.

    A network's head, a file, follows a plus sign: dinov2-small+HEAD.safetensors. `lora` is the robust one's.
    """

    standard: str = "robvit-mini"
    arch: str = ""
    lora: str = ""
    head: str = ""

    def pair(self, context: StudyContext) -> dict[str, Model]:
        """The robust network and the standard one."""
        parts = {"arch": self.arch or None, "lora": self.lora or None, "head": self.head or None}
        robust = context.load(ROBUST, **parts)
        return {"robust": robust, "standard": opened(self.standard, context.img_size)}

    def own(self, context: StudyContext, judges: Sequence[str]) -> list[str]:
        """The judges that are one of the two networks, which see in its own what the attack led it to."""
        given = context.model
        robust = given.name if isinstance(given, Model) else given or ROBUST
        pair = {self.standard.partition("+")[0], *([] if self.lora else [robust])}
        return [judge for judge in judges if judge.partition("+")[0] in pair]


def opened(spec: str, img_size: int | None = None) -> Model:
    """A network by its name, with the head behind a plus sign, at this image size or at its own."""
    name, _, head = spec.partition("+")
    return load(name, head=head or None, img_size=img_size)


NETWORKS = Networks()


def perturb(
    models: Mapping[str, nn.Module], images: ImageDataset, threat: Threat, *, steps: int, seed: int
) -> dict[str, torch.Tensor]:
    """The images as PGD left them, for each network: (N 3 H W)."""
    adv: dict[str, list[torch.Tensor]] = {name: [] for name in models}
    for name, model in models.items():
        with progress(f"PGD-{steps} on the {name} network", total=len(images)) as advance:
            for x, y in images.batches(BATCH):
                # Images that the network gets wrong anyway are attacked to the end too.
                adv[name].append(pgd(model, x, y, threat, steps=steps, early_stop=False, seed=seed))
                advance(len(x))
    return {name: torch.cat(parts) for name, parts in adv.items()}


def _perturbed(
    context: StudyContext,
    models: Mapping[str, nn.Module],
    size: int,
    count: int,
    steps: int,
    eps: float,
) -> tuple[ImageDataset, dict[str, torch.Tensor]]:
    """The images of a study, so many unless others are wished, and what PGD left of them."""
    images = context.part("sample", "test", size, context.count(count))
    return images, perturb(models, images, Threat("linf", eps), steps=steps, seed=context.seed)


@torch.no_grad()
def answers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The logits (N K) for images (N 3 H W), which a model of another size sees at its own."""
    size = model.input_size if isinstance(model, Model) else x.shape[-2:]
    return torch.cat([model(_resized(part, tuple(size))) for part in x.split(BATCH)])


def _resized(x: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    if x.shape[-2:] == size:
        return x
    return F.interpolate(x, size, mode="bicubic", antialias=True).clamp(0, 1)


@study(
    "xcit-table9",
    paper=PAPER,
    title="Table 9: standard networks classify the perturbation itself",
    effort=NETWORKS,
)
def classified(
    context: StudyContext,
    networks: Networks,
    *,
    judges: Sequence[str] = ("robvit-mini",),
    more: Sequence[str] = (),
    top: int = 1,
    steps: int = 100,
    eps: float = 8 / 255,
) -> Record:
    """How often a perturbation, in colours and in grey, is taken for the class of the image it attacks.

    `more` networks are attacked too, such as torchvision:resnet50. Judges see all images at their own size.
    """
    pair, own = networks.pair(context), networks.own(context, judges)
    robust, size = pair["robust"], pair["robust"].input_size[0]
    models: dict[str, nn.Module] = {**pair}
    models |= {name: open_classifier(name, img_size=size).net for name in more}
    images, adv = _perturbed(context, models, size, 100, steps, eps)
    x, y = images.tensors()
    pred = {name: answers(model, adv[name]).argmax(1) for name, model in models.items()}
    rows, claims = list[list[Any]](), list[Claim]()
    for spec in judges:
        model, judge = opened(spec), spec.partition("+")[0]
        rows.append([judge, "the images themselves", *_cells(_recognised(model, x, (y, y), top)), None])
        found = dict[str, list[bool]]()
        for name in models:
            wanted = (y, pred[name])
            grey = grey_perturbation(x, adv[name], eps=eps).expand_as(x)
            colours = _recognised(model, rescaled_perturbation(x, adv[name], eps=eps), wanted, top)
            found[name] = colours[0]
            rows.append([judge, f"{name}, colours", *_cells(colours), _published(judge, name, top)])
            rows.append([judge, f"{name}, grey", *_cells(_recognised(model, grey, wanted, top)), None])
        if spec not in own:
            claims.append(_more_recognised(judge, found, top))
    columns = [
        "judge",
        "perturbation of",
        f"the image's class, top-{top} %",
        "what the attacked says %",
        "paper: the same judge, top-5 %",
    ]
    chance = 100 * top / len(images.classes)
    note = f"Chance is {chance:.3g} %; the paper's, of 1,000 classes, 0.5 %. 95 % intervals."
    record = context.record(robust, images, claims=claims)
    table = Table("Table 9: perturbations classified", columns, rows, note)
    record.tables = [table, *([claims_table(claims)] if claims else []), _published_table()]
    record.notes = scale_note(context, " --set eps=4/255 --set top=5 --images 5000")
    record.notes += [own_judge_note(judge, "perturbations push") for judge in own]
    return record


def own_judge_note(judge: str, made: str) -> str:
    """That a judge is the very network on which one side was made."""
    return (
        f"{judge.partition('+')[0]} is both a judge and one of the two networks: what its own {made} it to "
        "is part of its figure, so no claim is made of it."
    )


def _recognised(
    model: Model, x: torch.Tensor, wanted: tuple[torch.Tensor, torch.Tensor], top: int
) -> list[list[bool]]:
    """Whether the model's best guesses hold an image's class, and that which the attack led to."""
    guesses = answers(model, x).topk(top).indices
    return [(guesses == want[:, None]).any(1).tolist() for want in wanted]


def _cells(recognised: Sequence[Sequence[bool]]) -> list[str]:
    return [with_interval(one) for one in recognised]


def _more_recognised(judge: str, found: Mapping[str, Sequence[bool]], top: int) -> Claim:
    """That a judge takes the robust network's perturbations for their images' classes more often."""
    robust, standard = (_published(judge, name, top) for name in ("robust", "standard"))
    paper = None if robust is None or standard is None else robust - standard
    text = f"{judge} recognises perturbations of the robust network over the standard one's"
    return claim_of(text, found["robust"], found["standard"], paper)


def _published(judge: str, attacked: str, top: int) -> float | None:
    """The paper's figure for the same judge and as many guesses, if it has one."""
    known = next((title for begin, title in JUDGES.items() if judge.startswith(begin)), None)
    if known is None or top != PAPER_TOP:
        return None
    return PUBLISHED["table9"].cell(f"{attacked} XCiT-S12", known)


def _published_table() -> Table:
    published = PUBLISHED["table9"]
    rows = [[name, *cells] for name, cells in published.rows.items()]
    title = "The paper's Table 9, top-5 accuracy in per cent"
    return Table(title, ["perturbation of", *published.columns], rows)


@study(
    "xcit-fig11",
    paper=PAPER,
    title="Fig. 11: perturbations of a robust and of a standard network",
    effort=NETWORKS,
)
def shown(
    context: StudyContext,
    networks: Networks,
    *,
    steps: int = 100,
    eps: float = 8 / 255,
) -> Record:
    """Images, their perturbations in grey, and how far these follow the images' edges."""
    models = networks.pair(context)
    images, adv = _perturbed(context, models, models["robust"].input_size[0], 64, steps, eps)
    x, _ = images.tensors()
    grey = {name: grey_perturbation(x, made, eps=eps) for name, made in adv.items()}
    few = range(min(SHOWN, len(x)))
    names = [images.classes[label] for label in images.labels[: len(few)]]
    tiles = [Row([Tile(photo(x[i]), names[i]) for i in few], "image")]
    tiles += [Row([Tile(photo(made[i])) for i in few], name) for name, made in grey.items()]
    save_png(draw_grid(Grid(tiles)), context.out / "fig11.png")
    follow = {
        name: [correlation(edges(a), edges(b)) for a, b in zip(x, made, strict=True)]
        for name, made in grey.items()
    }
    rows: list[list[Any]] = []
    for name, values in follow.items():
        mean = sum(values) / len(values)
        spread = 1.96 * float(torch.tensor(values).std()) / len(values) ** 0.5 if len(values) > 1 else 0.0
        rows.append([name, f"{mean:+.3f} ({mean - spread:+.3f} to {mean + spread:+.3f})"])
    robust, standard = ([100 * value for value in follow[name]] for name in ("robust", "standard"))
    claims = [claim_of_means("perturbations of the robust network follow edges more", robust, standard)]
    columns = ["perturbation of", "correlation with the image's edges (95 % interval)"]
    note = "The thesis shows images only: shapes are visible for the robust XCiT, not for the standard one."
    record = context.record(models["robust"], images, claims=claims)
    table = Table("Fig. 11: do perturbations follow shapes?", columns, rows, note)
    record.tables = [table, claims_table(claims, "Claims, in hundredths of the correlation")]
    record.notes = scale_note(context, " --set eps=4/255")
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


def scale_note(context: StudyContext, more: str) -> list[str]:
    """That the run is a small one, if it is, and what makes it the paper's."""
    return [] if context.model else [SMALL.format(more)]
