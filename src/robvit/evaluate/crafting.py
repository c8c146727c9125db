"""Attacking a whole data set: batch by batch into shards, so that it can be killed, resumed and shared out.

A shard is the unit of work. It holds one batch of adversarial pictures as 8-bit values and what became
of each. A run that is started again goes on with the shards that are missing; several processes
(`accelerate launch`) take turns. Since no attack depends on its batch, the result is the same.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from robvit.attacks import ATTACKS
from robvit.attacks.compiled import check_compiler
from robvit.attacks.pixels import eight_bit
from robvit.attacks.precision import run_in
from robvit.data import PictureSet
from robvit.errors import DataError, InputError
from robvit.evaluate.masks import MaskScore, pixel_counts, score_masks, score_of
from robvit.evaluate.record import Trial
from robvit.files import tensors_sha256, write_json, written_whole
from robvit.threat import Threat

Report = Callable[..., None]


def levels(x: torch.Tensor) -> torch.Tensor:
    """Pixels in [0,1] as grey levels: floats to uint8 of the same shape."""
    return (x * 255).round().to(torch.uint8)


@dataclass(frozen=True)
class Job:
    """What is done to every picture, and all that its result depends on.

    With a `victim`, pictures are made on `model` and judged on the victim (transfer). `identity` names
    weights and everything else that decides the models' outputs.
    """

    attack: str
    threat: Threat
    settings: dict[str, Any]
    model: nn.Module
    identity: str
    pictures: PictureSet
    victim: nn.Module | None = None
    batch: int = 32
    precision: str = "fp32"
    compiler: str | None = None

    def __post_init__(self) -> None:
        per_pixel = self.settings.get("loss") == "pixel_cross_entropy"
        wanted = "masks" if per_pixel or ATTACKS.entry(self.attack).facts["task"] == "pixels" else "labels"
        if self.pictures.kind != wanted:
            remedy = " (masks are attacked by segmentation)" if self.pictures.kind == "masks" else ""
            raise DataError(f"{self.attack} needs {wanted}, these pictures have {self.pictures.kind}{remedy}")
        if self.compiler is not None:
            check_compiler(self.compiler)

    @property
    def judged(self) -> nn.Module:
        """The model that decides what counts as a success."""
        return self.victim or self.model

    def key(self) -> str:
        """Names the result: the same key, the same shards, bit for bit."""
        facts = [
            "shards-2", self.attack, str(self.threat), self.settings, self.identity, self.batch,
            self.precision, self.compiler, self.pictures.digest(), self.pictures.size, self.pictures.how,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def batches(self) -> list[PictureSet]:
        places = range(len(self.pictures))
        return [self.pictures.take(places[i : i + self.batch]) for i in range(0, len(places), self.batch)]


@dataclass(frozen=True)
class Shard:
    """One finished batch: adversarial pictures, uint8 (B 3 H W), and their outcomes.

    `facts` hold what became of each picture; where there are masks, `counts` (B K K) of its pixels.
    """

    adv: torch.Tensor
    facts: dict[str, Any]
    counts: torch.Tensor | None = None


def craft(job: Job, folder: Path, report: Report) -> Trial:
    """Make all missing shards in `folder`, then tell what became of every picture."""
    if job.pictures.kind != "labels":
        raise DataError("pictures with masks are crafted by craft_masks, which scores their pixels")
    _fill(job, folder, report)
    return _trial(job, folder)


def craft_masks(job: Job, folder: Path, report: Report) -> tuple[MaskScore, MaskScore]:
    """The same for pictures with masks: the judged model's score on clean and on attacked pictures."""
    if job.pictures.kind != "masks":
        raise DataError("pictures with labels are crafted by craft, which says who is still right")
    _fill(job, folder, report)
    device = next(job.judged.parameters()).device
    clean = score_masks(lambda x: job.judged(x.to(device)).cpu(), job.pictures, batch=job.batch)
    counts = (shard.counts for shard in shards(folder, len(job.batches())))
    return clean, score_of((c for c in counts if c is not None), len(job.pictures.classes))


