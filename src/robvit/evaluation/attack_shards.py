"""Attacking a whole dataset: batch by batch into shards, so that it can be killed, resumed and shared out.

A shard is the unit of work: one batch of adversarial images as 8-bit values and what became of each. A run
that is started again resumes with the missing shards; several processes (`accelerate launch`) take turns.
The batch's size is in a job's key: attacks that are `batch_coupled` see the same batches again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.attacks import ATTACKS, Outcome, judge, run
from robvit.attacks.audited import refuse_batches
from robvit.attacks.compiled import check_compiler
from robvit.attacks.core import refuse_targets
from robvit.attacks.pixels import levels
from robvit.audit import Audit
from robvit.backbones.model import Model
from robvit.budget import parse_number
from robvit.data import ImageDataset
from robvit.errors import DataError, check_batch
from robvit.evaluation.masks import MaskScore, pixel_counts, score_of
from robvit.evaluation.shards import (
    Shard,
    finished,
    folder_sha256,
    pixels_sha256,
    read_images,
    read_shards,
    shard_path,
    write_shard,
)
from robvit.evaluation.traces import attention_maps, feature_cosines
from robvit.evaluation.trials import clean_trial
from robvit.files import parse_json, read_text, write_json
from robvit.processes import processes
from robvit.progress import Advance, BatchProgress, silent
from robvit.record import Trial
from robvit.resuming import check_unchanged, key_of, versions
from robvit.threat import Threat

SHOWN = 1000  # a report's gallery holds no more images, so attention is kept for no more
LISTS, SUMS = ("correct", "predicted", "distance"), ("forward", "backward", "seconds")


@dataclass(frozen=True)
class AttackJob:
    """What is done to every image, and all that its result depends on.

    With a `victim`, images are made on `model` and judged on the victim (transfer); with `leave_wrong`, those
    that it gets wrong from the start are left. `identity` names all that decides the models' outputs. The
    attack "clean" leaves images as they are and has no threat. With a `source`, images are taken from the
    shards of another job. With an `original`, the cosine of the judged model's features with its is measured.
    With a `target`, "random" say, the attack aims at a class. Without `rounded`, images stay floats, and none
    are kept. `passes`: forward, of an image that stays correct, if known, for progress.
    """

    attack: str
    threat: Threat | None
    settings: dict[str, Any]
    model: nn.Module
    identity: str
    images: ImageDataset
    victim: nn.Module | None = None
    leave_wrong: bool = False
    batch: int = 32
    precision: str = "fp32"
    compiler: str | None = None
    source: Path | None = None
    original: Model | None = None
    passes: int = 0
    target: str | int | None = None
    rounded: bool = True

    def __post_init__(self) -> None:
        check_batch(self.batch)
        refuse_targets(self.settings)
        if self.batch < len(self.images):
            refuse_batches(self.attack, self.settings)
        per_pixel = self.settings.get("loss") == "pixel_cross_entropy"
        task = "classes" if self.threat is None else ATTACKS.info(self.attack).task
        wanted = "masks" if per_pixel or task == "pixels" else "labels"
        if self.images.kind != wanted:
            remedy = " (masks are attacked by segpgd)" if self.images.kind == "masks" else ""
            raise DataError(f"{self.attack} needs {wanted}, these images have {self.images.kind}{remedy}")
        if self.compiler is not None:
            check_compiler(self.compiler)

    @property
    def judged(self) -> nn.Module:
        """The model that decides what counts as a success."""
        return self.victim or self.model

    @property
    def makes_images(self) -> bool:
        """Whether adversarial images come of it."""
        return self.threat is not None and self.source is None

    @property
    def keeps_images(self) -> bool:
        """Whether its shards hold adversarial images, which are whole grey levels."""
        return self.makes_images and self.rounded

    def options(self) -> dict[str, Any]:
        """What `attacks.run` takes beside the images: whom to fool, how to compute, the settings."""
        return {
            "victim": self.victim,
            "leave_wrong": self.leave_wrong,
            "target": self.target,
            "eight_bit": self.rounded,
            "precision": self.precision,
            "compiler": self.compiler,
            **self.settings,
        }

    def facts(self) -> dict[str, Any]:
        """All that decides the result, by name."""
        unusual = {} if self.target is None else {"target": self.target}
        marks = {"leave_wrong": self.leave_wrong, "transfer": self.victim is not None}
        unusual |= {name: True for name, holds in marks.items() if holds}
        unusual |= {} if self.rounded else {"rounded": False}
        return unusual | {
            "format": "shards-6",
            "source": None if self.source is None else key_of(_held_facts(self.source)),
            "features": self.original is not None,
            "attack": self.attack,
            "threat": _exact(self.threat),
            "settings": self.settings,
            "model": self.identity,
            "batch": self.batch,
            "precision": self.precision,
            "compiler": self.compiler,
            "names and labels": self.images.digest(),
            "pixels": self.images.pixels(),
            "size": self.images.size,
            "resize": self.images.resize,
            "classes": self.images.class_map,
            "versions": versions(),
        }

    def key(self) -> str:
        """Names the result: the same key, the same shards, bit for bit."""
        return key_of(self.facts())

    def batches(self) -> list[ImageDataset]:
        places = range(len(self.images))
        return [self.images.take(places[i : i + self.batch]) for i in range(0, len(places), self.batch)]


@dataclass(frozen=True)
class Shards:
    """The finished shards of a job, and what they tell together."""

    job: AttackJob
    folder: Path

    def __iter__(self) -> Iterator[Shard]:
        return read_shards(self.folder, len(self.job.batches()))

    def trial(self, below: Path | None = None, **fields: Any) -> Trial:
        """What became of every image; its `shards` are relative to the folder `below`, if that is to stay."""
        parts = [shard.facts for shard in self]
        known: dict[str, Any] = {name: [v for part in parts for v in part[name]] for name in LISTS}
        known |= {name: sum(part[name] for part in parts) for name in SUMS}
        if self.job.target is not None:
            known["targets"] = [v for part in parts for v in part["targets"]]
        if below is not None and self.job.keeps_images and parts:
            known["shards"] = self.folder.relative_to(below).as_posix()
            known["shards_sha256"] = folder_sha256(self.folder)
        budget = self.job.threat.budget if self.job.threat else None
        names = sorted({name for part in parts for name in part["warnings"]})
        settings = self.job.settings | ({} if self.job.target is None else {"target": self.job.target})
        return Trial(self.job.attack, budget, settings, **known, warnings=names, **fields)

    def clean_trial(self, **fields: Any) -> Trial:
        """What the judged model made of the same images before the attack."""
        correct, predicted = (
            [v for shard in self for v in shard.facts[name]] for name in ("clean_correct", "clean_predicted")
        )
        return clean_trial(correct, predicted, **fields)

    def audits(self) -> list[Audit]:
        """What an attack that tried a sample only says of the rest; shards from before have none."""
        return [Audit(**audit) for shard in self for audit in shard.facts.get("audits", [])]

    def mask_scores(self) -> tuple[MaskScore, MaskScore]:
        """Where images have masks: the judged model's score on clean and on attacked images."""
        counts = ((shard.clean_counts, shard.counts) for shard in self)
        clean, attacked = zip(*counts, strict=True)
        classes = len(self.job.images.classes)
        return score_of(clean, classes), score_of(attacked, classes)

    def cosines(self) -> dict[str, float]:
        """Mean cosines of the judged model's features with the original's clean ones and with its own."""
        parts = [shard.facts["cosine"] for shard in self]
        count = len(self.job.images)
        return {name: sum(v for part in parts for v in part[name]) / count for name in ("original", "own")}


