"""Which tokens are worth having? A small search on a real backbone, judged on images it did not learn from.

python scripts/search_tokens.py --out runs/search --only paper,deep

Every setting is learned from the same images and judged like the demo: clean accuracy, accuracy under
PGD crafted without the tokens, and under PGD that knows them. Heads: trained on un-hardened features,
and retrained on hardened ones. A setting that is already in `--out` is not repeated; the table at the
end holds all that are there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from robvit.attacks import run
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import AdaptiveAttack, TokenRecipe
from robvit.defenses.token_training import train_tokens
from robvit.files import written_whole
from robvit.loading import load
from robvit.progress import progress
from robvit.record import Record, Trial
from robvit.statistics import interval, mcnemar
from robvit.tensor_files import read_tensors
from robvit.threat import Threat

Options = argparse.Namespace
THREAT = Threat("linf", 3 / 255)
FEATURE = AttackSetting("feature", THREAT, {"steps": 8, "psnr": None})
NEAR = AttackSetting("feature", Threat("linf", 1 / 255), {"steps": 8, "psnr": None})
LABELS = AttackSetting("pgd", THREAT, {"steps": 8})
BASE = TokenRecipe(steps=40, attack=FEATURE)  # the paper's ten tokens, rate and batch, with fewer steps
SEEN = replace(BASE, lr=5e-3, adaptive=AdaptiveAttack(steps=2))

BARE = "no tokens"
PUBLIC = "un-hardened.adv"  # attacked with the head on un-hardened features, the same for every setting

SETTINGS = {
    "paper": BASE,
    "paper, full length": replace(BASE, steps=200),
    "fast rate": replace(BASE, lr=5e-3),
    "faster rate": replace(BASE, lr=2e-2),
    "large start": replace(BASE, lr=5e-3, start=0.1),
    "1 token": replace(BASE, lr=5e-3, count=1),
    "50 tokens": replace(BASE, lr=5e-3, count=50),
    "deep": replace(BASE, lr=5e-3, layers="all"),
    "deep, three times as long": replace(BASE, lr=5e-3, layers="all", steps=120),
    "half deep": replace(BASE, lr=5e-3, layers=(0, 3, 6, 9)),
    "deep, two attacks": replace(BASE, lr=5e-3, layers="all", also=(LABELS,)),
    "deep, two budgets": replace(BASE, lr=5e-3, layers="all", also=(NEAR,)),
    "adaptive": SEEN,
    "deep adaptive": replace(SEEN, layers="all"),
    "deep adaptive, head along": replace(SEEN, layers="all", steps=80, attack=LABELS, task=1.0),
    "deep adaptive, half the loss a head": replace(SEEN, layers="all", attack=LABELS, task=0.5),
    "deep adaptive, a fiftieth the head": replace(SEEN, layers="all", attack=LABELS, task=0.02),
}


def surrogate(source: Model, images: ImageDataset, steps: int) -> torch.Tensor:
    """PGD to its full objective on every image, as 8-bit values (N 3 H W)."""
    parts = []
    with progress("attack", total=len(images)) as advance:
        for x, y in images.batches(16):
            parts.append(run("pgd", source, x, y, THREAT, victim=source, steps=steps, eight_bit=True).adv)
            advance(len(x))
    return torch.cat(parts)


@torch.no_grad()
def trial(model: Model, x: torch.Tensor, images: ImageDataset, scenario: str, attack: str = "pgd") -> Trial:
    """What the model says to images x (N 3 H W), clean or attacked."""
    predicted = [p for part in x.split(32) for p in model(part).argmax(1).tolist()]
    correct = [p == y for p, y in zip(predicted, images.labels, strict=True)]
    distance = THREAT.size(x - images.tensors()[0]).tolist()
    return Trial(
        attack,
        THREAT.budget if attack == "pgd" else None,
        {},
        correct,
        predicted,
        distance,
        scenario=scenario,
    )


def described(images: ImageDataset) -> dict[str, Any]:
    """What a record says of its images, so that `robvit compare` can set two settings side by side."""
    return images.facts()


def left(trial: Trial) -> float:
    """The share of images that the model still gets right."""
    return sum(trial.correct) / len(trial.correct)


def judged(name: str, model: Model, labelled: ImageDataset, judge: ImageDataset, options: Options) -> Record:
    """Learn one setting's tokens and judge them with every head there is for them."""
    learn = labelled.take(range(options.learn))
    with progress(name, total=1) as advance:
        state = options.out / f"{name}.state"
        training = train_tokens(model, learn, SETTINGS[name], state=state, progress=advance)
    strong = model.replace(tokens=training.tokens)
    heads = {"un-hardened": model.head}
    if training.head is not None:
        heads = {"learned along": training.head}
    elif options.retrain:
        again = labelled.take(range(options.retrain))
        heads["retrained"] = LinearHead.fit(strong, again.batches(32), 10, names=labelled.classes)
    trials, figures = [], {}
    for kind, head in heads.items():
        hardened, bare = strong.replace(head=head), model.replace(tokens=None, head=head)
        place = PUBLIC if kind == "un-hardened" else f"{kind} {name}.adv"
        public = kept(options.out / place, lambda bare=bare: surrogate(bare, judge, options.attack_steps))
        few = judge.take(range(options.insider))
        insider = surrogate(hardened, few, options.attack_steps)
        trials.append(trial(hardened, judge.tensors()[0], judge, kind, "clean"))
        trials.append(trial(hardened, public, judge, f"{kind}, without tokens"))
        figures[f"white box, {kind}"] = left(trial(hardened, insider, few, "white box"))
    clean, attacked = (sum(side[-10:]) / 10 for side in zip(*training.history, strict=True))
    return Record(
        kind="search",
        model={"name": model.name, "setting": name, "fingerprint": model.fingerprint()},
        data=described(judge),
        trials=trials,
        metrics=figures
        | {"cosine, clean": clean, "cosine, attacked": attacked, "cosine, no tokens": training.baseline},
        command=shlex.join(["python", *sys.argv]),
    )