def _fill(job: Job, folder: Path, report: Report) -> None:
    """Make all missing shards; several processes share them out."""
    state = PartialState()
    _claim(folder, job)
    job.model.to(state.device)
    job.judged.to(state.device)
    for index, some in enumerate(job.batches()):
        path = _place(folder, index)
        if _is_done(path, some):
            report(len(some))
        elif index % state.num_processes == state.process_index:
            report(len(some), note=_make(job, some, state.device, path))
    state.wait_for_everyone()


def shards(folder: Path, count: int) -> Iterator[Shard]:
    """All finished shards in order; only one is in memory at a time."""
    for index in range(count):
        with safe_open(_place(folder, index), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            yield Shard(**tensors, facts=json.loads(file.metadata()["facts"]))


@torch.no_grad()
def clean_trial(job: Job) -> Trial:
    """The judged model on the untouched pictures, as a trial of no attack."""
    device = next(job.judged.parameters()).device
    seen = [job.judged(some.arrays()[0].to(device)).argmax(1) for some in job.batches()]
    predicted = torch.cat(seen).tolist()
    right = [p == y for p, y in zip(predicted, job.pictures.labels, strict=True)]
    return Trial("clean", "none", {}, right, predicted, [0.0] * len(right), forward=len(right))


def _make(job: Job, some: PictureSet, device: torch.device, path: Path) -> str:
    """Attack one batch, round to 8 bits inside the budget, judge what was rounded, and keep it."""
    x, y = (t.to(device) for t in some.arrays())
    start = time.monotonic()
    outcome = run_in(
        job.precision, job.attack, job.model, x, y, job.threat,
        victim=job.victim, batch=len(x), compiler=job.compiler, **job.settings,
    )  # fmt: skip
    adv = eight_bit(x, outcome.adv, job.threat)
    tensors = {"adv": levels(adv).cpu()}
    with torch.no_grad():
        output = job.judged(adv)
    if some.kind == "masks":
        counts = pixel_counts(output, y, len(some.classes))
        tensors["counts"] = counts.int().cpu()
        right = score_of([counts], len(some.classes)).accuracy
        verdict: dict[str, Any] = {"right": right}
        note = f"{sum(right) / len(right):.0%} of pixels right"
    else:
        predicted = output.argmax(1)
        verdict = {"right": (predicted == y).tolist(), "predicted": predicted.tolist()}
        note = f"{sum(verdict['right'])} of {len(x)} withstand"
    facts = verdict | {
        "clean": tensors_sha256({"x": x, "y": y}),
        "distance": job.threat.size(adv - x).tolist(),
        "forward": outcome.forward + len(x),
        "backward": outcome.backward,
        "seconds": time.monotonic() - start,
        "warnings": list(outcome.warnings),
    }
    with written_whole(path) as aside:
        save_file(tensors, aside, {"facts": json.dumps(facts)})
    return note


def _trial(job: Job, folder: Path) -> Trial:
    parts = [shard.facts for shard in shards(folder, len(job.batches()))]
    joined: dict[str, Any] = {
        name: [v for part in parts for v in part[name]] for name in ("right", "predicted", "distance")
    }
    return Trial(
        job.attack,
        str(job.threat),
        job.settings,
        **joined,
        forward=sum(part["forward"] for part in parts),
        backward=sum(part["backward"] for part in parts),
        seconds=sum(part["seconds"] for part in parts),
        warnings=sorted({name for part in parts for name in part["warnings"]}),
    )


def _claim(folder: Path, job: Job) -> None:
    """Mark a folder as this job's; a folder with shards of another job is refused."""
    mark = folder / "job.json"
    if mark.exists():
        held = json.loads(mark.read_text(encoding="utf-8")).get("key")
        if held != job.key():
            raise InputError(f"{folder} holds the shards of another run; choose another --out or remove it")
    else:
        write_json(mark, {"key": job.key(), "attack": job.attack, "threat": str(job.threat)})


def _place(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.safetensors"


def _is_done(path: Path, some: PictureSet) -> bool:
    """Whether a whole shard of these very pixels and labels is there; any other is made again."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
    except (OSError, SafetensorError, KeyError):
        return False
    return bool(facts["clean"] == tensors_sha256(dict(zip("xy", some.arrays(), strict=True))))
