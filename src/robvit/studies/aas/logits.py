"""Figure 1 (b) of the attention-scaling paper: scaled logits of a CNN beside scaled attention of a ViT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from robvit.attacks import run
from robvit.attacks.aas import FACTORS
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.trials import clean_trial_of, joined, trial_of
from robvit.loading import load
from robvit.measuring.comparison import Comparison, control_of
from robvit.progress import progress
from robvit.record import Record, Table, Trial
from robvit.resuming import key_of
from robvit.studies.aas.common import PAPER, ScalingEffort, bench, left, searches_table
from robvit.studies.aas.controls import CHOOSE, FACTOR, RANDOM
from robvit.studies.aas.tables import ATTACKS
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import attack_title, per_cent
from robvit.threat import Threat
from robvit.training.job import job_of
from robvit.training.recipe import load_recipe
from robvit.training.train import run_job
from robvit.verdict import Claim, claim_of

CNN = "test_resnet"  # timm's smallest ResNet
LOGITS = "scaled logits"


@dataclass(frozen=True)
class LogitEffort(ScalingEffort):
    """What the attacks take, and the training of the CNN; 0 images are all there are."""

    steps: int = 20
    cnn_learn: int = 0
    cnn_epochs: float = 15
    training: str = ""


class ScaledLogits(nn.Module):
    """A model with its logits multiplied: the same answers, another cross-entropy."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(x)
        return self.factor * logits


def small_cnn(classes: int) -> Model:
    """A ResNet for images of 32 pixels: its first layers no longer halve them."""
    net: Any = timm.create_model(CNN, num_classes=classes)
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
            module.stride = (1, 1)  # the stem's
            break
    net.maxpool = nn.Identity()
    return load(net, normalise="imagenet", img_size=32)


@study(
    "aas-fig1b",
    paper=PAPER,
    title="Fig. 1 (b): gains by scaled logits of a CNN and by scaled attention of a ViT",
    effort=LogitEffort(),
)
def gains(context: StudyContext, effort: LogitEffort, *, attacks: Sequence[str] = tuple(ATTACKS)) -> Record:
    """Each attack on an adversarially trained CNN, plain and on scaled logits, and the same on the ViT."""
    at = bench(context, effort)
    cnn = _trained(context, effort, len(at.images.classes))
    factor = _best(cnn, at.learn, at.threat, effort, context.seed)
    compared, claims = dict[str, Comparison](), list[Claim]()
    rows, trials = list[list[Any]](), list[Trial]()
    for paper_name in attacks:
        base, length = ATTACKS[paper_name]
        count = min(length, effort.steps)
        name = attack_title(base, {"steps": count} if count else {})
        if name in compared:  # shortened, PGD-20 and PGD-100 can be the same
            continue
        settings = {"steps": count} if count else {}
        on_cnn = _logit_trials(cnn, at.images, at.threat, base, settings, factor, effort, context.seed)
        on_vit = compared[name] = at.compare(base, count, effort.method(), f"{name} on the ViT")
        claims += [_claim(on_cnn, name), on_vit.claim(f"ViT, {name}: AAS")]
        claims.append(on_vit.claim(f"ViT, {name}: AAS, over {RANDOM}", over=RANDOM))
        rows.append([name, *_cnn_cells(on_cnn), *_vit_cells(on_vit)])
        trials += [replace(t, scenario=f"CNN, {name}", control=True) for t in on_cnn.values()]
        trials += [replace(t, scenario=f"ViT, {name}") for t in on_vit.trials]
    record = context.record(at.model, at.images, trials=trials, claims=claims)
    columns = ["attack", "CNN: clean %", "plain %", f"plain and logits x {factor:g} %", "control %"]
    columns += ["ViT: clean %", "plain %", f"plain and {FACTOR} %", f"plain and {RANDOM} %"]
    columns += ["plain and AAS %", "control %"]
    note = f"{at.note()} The CNN: {CNN} of timm, trained by the recipe mini on {_amount(effort)}."
    record.tables = [Table("Fig. 1 (b): what each attack leaves", columns, rows, note), claims_table(claims)]
    record.tables += searches_table(compared)
    return record


