"""One evaluation on its way: which attacks run on what, in folders of shards, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.attack_shards import Job, cosines, craft
from robvit.evaluation.attackers import ATTACKERS, AttackerContext, Source, random_tokens
from robvit.evaluation.classifiers import Classifier, ClassSubset
from robvit.evaluation.corruptions import corrupted, is_imagenet_c
from robvit.evaluation.protocol import Attack, Protocol
from robvit.evaluation.trials import spread
from robvit.processes import processes
from robvit.progress import Advance, progress, silent
from robvit.record import Trial


@dataclass
class Case:
    """What is judged, on what, by which rules, where its shards are, and the figures found so far."""

    classifier: Classifier
    images: ImageDataset
    rules: Protocol
    out: Path
    batch: int
    precision: str
    data: object = None
    shown: bool = False
    public: Callable[[int], ImageDataset] = field(init=False)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def judged(self) -> nn.Module:
        return self.fitted(self.classifier.net)

    def fitted(self, net: nn.Module) -> nn.Module:
        """A network as these images can judge it."""
        if self.images.class_map is None:
            return net
        total = len(self.images.classes)
        return ClassSubset(net, self.images.class_map, total).eval()

    def watch(self, label: str, total: float) -> AbstractContextManager[Advance]:
        """Progress of one part, shown by the first of several processes."""
        if self.shown and processes().is_main_process:
            return progress(label, total=total)
        return nullcontext(silent)

    def run(self) -> list[Trial]:
        """All trials: for each scenario the clean images, then its attacks; then the controls."""
        if is_imagenet_c(self.data):
            return self.corrupt()
        clean = self.judge("clean", self.job("clean"))
        scenarios: dict[str, list[Trial]] = {}
        controls: list[Trial] = []
        sources: dict[str, list[Source]] = {}
        for number, entry in enumerate(self.rules.attacks):
            if entry.attacker not in sources:
                sources[entry.attacker] = ATTACKERS[entry.attacker](self.situation())
            scenario = self.scenario(entry.attacker)
            so_far = scenarios.setdefault(
                scenario, [replace(clean, scenario=scenario, attacker=entry.attacker)]
            )
            for seed in self.rules.seeds:
                for place, source in enumerate(sources[entry.attacker]):
                    name = f"{number + 1:02d}-{entry.attack}-{seed}-{place}"
                    so_far.append(self.attack(entry, seed, source, name=name, so_far=so_far))
                    if entry.attacker == "no-tokens":
                        controls += self.controls(entry, seed, source, name)
        found = [trial for trials in scenarios.values() for trial in trials]
        return [*(found or [clean]), *_once(controls), *self.corrupt()]

    def corrupt(self) -> list[Trial]:
        """The judged model under common corruptions; they are no attacks and take no part in a worst case."""
        if self.rules.corruptions is None:
            return []
        found = []
        for name, severity, images in corrupted(self.data, self.images, self.rules.corruptions):
            trial = self.judge(f"{name}-{severity}", self.job("clean", images=images))
            found.append(replace(trial, attack=name, severity=severity, control=True))
        return found

    def scenario(self, attacker: str) -> str:
        """What a scenario is called; one attacker alone needs no name."""
        known = ATTACKERS.info(attacker).scenario
        if self.rules.needs_tokens:
            return f"trained tokens, {known}"
        several = len({entry.attacker for entry in self.rules.attacks}) > 1
        return str(known) if several else ""

    def situation(self) -> AttackerContext:
        threat = self.rules.threat or self.rules.attacks[0].threat
        assert threat is not None
        return AttackerContext(
            self.classifier.net,
            self.public,
            threat.threat(),
            self.rules.attacker_budget,
            self.out / "attackers",
            self.watch,
            self.metrics,
        )

    def job(self, attack: str, **changes: Any) -> Job:
        """A job on all images against the judged model, or on others."""
        plain: dict[str, Any] = {
            "threat": None,
            "settings": {},
            "model": self.judged,
            "identity": self.classifier.identity,
            "images": self.images,
            "batch": self.batch,
            "precision": self.precision,
        }
        return Job(attack, **{**plain, **changes})

    def judge(self, name: str, job: Job, label: str = "") -> Trial:
        """Do a job in its folder and show its progress."""
        with self.watch(label or name, len(job.images)) as advance:
            trial = craft(job, self.out / "shards" / name, advance)
        return replace(trial, shards=f"shards/{name}") if job.makes_images else trial

    def attack(self, entry: Attack, seed: int, source: Source, *, name: str, so_far: list[Trial]) -> Trial:
        """One attack from one source on all images, or on those that still stand."""
        transfer = source.net is not None
        alive = list(range(len(self.images)))
        if self.rules.survivors:
            alive = [i for i, correct in enumerate(so_far[-1].correct) if correct]
        job = self.job(
            entry.attack,
            threat=self.rules.threat_of(entry),
            settings=entry.ready(seed),
            model=self.fitted(source.net) if source.net is not None else self.judged,
            victim=self.judged if transfer else None,
            identity="+".join(filter(None, (source.identity, self.classifier.identity))),
            images=self.images.take(alive),
            original=self.original(),
        )
        title = f"{int(name[:2])}/{len(self.rules.attacks)} {entry.attack}" + f" on {source.label}" * transfer
        trial = self.judge(name, job, title) if alive else _nothing(job)
        scenario = self.scenario(entry.attacker)
        trial = replace(
            spread(trial, alive, so_far[-1]),
            scenario=scenario,
            attacker=entry.attacker,
            surrogate=source.label,
        )
        if job.original is not None and alive:
            self.note_cosines(f"{scenario}, {entry.attack}" + f" on {source.label}" * transfer, job, name)
        return trial

    def controls(self, entry: Attack, seed: int, source: Source, name: str) -> list[Trial]:
        """The same images before the model without tokens and with random ones."""
        model = self.classifier.net
        assert isinstance(model, Model)
        assert model.extra is not None
        twins = {"no tokens": None, "random tokens": random_tokens(model.extra)}
        found = []
        for control in self.rules.controls:
            twin = model.replace(tokens=twins[control], layers=model.layers)
            common = {"model": self.fitted(twin), "identity": twin.identity(), "original": self.original()}
            clean = self.judge(f"clean-{control.replace(' ', '-')}", self.job("clean", **common))
            place = f"{name}-{control.replace(' ', '-')}"
            job = self.job(
                entry.attack,
                threat=self.rules.threat_of(entry),
                settings=entry.ready(seed),
                source=self.out / "shards" / name,
                **common,
            )
            attacked = replace(self.judge(place, job), surrogate=source.label)
            self.note_cosines(f"{control}, {entry.attack}", job, place)
            found += [
                replace(t, scenario=control, attacker=entry.attacker, control=True) for t in (clean, attacked)
            ]
        return found

    def original(self) -> Model | None:
        """The model whose clean features are the measure, where the protocol asks for them."""
        model = self.classifier.net
        if not self.rules.features or not isinstance(model, Model) or self.images.class_map is not None:
            return None
        return model.replace(tokens=None)

    def note_cosines(self, what: str, job: Job, name: str) -> None:
        if job.original is None:
            return
        found = cosines(job, self.out / "shards" / name)
        self.metrics[f"cosine with the original features, {what}"] = found["original"]
        self.metrics[f"cosine with its own clean features, {what}"] = found["own"]


def _nothing(job: Job) -> Trial:
    """The trial of an attack for which nothing was left."""
    assert job.threat is not None
    return Trial(job.attack, job.threat.budget, job.settings, [], [], [])


def _once(trials: Iterable[Trial]) -> list[Trial]:
    """Without repetitions of the same clean trial."""
    found: list[Trial] = []
    for trial in trials:
        if trial.attack != "clean" or all(t.attack != "clean" or t.scenario != trial.scenario for t in found):
            found.append(trial)
    return found
