"""The main job in a few minutes: harden a real frozen backbone, attack it with and without its tokens.

The same by hand is `robvit train head`, `robvit robustify` and `robvit evaluate --protocol rob-tokens@1`;
here each step is small, and both attackers see the same images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from robvit.attacks import run
from robvit.attacks.pixels import levels
from robvit.attention import class_attention
from robvit.backbones import zoo
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import train_tokens
from robvit.drawing.images import save_png
from robvit.drawing.sheet import Pair, attack_sheet
from robvit.evaluation.attackers import random_tokens
from robvit.loading import load
from robvit.progress import Log, progress
from robvit.record import Record, Trial
from robvit.report import GalleryItem, write_report
from robvit.threat import Threat

TUNED = "tuned weights"


@dataclass(frozen=True)
class Scale:
    """How much the demo does; the defaults take under five minutes on two processor cores."""

    head: int = 512
    learn: int = 192
    steps: int = 60
    judge: int = 48
    attack_steps: int = 10


@dataclass(frozen=True)
class Scenario:
    """One line of the table: how the model is hardened, and whether its attacker knows.

    A control stands beside the model with tokens, which the headline is about.
    """

    name: str
    model: Model
    adv: torch.Tensor
    passes: tuple[int, int]
    seconds: float
    control: bool = False


def demo(
    name: str,
    out: Path,
    *,
    img_size: int | None,
    threat: Threat,
    scale: Scale,
    log: Log = print,
) -> Record:
    """Harden a backbone and judge it against an attacker without and with its tokens.

    Writes head.safetensors, tokens.safetensors, record.json, sheet.png and report.html into `out`.
    """
    model = load(name, img_size=img_size)
    size = model.input_size[0]
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    log(f"{name}: {millions:.1f} million frozen parameters, {size}x{size} images of the bundled sample")
    judge = open_data("sample", split="test", size=size, limit=scale.judge)
    labelled = open_data("sample", split="train", size=size, limit=scale.head)
    with progress("1/4 features for a linear head", total=len(labelled)) as advance:
        head = LinearHead.fit(model, labelled.batches(32), 10, names=labelled.classes, progress=advance)
    head.save(out / "head.safetensors")
    model = model.replace(head=head)
    trained, baseline = _harden(model, labelled.take(range(scale.learn)), threat, scale, out)
    scenarios = _scenarios(model, trained, judge, threat, scale.attack_steps)
    scenarios += _tuned(model, scenarios[0], judge, threat, scale.attack_steps)
    record = _record(model, scenarios, judge, threat, scale)
    record.metrics["cosine under the training attack, no tokens"] = baseline
    record.save(out / "record.json")
    _sheet(record, scenarios, judge, out / "sheet.png")
    write_report(record, out / "report.html", galleries=[_gallery_items(record, scenarios, judge)])
    return record


def _harden(
    model: Model, images: ImageDataset, threat: Threat, scale: Scale, out: Path
) -> tuple[torch.Tensor, float]:
    """Ten tokens learned from images alone, saved for the owner's eyes; the baseline cosine."""
    attack = AttackSetting("feature", threat, {"steps": 8, "psnr": None})
    recipe = TokenRecipe(steps=scale.steps, batch=16, attack=attack)
    headless = model.replace(head=None)
    with progress("2/4 attacking, then learning tokens", total=1) as advance:
        state = out / "state.safetensors"
        training = train_tokens(headless, images, recipe, state=state, progress=advance)
    training.tokens.save(out / "tokens.safetensors")
    return training.tokens.values, training.baseline


def _scenarios(
    model: Model, trained: torch.Tensor, images: ImageDataset, threat: Threat, steps: int
) -> list[Scenario]:
    """The controls and the two attackers: random tokens have the trained ones' mean length."""
    hardened = model.replace(tokens=trained)
    public = _attack(model, images, threat, steps, "3/4 attack without the tokens")
    insider = _attack(hardened, images, threat, steps, "4/4 attack with the tokens")
    return [
        Scenario("no tokens", model, *public, control=True),
        Scenario("random tokens", model.replace(tokens=random_tokens(trained)), *public, control=True),
        Scenario("trained tokens", hardened, *public),
        Scenario("trained tokens, attacker knows them", hardened, *insider),
    ]


def _tuned(
    model: Model, public: Scenario, images: ImageDataset, threat: Threat, steps: int
) -> list[Scenario]:
    """The bundled tuned network of this backbone, if there is one, against the same two attackers."""
    known = next((one for one in zoo.ALIASES.values() if one.tuned_from == model.name), None)
    if known is None:
        return []
    tuned = load(known.alias, img_size=model.input_size[0]).replace(head=model.head)
    insider = _attack(tuned, images, threat, steps, "attack on the tuned weights")
    return [
        Scenario(TUNED, tuned, public.adv, public.passes, public.seconds, control=True),
        Scenario(f"{TUNED}, attacker has them", tuned, *insider, control=True),
    ]