def _amount(effort: LogitEffort) -> str:
    return f"{effort.cnn_learn or 'all'} images, {effort.cnn_epochs:g} epochs"


def _trained(context: StudyContext, effort: LogitEffort, classes: int) -> Model:
    """The CNN, adversarially trained by the common loop on the study's own training images."""
    changes = {"epochs": effort.cnn_epochs, "seed": context.seed, "track": [], "img_size": 32, "ema": 0}
    recipe = load_recipe("mini", **changes)
    torch.manual_seed(context.seed)
    model = small_cnn(classes)
    job = job_of(recipe, model, context.data_name("sample"), limit=effort.cnn_learn or None)
    key = key_of([recipe.digest(), CNN, context.data_name("sample"), effort.cnn_learn])
    place = (Path(effort.training) if effort.training else context.out / "training") / f"cnn-{key[:12]}"
    with progress("training the CNN", total=1) as advance:
        run_job(job, place, progress=advance)
    return model.eval()


def _best(model: Model, learn: ImageDataset, threat: Threat, effort: LogitEffort, seed: int) -> float:
    """The factor for the logits at which PGD leaves the least accuracy, on images that are not judged."""
    x, y = learn.take(range(min(CHOOSE, len(learn)))).tensors()
    found = {
        f: run("pgd", ScaledLogits(model, f), x, y, threat, victim=model, steps=effort.steps, seed=seed)
        for f in FACTORS
        if f != 1
    }
    return min(found, key=lambda f: found[f].robust_accuracy)


def _logit_trials(
    model: Model,
    images: ImageDataset,
    threat: Threat,
    base: str,
    settings: dict[str, Any],
    factor: float,
    effort: LogitEffort,
    seed: int,
) -> dict[str, Trial]:
    """No attack, the plain one, the one crafted on scaled logits, and the plain one at the cost of both."""
    passes = 2 * (2 * settings.get("steps", 1) + 1)
    control, more = control_of(base, settings, threat, passes)
    ways: Mapping[str, tuple[str, dict[str, Any], nn.Module]] = {
        "plain": (base, settings, model),
        LOGITS: (base, settings, ScaledLogits(model, factor)),
        "control": (control, more, model),
    }
    parts: dict[str, list[Trial]] = {name: [] for name in ("clean", *ways)}
    with progress(f"{base} on the CNN", total=len(images)) as advance:
        for x, y in images.batches(effort.batch):
            for name, (attack, given, crafted_on) in ways.items():
                outcome = run(attack, crafted_on, x, y, threat, victim=model, seed=seed, **given)
                parts[name].append(trial_of(outcome, attack, threat, given))
            parts["clean"].append(clean_trial_of(outcome))
            advance(len(x))
    return {name: joined(some) for name, some in parts.items()}


def _both(trials: Mapping[str, Trial]) -> list[bool]:
    return [a and b for a, b in zip(trials["plain"].correct, trials[LOGITS].correct, strict=True)]


def _claim(trials: Mapping[str, Trial], name: str) -> Claim:
    ours, control = ([not c for c in one] for one in (_both(trials), trials["control"].correct))
    return claim_of(f"CNN, {name}: scaled logits", ours, control)


def _cnn_cells(trials: Mapping[str, Trial]) -> list[float]:
    both = _both(trials)
    clean, plain, control = (per_cent(trials[name]) for name in ("clean", "plain", "control"))
    return [clean, plain, 100 * sum(both) / len(both), control]


def _vit_cells(found: Comparison) -> list[float]:
    names = ("plain", f"plain and {FACTOR}", f"plain and {RANDOM}", "plain and AAS", "control")
    shares = left(found)
    return [per_cent(found.clean), *(shares[name] for name in names)]