def kept(path: Path, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Images from a file, or made and kept there."""
    if not path.exists():
        with written_whole(path) as aside:
            save_file({"adv": make()}, aside)
    return read_tensors(path, "attacked images")[0]["adv"]


def without_tokens(model: Model, judge: ImageDataset, public: torch.Tensor) -> Record:
    """The bare model on the same images."""
    trials = [trial(model, judge.tensors()[0], judge, "un-hardened", "clean")]
    trials.append(trial(model, public, judge, "un-hardened, without tokens"))
    facts = {"name": model.name, "setting": BARE, "fingerprint": model.fingerprint()}
    data = described(judge)
    return Record("search", facts, data, trials, command=shlex.join(["python", *sys.argv]))


def table(folder: Path) -> str:
    """One row for each setting and head, in markdown; p is McNemar's, against the paper's recipe."""
    lines = [
        "| setting | head | clean | attacked without tokens | p | white box |",
        "|---|---|---|---|---|---|",
    ]
    found = {name: Record.load(p) for name in (BARE, *SETTINGS) if (p := folder / f"{name}.json").exists()}
    for name, record in found.items():
        for clean, public in zip(record.trials[::2], record.trials[1::2], strict=True):
            low, high = interval(sum(public.correct), len(public.correct))
            insider = record.metrics.get(f"white box, {clean.scenario}")
            shown = [
                name,
                clean.scenario,
                f"{left(clean):.1%}",
                f"{left(public):.1%} ({low:.1%} to {high:.1%})",
            ]
            shown += [_against(found.get("paper"), public), "" if insider is None else f"{insider:.1%}"]
            lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def _against(paper: Record | None, public: Trial) -> str:
    """How likely so large a difference from the paper's recipe is by chance, image by image."""
    if (
        paper is None
        or public.scenario != paper.trials[1].scenario
        or public.correct == paper.trials[1].correct
    ):
        return ""
    pairs = list(zip(public.correct, paper.trials[1].correct, strict=True))
    return f"{mcnemar(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)):.1g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="dinov2-small")
    parser.add_argument("--img-size", type=int, default=112)
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--only", default="", help=f"some of: {'; '.join(SETTINGS)}, divided by semicolons")
    parser.add_argument("--learn", type=int, default=192)
    parser.add_argument("--head", type=int, default=512)
    parser.add_argument("--judge", type=int, default=200, help="images judged")
    parser.add_argument("--insider", type=int, default=24, help="of these, attacked with the tokens known")
    parser.add_argument("--retrain", type=int, default=0, help="images for a head on hardened features")
    parser.add_argument("--attack-steps", type=int, default=10)
    options = parser.parse_args()
    model = load(options.model, img_size=options.img_size)
    size = model.input_size[0]
    labelled = open_data("sample", split="train", size=size, limit=options.head)
    judge = open_data("sample", split="test", size=size, limit=options.judge)
    place = options.out / "head.safetensors"
    if not place.exists():
        LinearHead.fit(model, labelled.batches(32), 10, names=labelled.classes).save(place)
    model = load(options.model, img_size=options.img_size, head=place)
    public = kept(options.out / PUBLIC, lambda: surrogate(model, judge, options.attack_steps))
    without_tokens(model, judge, public).save(options.out / f"{BARE}.json")
    for name in options.only.split(";") if options.only else SETTINGS:
        if not (options.out / f"{name}.json").exists():
            judged(name, model, labelled, judge, options).save(options.out / f"{name}.json")
        print(table(options.out), flush=True)


if __name__ == "__main__":
    main()
