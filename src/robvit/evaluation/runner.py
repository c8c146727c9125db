"""One evaluation on its way: which attacks run on what, in folders of shards, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from robvit.attacks.audited import concluded
from robvit.attacks.cost import Passes
from robvit.audit import Audit
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.attack_shards import AttackJob, Shards, run_job
from robvit.evaluation.attackers import ATTACKERS, scenario_of
from robvit.evaluation.audit_sample import draw_sample
from robvit.evaluation.classifiers import Classifier, fitted
from robvit.evaluation.corruptions import corrupted, is_imagenet_c
from robvit.evaluation.forecast import Plan, audited_count
from robvit.evaluation.protocol import NO_TOKENS, RANDOM_TOKENS, Attack, Protocol
from robvit.evaluation.subset import learned_settings
from robvit.evaluation.token_surrogates import AttackerContext, Surrogate, random_tokens
from robvit.evaluation.trials import as_asked, spread
from robvit.progress import Advance, Log, Whole, part_of, silent
from robvit.record import Trial


@dataclass(frozen=True)
class Turn:
    """One attack of a protocol with one seed on one surrogate; `name` is its folder's, `label` for people.

    `cost` are the passes of one image that stays correct.
    """

    entry: Attack
    seed: int
    surrogate: Surrogate
    name: str
    label: str
    scenario: str
    progress: Advance
    cost: Passes


@dataclass
class Runner:
    """What is judged, on what, by which protocol, where its shards are, and the metrics found so far.

    `public` gives images of attackers who learn; `keeps` says that the folder `out` stays, so that trials
    may point into it; `log` takes lines for people, `progress` shares of the work, one in all.
    """

    classifier: Classifier
    images: ImageDataset
    protocol: Protocol
    plan: Plan
    out: Path
    data: object
    public: Callable[[int], ImageDataset]
    batch: int = 32
    precision: str = "fp32"
    compiler: str | None = None
    keeps: bool = True
    progress: Whole = field(default_factory=Whole)
    log: Log = silent
    metrics: dict[str, float] = field(default_factory=dict)
    audits: list[Audit] = field(default_factory=list)

    def run(self) -> list[Trial]:
        """All trials: for each scenario the clean images, then its attacks; then controls or corruptions."""
        if is_imagenet_c(self.data):
            return self._corruptions()
        advance = self._part(self.plan.clean, len(self.images), "clean")
        clean = run_job(self._job(), self._folder("clean"), advance).trial()
        scenarios: dict[str, list[Trial]] = {}
        controls: list[Trial] = []
        audited: list[Turn] = []
        for turn in self._turns():
            first = replace(clean, scenario=turn.scenario, attacker=turn.entry.attacker)
            so_far = scenarios.setdefault(turn.scenario, [first])
            if turn.entry.audited:
                audited.append(turn)
                continue
            done = self._attack(turn, so_far, self._alive(so_far[-1]))
            if self._has_controls(turn):
                controls += self._controls(turn, done)
        if audited:
            self._audit(audited, so_far, done)
        found = [trial for trials in scenarios.values() for trial in trials]
        return [*(found or [clean]), *_once(controls), *self._corruptions()]

    def _attack(self, turn: Turn, so_far: list[Trial], alive: list[int]) -> Shards:
        """One attack on the images `alive`; its trial is the next of those so far."""
        done = run_job(self._attack_job(turn, alive), self._folder(turn.name), turn.progress)
        so_far.append(spread(self._trial(done, turn, scenario=turn.scenario), alive, so_far[-1]))
        self._note_cosines(f"{turn.scenario}, {turn.label}", done)
        return done

    def _audit(self, turns: list[Turn], so_far: list[Trial], last: Shards) -> None:
        """The audited attacks on a sample of the survivors, and on all of them if that shows a reason to."""
        left = self._alive(so_far[-1])
        sample = draw_sample(last, self.protocol.audit, self.protocol.seeds[0], self.out / "audit.json")
        chosen = [place for place in left if self.images.names[place] in sample.names]
        if not sample.doubt:
            for turn in turns:
                self._attack(turn, so_far, [i for i in chosen if so_far[-1].correct[i]])
        successes = [place for place in chosen if not so_far[-1].correct[place]]
        attacks = list(dict.fromkeys(turn.entry.attack for turn in turns))
        size, seed = self.protocol.audit, self.protocol.seeds[0]
        tried = 0 if sample.doubt else len(chosen)
        found = Audit(attacks, size, seed, len(left), tried, successes, sample.strata)
        found = concluded(found, sample.doubt)
        if found.switched:
            self.log(str(found))
            rest = set(left) if sample.doubt else set(left) - set(chosen)
            self._attack_rest(turns, so_far, sorted(rest))
        self.audits.append(found)

    def _attack_rest(self, turns: list[Turn], so_far: list[Trial], rest: list[int]) -> None:
        """The audited attacks on what the sample left out, which no forecast counted on."""
        costs = [self._share(turn.cost) for turn in turns]
        unit = self.progress.extended(len(rest) * sum(costs))
        for turn, cost in zip(turns, costs, strict=True):
            advance = part_of(self.progress, unit * cost, turn.label)
            alive = [i for i in rest if so_far[-1].correct[i]]
            self._attack(replace(turn, name=f"{turn.name}-rest", progress=advance), so_far, alive)
            advance(len(rest) - len(alive))  # those that fell to an attack before

    def _turns(self) -> Iterator[Turn]:
        """Every attack with every seed on each of its attacker's surrogates, who learn before their first."""
        known: dict[str, list[Surrogate]] = {}
        for number, entry in enumerate(self.protocol.attacks):
            if entry.attacker not in known:
                known[entry.attacker] = ATTACKERS[entry.attacker](self._context(entry.attacker))
            surrogates = known[entry.attacker]
            images = audited_count(entry, self.protocol, len(self.images))
            count = images * len(self.protocol.seeds) * len(surrogates)
            scenario, turn = self._scenario(entry.attacker), f"{number + 1}/{len(self.protocol.attacks)}"
            for seed in self.protocol.seeds:
                for place, surrogate in enumerate(surrogates):
                    label = entry.attack + (f" on {surrogate.label}" if surrogate.label else "")
                    advance = self._part(self.plan.attacks[number], count, f"{turn} {label}")
                    name = f"{number + 1:02d}-{entry.attack}-{seed}-{place}"
                    cost = Passes(*(passes // max(count, 1) for passes in self.plan.attacks[number]))
                    yield Turn(entry, seed, surrogate, name, label, scenario, advance, cost)

    def _controls(self, turn: Turn, done: Shards) -> list[Trial]:
        """The same images before the model without tokens and with random ones."""
        model = self.classifier.net
        assert isinstance(model, Model)
        assert model.extra is not None
        twins = {NO_TOKENS: None, RANDOM_TOKENS: random_tokens(model.extra)}
        found = []
        for control in self.protocol.controls:
            twin = model.replace(tokens=twins[control], layers=model.layers)
            job = replace(
                done.job,
                model=fitted(twin, self.images),
                victim=None,
                identity=twin.identity(),
                source=done.folder,
            )
            shown = run_job(job, self._folder(f"{turn.name}-{control.replace(' ', '-')}"))
            self._note_cosines(f"{control}, {turn.entry.attack}", shown)
            fields: dict[str, Any] = {"scenario": control, "attacker": turn.entry.attacker, "control": True}
            found += [shown.clean_trial(**fields), self._trial(shown, turn, **fields)]
        return found

    def _corruptions(self) -> list[Trial]:
        """The judged model under common corruptions; they are no attacks and take no part in a worst case."""
        if self.protocol.corruptions is None:
            return []
        found = []
        for name, severity, images in corrupted(self.data, self.images, self.protocol.corruptions):
            label = f"{name}-{severity}"
            advance = self._part(self.plan.corruptions, self.plan.corruptions.forward, label)
            trial = run_job(self._job(images=images), self._folder(label), advance).trial()
            found.append(replace(trial, attack=name, severity=severity, control=True))
        return found

    # --- what a turn needs ----------------------------------------------------------------------------

    @cached_property
    def judged(self) -> nn.Module:
        """The network as these images can judge it."""
        return fitted(self.classifier.net, self.images)

    @cached_property
    def original(self) -> Model | None:
        """The model whose clean features are the measure, where the protocol asks for them."""
        model = self.classifier.net
        if not self.protocol.features or not isinstance(model, Model) or self.images.class_map is not None:
            return None
        return model.replace(tokens=None)

    def _job(self, attack: str = "clean", **changes: Any) -> AttackJob:
        """A job on all images against the judged model, or on others."""
        plain: dict[str, Any] = {
            "threat": None,
            "settings": {},
            "model": self.judged,
            "identity": self.classifier.identity,
            "images": self.images,
            "batch": self.batch,
            "precision": self.precision,
            "compiler": self.compiler,
        }
        return AttackJob(attack, **{**plain, **changes})

    def _attack_job(self, turn: Turn, alive: list[int]) -> AttackJob:
        """The attack on these images, on a surrogate or on the judged model itself."""
        surrogate = turn.surrogate.net
        source = self.classifier if surrogate is None else replace(self.classifier, net=surrogate)
        settings, learned = learned_settings(
            turn.entry.attack, turn.entry.ready(turn.seed), source, self.public
        )
        self.metrics |= {f"{turn.label}, {name}": value for name, value in learned.items()}
        return self._job(
            turn.entry.attack,
            threat=self.protocol.threat_of(turn.entry),
            settings=settings,
            model=self.judged if surrogate is None else fitted(surrogate, self.images),
            victim=None if surrogate is None else self.judged,
            leave_wrong=surrogate is not None and not self._has_controls(turn),
            identity="+".join(filter(None, (turn.surrogate.identity, self.classifier.identity))),
            images=self.images.take(alive),
            original=self.original,
            passes=turn.cost.forward,
        )

    def _trial(self, done: Shards, turn: Turn, **fields: Any) -> Trial:
        given = {"attacker": turn.entry.attacker, "surrogate": turn.surrogate.label, **fields}
        trial = done.trial(self.out if self.keeps else None, **given)
        return as_asked(trial, turn.entry.ready(turn.seed), done.job.settings)

    def _has_controls(self, turn: Turn) -> bool:
        """Whether other models see the same images too."""
        return bool(self.protocol.controls) and ATTACKERS.info(turn.entry.attacker).controls

    def _alive(self, before: Trial) -> list[int]:
        """The images an attack sees: all, or those on which none before it succeeded."""
        everyone = range(len(self.images))
        return [i for i in everyone if before.correct[i] or not self.protocol.survivors]

    def _scenario(self, attacker: str) -> str:
        """What a scenario is called; one attacker alone needs no name."""
        tokens = self.protocol.needs_tokens
        several = len({entry.attacker for entry in self.protocol.attacks}) > 1
        return scenario_of(attacker, tokens=tokens) if tokens or several else ""

    def _context(self, attacker: str) -> AttackerContext:
        threat = self.protocol.threat or self.protocol.attacks[0].threat
        assert threat is not None
        return AttackerContext(
            self.classifier.net,
            self.public,
            threat.threat(),
            self.protocol.attacker_budget,
            self.out / "attackers",
            self._part(self.plan.learning[attacker], 1, ""),
            self.metrics,
        )

    def _folder(self, name: str) -> Path:
        return self.out / "shards" / name

    def _part(self, passes: Passes, count: int, label: str) -> Advance:
        """The progress of a part of the plan in which `count` images are attacked or looked at."""
        return part_of(self.progress, self._share(passes) / max(count, 1), label)

    def _share(self, passes: Passes) -> float:
        """So many passes as a share of the plan."""
        return passes.work / max(self.plan.total.work, 1)

    def _note_cosines(self, what: str, done: Shards) -> None:
        if done.job.original is None or not len(done.job.images):
            return
        found = done.cosines()
        self.metrics[f"cosine with the original features, {what}"] = found["original"]
        self.metrics[f"cosine with its own clean features, {what}"] = found["own"]


def _once(trials: Iterable[Trial]) -> list[Trial]:
    """Without repetitions of the same clean trial."""
    found: list[Trial] = []
    for trial in trials:
        if trial.kind != "clean" or all(t.kind != "clean" or t.scenario != trial.scenario for t in found):
            found.append(trial)
    return found
