"""The main job in a few minutes: a real frozen backbone without a defence, with secret tokens, and tuned.

Two attackers try each: one has the public model, the other everything. The same by hand is `robvit train
head`, `robvit robustify` and `robvit evaluate`; here each step is small, and both see the same images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from robvit.evaluation.token_surrogates import random_tokens
from robvit.evaluation.trials import clean_trial, joined, trial_of
from robvit.loading import load
from robvit.progress import Log, progress
from robvit.record import Record, Table, Trial
from robvit.report import GalleryItem, write_report
from robvit.threat import Threat

BARE, RANDOM, SECRET, TUNED = "no defence", "random tokens", "secret tokens", "tuned weights"
TITLE = "What each defence buys"
PUBLIC, KNOWN = ", transfer", ", white box"  # after a defence: the attacker has the public model, or all


@dataclass(frozen=True)
class Scale:
    """How much the demo does; the defaults take under five minutes on two processor cores."""

    head: int = 512
    learn: int = 64
    steps: int = 44
    judge: int = 40
    attack_steps: int = 10


@dataclass(frozen=True)
class Scenario:
    """A defence and an attacker: the model that is judged, the images that the attacker made, and how.

    The headline is about the best defence there is; the others stand beside it as controls.
    """

    name: str
    model: Model
    adv: torch.Tensor
    attack: Trial
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
    """Harden a backbone, and judge each defence against an attacker with the public model and one with all.

    Writes head.safetensors, tokens.safetensors, record.json, sheet.png and report.html into `out`.
    """
    model = load(name, img_size=img_size)
    size = model.input_size[0]
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    log(f"{name}: {millions:.1f} million frozen parameters, {size}x{size} images of the bundled sample")
    judge = open_data("sample", split="test", size=size, limit=scale.judge)
    labelled = open_data("sample", split="train", size=size, limit=scale.head)
    with progress("1/5 features for a linear head", total=len(labelled)) as advance:
        head = LinearHead.fit(model, labelled.batches(32), 10, names=labelled.classes, progress=advance)
    head.save(out / "head.safetensors")
    model = model.replace(head=head)
    trained, baseline = _harden(model, labelled.take(range(scale.learn)), threat, scale, out)
    tuned = _tuned(model)
    scenarios = _scenarios(model, trained, tuned, judge, threat, scale.attack_steps)
    record = _record(model, scenarios, judge, threat, scale)
    record.metrics[f"cosine under the training attack, {BARE}"] = baseline
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
    with progress("2/5 attacking, then learning tokens", total=1) as advance:
        state = out / "state.safetensors"
        training = train_tokens(headless, images, recipe, state=state, progress=advance)
    training.tokens.save(out / "tokens.safetensors")
    return training.tokens.values, training.baseline


def _tuned(model: Model) -> Model | None:
    """The bundled tuned network of this backbone under the same head, if there is one."""
    known = next((one for one in zoo.robust_variants(model.name) if one.tuned_from), None)
    if known is None:
        return None
    return load(known.alias, img_size=model.input_size[0]).replace(head=model.head)


def _scenarios(
    model: Model,
    trained: torch.Tensor,
    tuned: Model | None,
    images: ImageDataset,
    threat: Threat,
    steps: int,
) -> list[Scenario]:
    """Every defence against both attackers; random tokens, a control, have the trained ones' mean length."""
    hardened = model.replace(tokens=trained)
    public = _attack(model, images, threat, steps, "3/5 attack on the public model")
    insider = _attack(hardened, images, threat, steps, "4/5 attack by one who has the tokens")
    beside = tuned is not None
    found = [
        Scenario(BARE, model, *public, control=True),
        Scenario(RANDOM, model.replace(tokens=random_tokens(trained)), *public, control=True),
        Scenario(SECRET + PUBLIC, hardened, *public, control=beside),
        Scenario(SECRET + KNOWN, hardened, *insider, control=beside),
    ]
    if tuned is not None:
        whole = _attack(tuned, images, threat, steps, "5/5 attack by one who has the tuned weights")
        found += [Scenario(TUNED + PUBLIC, tuned, *public), Scenario(TUNED + KNOWN, tuned, *whole)]
    return found


def _attack(
    model: Model, images: ImageDataset, threat: Threat, steps: int, label: str
) -> tuple[torch.Tensor, Trial]:
    """PGD on the classifier, to its full objective: 8-bit images, and the trial of the attacked model."""
    parts, trials = [], []
    with progress(label, total=len(images)) as advance:
        for x, y in images.batches(16):
            # Naming a victim attacks every image, also those that are wrong from the start.
            outcome = run("pgd", model, x, y, threat, victim=model, eight_bit=True, steps=steps)
            parts.append(outcome.adv)
            trials.append(trial_of(outcome, "pgd", threat, {"steps": steps}))
            advance(len(x))
    return torch.cat(parts), joined(trials)


