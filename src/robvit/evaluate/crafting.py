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

from robvit.attacks.pixels import eight_bit
from robvit.attacks.precision import run_in
from robvit.data import PictureSet
from robvit.errors import DataError, InputError
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

    def __post_init__(self) -> None:
        if self.pictures.kind != "labels":
            raise DataError(f"attacks on a classifier need labels, these pictures have {self.pictures.kind}")

    def key(self) -> str:
        """Names the result: the same key, the same shards, bit for bit."""
        facts = [
            "shards-1", self.attack, str(self.threat), self.settings, self.identity, self.batch,
            self.precision, self.pictures.digest(), self.pictures.size, self.pictures.how,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def batches(self) -> list[PictureSet]:
        places = range(len(self.pictures))
        return [self.pictures.take(places[i : i + self.batch]) for i in range(0, len(places), self.batch)]


@dataclass(frozen=True)
class Shard:
    """One finished batch: adversarial pictures, uint8 (B 3 H W), and their outcomes."""

    adv: torch.Tensor
    facts: dict[str, Any]


def craft(job: Job, folder: Path, report: Report) -> Trial:
    """Make all missing shards in `folder`, then tell what became of every picture."""
    state = PartialState()
    _claim(folder, job)
    device = state.device
    job.model.to(device)
    if job.victim is not None:
        job.victim.to(device)
    for index, some in enumerate(job.batches()):
        path = _place(folder, index)
        if _is_done(path, some):
            report(len(some))
        elif index % state.num_processes == state.process_index:
            facts = _make(job, some, device, path)
            report(len(some), note=f"{sum(facts['right'])} of {len(some)} withstand")
    state.wait_for_everyone()
    return _trial(job, folder)


def shards(folder: Path, count: int) -> Iterator[Shard]:
    """All finished shards in order; only one is in memory at a time."""
    for index in range(count):
        with safe_open(_place(folder, index), "pt") as file:
            yield Shard(file.get_tensor("adv"), json.loads(file.metadata()["facts"]))


@torch.no_grad()
def clean_trial(job: Job) -> Trial:
    """The judged model on the untouched pictures, as a trial of no attack."""
    judged = job.victim or job.model
    device = next(judged.parameters()).device
    predicted = [p for some in job.batches() for p in judged(some.arrays()[0].to(device)).argmax(1).tolist()]
    right = [p == y for p, y in zip(predicted, job.pictures.labels, strict=True)]
    return Trial("clean", "none", {}, right, predicted, [0.0] * len(right), forward=len(right))


def _make(job: Job, some: PictureSet, device: torch.device, path: Path) -> dict[str, Any]:
    """Attack one batch, round to 8 bits inside the budget, judge what was rounded, and keep it."""
    x, y = (t.to(device) for t in some.arrays())
    start = time.monotonic()
    outcome = run_in(
        job.precision,
        job.attack,
        job.model,
        x,
        y,
        job.threat,
        victim=job.victim,
        batch=len(x),
        **job.settings,
    )
    adv = eight_bit(x, outcome.adv, job.threat)
    with torch.no_grad():
        predicted = (job.victim or job.model)(adv).argmax(1)
    facts = {
        "clean": tensors_sha256({"x": x}),
        "right": (predicted == y).tolist(),
        "predicted": predicted.tolist(),
        "distance": job.threat.size(adv - x).tolist(),
        "forward": outcome.forward + len(x),
        "backward": outcome.backward,
        "seconds": time.monotonic() - start,
        "warnings": list(outcome.warnings),
    }
    with written_whole(path) as aside:
        save_file({"adv": levels(adv).cpu()}, aside, {"facts": json.dumps(facts)})
    return facts


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
    """Whether a whole shard of these very pixels is there; any other is made again."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
    except (OSError, SafetensorError, KeyError):
        return False
    return bool(facts["clean"] == tensors_sha256({"x": some.arrays()[0]}))