def run_job(job: AttackJob, folder: Path, progress: Advance = silent) -> Shards:
    """Attack all images that `folder` holds no shards of yet; several processes share them out."""
    state = processes()
    _claim(folder, job)
    for network in {job.model, job.judged, *([job.original] if job.original else [])}:
        network.to(state.device)
    correct: list[float] = []
    for index, some in enumerate(job.batches()):
        path = shard_path(folder, index)
        facts = finished(path, some)
        shown = BatchProgress(progress, len(some), job.passes)
        if facts is None and index % state.num_processes == state.process_index:
            x, y = (t.to(state.device) for t in some.tensors())
            if job.makes_images:
                assert job.threat is not None
                how = {"batch": len(x), "each_pass": shown.each_pass, **job.options()}
                outcome = run(job.attack, job.model, x, y, job.threat, **how)
            else:
                given = None if job.source is None else read_images(job.source, index).to(x)
                outcome = judge(job.judged, x, y, given, job.threat, batch=len(x))
            facts = _facts(job, x, y, outcome)
            write_shard(path, _tensors(job, x, y, outcome, index), facts)
        if facts is not None:
            correct += facts["correct"]
            shown.finish(_note(correct, some.kind))
    state.wait_for_everyone()
    return Shards(job, folder)


def _facts(job: AttackJob, x: torch.Tensor, y: torch.Tensor, outcome: Outcome) -> dict[str, Any]:
    """What became of each image of a batch."""
    facts = {
        "clean": pixels_sha256(x, y),
        "distance": outcome.distance.tolist(),
        "forward": outcome.forward,
        "backward": outcome.backward,
        "seconds": outcome.seconds,
        "warnings": list(outcome.warnings),
        "audits": [asdict(audit) for audit in outcome.audits],
        "cosine": feature_cosines(job.original, job.judged, x, outcome.adv),
    }
    if job.images.kind == "masks":
        counts = pixel_counts(outcome.predicted, y, len(job.images.classes))
        return facts | {"correct": score_of([counts], len(job.images.classes)).accuracy}
    if outcome.targets is not None:
        facts["targets"] = outcome.targets.tolist()
    return facts | {
        "correct": outcome.correct.tolist(),
        "predicted": outcome.predicted.tolist(),
        "clean_correct": outcome.clean_correct.tolist(),
        "clean_predicted": outcome.clean_predicted.tolist(),
    }