@torch.no_grad()
def _record(
    model: Model, scenarios: list[Scenario], images: ImageDataset, threat: Threat, scale: Scale
) -> Record:
    """What each scenario's model says to clean and attacked images, and how far its features moved."""
    x, y = images.tensors()
    original = torch.cat([model.features(part) for part in x.split(32)])
    trials, metrics = list[Trial](), dict[str, float]()
    for scenario in scenarios:
        for trial, seen in ((clean_trial([], []), x), (scenario.attack, scenario.adv)):
            # One pass gives features and logits: half the time of asking for either.
            tokens = [scenario.model.tokens(part) for part in seen.split(32)]
            features = torch.cat([torch.cat((t.prefix[:, :1], t.patch), dim=1) for t in tokens])
            cosine = F.cosine_similarity(features, original, dim=-1).mean()
            metrics[f"cosine, {trial.attack}, {scenario.name}"] = float(cosine)
            predicted = torch.cat([scenario.model.logits(t) for t in tokens]).argmax(1)
            trial = replace(trial, correct=(predicted == y).tolist(), predicted=predicted.tolist())
            trial = replace(trial, distance=threat.size(seen - x).tolist(), control=scenario.control)
            trials.append(replace(trial, scenario=scenario.name))
    attacked = {trial.scenario: trial.accuracy for trial in trials if trial.attack == "pgd"}
    clean = {trial.scenario: trial.accuracy for trial in trials if trial.attack == "clean"}
    return Record(
        kind="demo",
        model={"name": model.name, "fingerprint": model.fingerprint(), "input": list(model.input_size)},
        data=images.facts(),
        trials=trials,
        metrics=metrics,
        tables=[_table(clean, attacked, len(y), threat, scale)],
        notes=_claims(attacked, len(y), scale.attack_steps),
    )


def _table(
    clean: dict[str, float], attacked: dict[str, float], count: int, threat: Threat, scale: Scale
) -> Table:
    """What each defence buys: accuracy without an attack and against each of the two attackers."""
    defences = [name for name in (SECRET, TUNED) if name + KNOWN in attacked]
    # Without a defence the public model is all there is.
    rows = [[BARE, clean[BARE], attacked[BARE], attacked[BARE]]]
    rows += [[n, clean[n + KNOWN], attacked[n + PUBLIC], attacked[n + KNOWN]] for n in defences]
    return Table(
        TITLE,
        ["defence", "clean", "attacker has the public model", "attacker has everything"],
        [[name, *(f"{share:.0%}" for share in shares)] for name, *shares in rows],
        f"Accuracy on {count} images, PGD of {scale.attack_steps} steps within {threat}. A first look: "
        "stronger attacks break more, and few images say little.",
        lead=True,
    )


def _claims(attacked: dict[str, float], count: int, steps: int) -> list[str]:
    """What may be said, in words that follow from the figures."""
    notes = [
        f"Secret tokens: against attacks on the public model {attacked[SECRET + PUBLIC]:.0%} of the images "
        f"are still recognised, without a defence {attacked[BARE]:.0%}; an attacker who has the tokens "
        f"leaves {attacked[SECRET + KNOWN]:.0%}. One who trains tokens of their own was not tried here: "
        "`robvit evaluate --protocol rob-tokens@1` tries one.",
    ]
    if TUNED + KNOWN in attacked:
        notes.insert(
            0,
            f"Tuned weights: {attacked[TUNED + KNOWN]:.0%} are still recognised when the attacker has "
            f"everything, and {attacked[TUNED + PUBLIC]:.0%} against attacks on the public model. Nothing "
            "about them is a secret. They were tuned on CIFAR-10, of which these images are; on other "
            "photographs they cost much clean accuracy.",
        )
    return [
        *notes,
        f"A small run: {count} images, a short training, an attack of {steps} steps; small sample: see the "
        "confidence intervals.",
    ]


@torch.no_grad()
def _gallery_items(record: Record, scenarios: list[Scenario], images: ImageDataset) -> list[GalleryItem]:
    """Every image as each of the two attackers on the best defence left it, and where that looks."""
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
    """The public attack's images, with what the network sees in them bare and with each defence."""
    x, y = images.take(range(min(8, len(images)))).tensors()
    before, after = (levels(t).permute(0, 2, 3, 1).numpy() for t in (x, scenarios[0].adv))
    found = {trial.scenario: trial for trial in record.trials if trial.attack == "pgd"}
    short = {"bare": BARE, "tokens": SECRET + PUBLIC, "tuned": TUNED + PUBLIC}
    trials = {word: found[scenario] for word, scenario in short.items() if scenario in found}
    best, names = list(trials.values())[-1], images.classes
    rows = [
        Pair(
            before[i],
            after[i],
            names[label],
            ", ".join(f"{word}: {names[trial.predicted[i]]}" for word, trial in trials.items()),
            best.correct[i],
        )
        for i, label in enumerate(y.tolist())
    ]
    title = f"{record.model['name']}, attacked as the public model, pgd {best.threat}"
    save_png(attack_sheet(rows, title=title), path)