def _attack(
    model: Model, images: ImageDataset, threat: Threat, steps: int, label: str
) -> tuple[torch.Tensor, tuple[int, int], float]:
    """PGD on the classifier, to its full objective: 8-bit images, passes and seconds."""
    parts, forward, backward, start = [], 0, 0, time.monotonic()
    with progress(label, total=len(images)) as advance:
        for x, y in images.batches(16):
            # Naming a victim attacks every image, also those that are wrong from the start.
            outcome = run("pgd", model, x, y, threat, victim=model, eight_bit=True, steps=steps)
            parts.append(outcome.adv)
            forward, backward = forward + outcome.forward, backward + outcome.backward
            advance(len(x))
    return torch.cat(parts), (forward, backward), time.monotonic() - start


@torch.no_grad()
def _record(
    model: Model, scenarios: list[Scenario], images: ImageDataset, threat: Threat, scale: Scale
) -> Record:
    """What each scenario's model says to clean and attacked images, and how far its features moved."""
    x, y = images.tensors()
    original = torch.cat([model.features(part) for part in x.split(32)])
    trials, figures = [], {}
    for scenario in scenarios:
        for kind, seen, budget in (("clean", x, None), ("pgd", scenario.adv, threat.budget)):
            tokens = [scenario.model.tokens(part) for part in seen.split(32)]
            features = torch.cat([torch.cat((t.prefix[:, :1], t.patch), dim=1) for t in tokens])
            figures[f"cosine, {kind}, {scenario.name}"] = float(
                F.cosine_similarity(features, original, dim=-1).mean()
            )
            predicted = torch.cat([scenario.model.logits(t) for t in tokens]).argmax(1)
            passes, seconds = (scenario.passes, scenario.seconds) if kind == "pgd" else ((len(x), 0), 0.0)
            settings = {"steps": scale.attack_steps} if kind == "pgd" else {}
            correct, distance = (predicted == y).tolist(), threat.size(seen - x).tolist()
            trials.append(
                Trial(
                    kind,
                    budget,
                    settings,
                    correct,
                    predicted.tolist(),
                    distance,
                    *passes,
                    seconds,
                    scenario=scenario.name,
                    control=scenario.control,
                )
            )
    return Record(
        kind="demo",
        model={"name": model.name, "fingerprint": model.fingerprint(), "input": list(model.input_size)},
        data=images.facts(),
        trials=trials,
        metrics=figures,
        notes=_claims(trials),
    )


def _claims(trials: list[Trial]) -> list[str]:
    """What may be said of the hardened model, in words that follow from the figures."""
    bare, _, secret, known, *tuned = (t.accuracy for t in trials if t.attack == "pgd")
    beside = [
        f"Tuned weights stand beside it: {one:.0%} against attacks on the public model, and {other:.0%} when "
        "the attacker has them, which is all that may be claimed of them."
        for one, other in ([tuned] if tuned else [])
    ]
    return [
        f"Against attacks on the public model, {secret:.0%} of the attacked images are still recognised; "
        f"without tokens it is {bare:.0%}.",
        "An attacker who trains tokens of their own was not tried here; `robvit evaluate --protocol "
        "rob-tokens@1` tries one, who broke nearly everything (docs/robustness-tokens.md).",
        f"The honest headline is the attacker who knows the tokens: {known:.0%}.",
        *beside,
        f"A small run: {len(trials[0].correct)} images, a short training, an attack of "
        f"{trials[1].settings['steps']} steps; small sample: see the confidence intervals.",
    ]


@torch.no_grad()
def _gallery_items(record: Record, scenarios: list[Scenario], images: ImageDataset) -> list[GalleryItem]:
    """Every image as each of the two attackers on the hardened model left it, and where it looks."""
    x, _ = images.tensors()
    found = []
    for number, trial in enumerate(record.trials):
        if trial.control or trial.attack == "clean":
            continue
        scenario = next(r for r in scenarios if r.name == trial.scenario)
        sides = [levels(t).permute(0, 2, 3, 1).numpy() for t in (x, scenario.adv)]
        looks = [class_attention(scenario.model, t) for t in (x, scenario.adv)]
        for place, (before, after) in enumerate(zip(*sides, strict=True)):
            seen = [look[place].numpy() for look in looks if look is not None]
            found.append(GalleryItem(place, number, after, before, seen or None))
    return found


def _sheet(record: Record, scenarios: list[Scenario], images: ImageDataset, path: Path) -> None:
    """The public attack's images, with what the bare and the hardened model see in them."""
    x, y = images.take(range(min(8, len(images)))).tensors()
    before, after = (levels(t).permute(0, 2, 3, 1).numpy() for t in (x, scenarios[0].adv))
    bare, hardened = (
        next(t for t in record.trials if t.scenario == scenario and t.attack == "pgd")
        for scenario in ("no tokens", "trained tokens")
    )
    names = images.classes
    rows = [
        Pair(
            before[i],
            after[i],
            names[label],
            f"bare: {names[bare.predicted[i]]}, hardened: {names[hardened.predicted[i]]}",
            hardened.correct[i],
        )
        for i, label in enumerate(y.tolist())
    ]
    title = f"{record.model['name']}, attacked without its tokens, pgd {bare.threat}"
    save_png(attack_sheet(rows, title=title), path)