def _tensors(
    job: AttackJob, x: torch.Tensor, y: torch.Tensor, outcome: Outcome, index: int
) -> dict[str, torch.Tensor]:
    """The images of a batch and what a page shows beside them."""
    own = job.keeps_images
    tensors = {"adv": levels(outcome.adv).cpu() if own else torch.zeros(0, dtype=torch.uint8)}
    if job.images.kind == "masks":
        for name, predicted in (("counts", outcome.predicted), ("clean_counts", outcome.clean_predicted)):
            tensors[name] = pixel_counts(predicted, y, len(job.images.classes)).int().cpu()
    if own and index * job.batch < SHOWN:
        tensors |= attention_maps(job.judged, x, outcome.adv)
    return tensors


def _note(correct: list[float], kind: str) -> str:
    """How the judged model does so far."""
    if kind == "masks":
        return f"{sum(correct) / len(correct):.0%} of pixels correct"
    return f"{sum(correct)} of {len(correct)} correct"


def _claim(folder: Path, job: AttackJob) -> None:
    """Mark a folder as this job's; a folder with shards of another job is refused."""
    mark = folder / "job.json"
    if not mark.exists():
        write_json(mark, {"facts": job.facts()})
    else:
        check_unchanged(folder, _held_facts(folder), job.facts())


def _exact(threat: Threat | None) -> str:
    """The threat in words, with all digits of its budget where the words leave some out."""
    if threat is None or parse_number(threat.budget.amount) == threat.eps:
        return str(threat)
    return f"{threat} (eps {threat.eps!r})"


def _held_facts(folder: Path) -> Any:
    mark = folder / "job.json"
    content = parse_json(read_text(mark, "the mark of a run"), mark, "the mark of a run")
    return content.get("facts") if isinstance(content, dict) else None
