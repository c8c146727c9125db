"""Attacking a whole data set: batch by batch into shards, so that it can be killed, resumed and shared out.

A shard is the unit of work. It holds one batch of adversarial images as 8-bit values and what became
of each. A run that is started again goes on with the shards that are missing; several processes
(`accelerate launch`) take turns. Since no attack depends on its batch, the result is the same.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from robvit.attacks import ATTACKS, frozen, run
from robvit.attacks.compiled import check_compiler
from robvit.attacks.pixels import eight_bit
from robvit.attention import class_attention
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.errors import DataError, InputError
from robvit.evaluation.masks import MaskScore, pixel_counts, score_masks, score_of
from robvit.evaluation.trials import clean_trial
from robvit.files import parse_json, read_tensors, read_text, tensors_sha256, write_json, written_whole
from robvit.processes import processes
from robvit.progress import Advance
from robvit.record import Trial
from robvit.threat import Threat

SHOWN = 1000  # a report's gallery holds no more images, so attention is kept for no more


def levels(x: torch.Tensor) -> torch.Tensor:
    """Pixels in [0,1] as grey levels: floats to uint8 of the same shape."""
    return (x * 255).round().to(torch.uint8)


@dataclass(frozen=True)
class Job:
    """What is done to every image, and all that its result depends on.

    With a `victim`, images are made on `model` and judged on the victim (transfer). `identity` names
    weights and everything else that decides the models' outputs. The attack "clean" leaves images as
    they are and has no threat. With a `source`, images are not made but taken from the shards of
    another job. With an `original`, the cosine of the judged model's features with its is measured.
    """

    attack: str
    threat: Threat | None
    settings: dict[str, Any]
    model: nn.Module
    identity: str
    images: ImageDataset
    victim: nn.Module | None = None
    batch: int = 32
    precision: str = "fp32"
    compiler: str | None = None
    source: Path | None = None
    original: Model | None = None

    def __post_init__(self) -> None:
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
        """Whether adversarial images come of it, which its shards then hold."""
        return self.threat is not None and self.source is None

    def key(self) -> str:
        """Names the result: the same key, the same shards, bit for bit."""
        made = None if self.source is None else _held_key(self.source)
        facts = [
            "shards-4",
            made,
            self.original is not None,
            self.attack,
            str(self.threat),
            self.settings,
            self.identity,
            self.batch,
            self.precision,
            self.compiler,
            self.images.digest(),
            self.images.size,
            self.images.resize,
            self.images.class_map,
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def batches(self) -> list[ImageDataset]:
        places = range(len(self.images))
        return [self.images.take(places[i : i + self.batch]) for i in range(0, len(places), self.batch)]


@dataclass(frozen=True)
class Shard:
    """One finished batch: adversarial images, uint8 (B 3 H W), and their outcomes.

    `facts` hold what became of each image; where there are masks, `counts` (B K K) of its pixels. A job
    that makes no images of its own keeps none. `attention` (B 2 h w), uint8, is where the judged model's
    class token looks, before and after the attack.
    """

    adv: torch.Tensor
    facts: dict[str, Any]
    counts: torch.Tensor | None = None
    attention: torch.Tensor | None = None


@dataclass(frozen=True)
class _Made:
    """Images to be judged (B 3 H W) and what they cost."""

    adv: torch.Tensor
    forward: int = 0
    backward: int = 0
    warnings: tuple[str, ...] = ()


def craft(job: Job, folder: Path, progress: Advance) -> Trial:
    """Make all missing shards in `folder`, then tell what became of every image."""
    if job.images.kind != "labels":
        raise DataError("images with masks are crafted by attack_masks, which scores their pixels")
    _fill(job, folder, progress)
    return _trial(job, folder)


def attack_masks(job: Job, folder: Path, progress: Advance) -> tuple[MaskScore, MaskScore]:
    """The same for images with masks: the judged model's score on clean and on attacked images."""
    if job.images.kind != "masks":
        raise DataError("images with labels are crafted by craft, which says who is still right")
    _fill(job, folder, progress)
    device = next(job.judged.parameters()).device
    clean = score_masks(lambda x: job.judged(x.to(device)).cpu(), job.images, batch=job.batch)
    counts = (shard.counts for shard in shards(folder, len(job.batches())))
    return clean, score_of((c for c in counts if c is not None), len(job.images.classes))


def _fill(job: Job, folder: Path, progress: Advance) -> None:
    """Make all missing shards; several processes share them out."""
    state = processes()
    _claim(folder, job)
    for network in {job.model, job.judged, *([job.original] if job.original else [])}:
        network.to(state.device)
    correct: list[float] = []
    for index, some in enumerate(job.batches()):
        path = _place(folder, index)
        facts = _done(path, some)
        if facts is None and index % state.num_processes == state.process_index:
            facts = _make(job, some, index, state.device, path)
        if facts is not None:
            correct += facts["correct"]
            progress(len(some), note=_note(correct, some.kind))
    state.wait_for_everyone()


def shards(folder: Path, count: int) -> Iterator[Shard]:
    """All finished shards in order; only one is in memory at a time."""
    for index in range(count):
        with safe_open(_place(folder, index), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            yield Shard(**tensors, facts=json.loads(file.metadata()["facts"]))


def cosines(job: Job, folder: Path) -> dict[str, float]:
    """Mean cosines of the judged model's features with the original's clean ones and with its own."""
    parts = [shard.facts["cosine"] for shard in shards(folder, len(job.batches()))]
    return {
        name: sum(v for part in parts for v in part[name]) / len(job.images) for name in ("original", "own")
    }


@torch.no_grad()
def judge_clean(job: Job) -> Trial:
    """The judged model on the untouched images, as a trial of no attack."""
    device = next(job.judged.parameters()).device
    seen = [job.judged(some.tensors()[0].to(device)).argmax(1) for some in job.batches()]
    predicted = torch.cat(seen).tolist()
    correct = [p == y for p, y in zip(predicted, job.images.labels, strict=True)]
    return clean_trial(correct, predicted)


def _make(job: Job, some: ImageDataset, index: int, device: torch.device, path: Path) -> dict[str, Any]:
    """Have one batch made, judge what was made, and keep it."""
    x, y = (t.to(device) for t in some.tensors())
    start = time.monotonic()
    made = _images(job, x, y, index)
    own = job.makes_images
    tensors = {"adv": levels(made.adv).cpu() if own else torch.zeros(0, dtype=torch.uint8)}
    with torch.no_grad(), frozen(job.judged):
        output = job.judged(made.adv)
        verdict: dict[str, Any] = {"cosine": _cosines(job, x, made.adv)}
        if own and index * job.batch < SHOWN:
            tensors |= _attention(job.judged, x, made.adv)
    if some.kind == "masks":
        counts = pixel_counts(output, y, len(some.classes))
        tensors["counts"] = counts.int().cpu()
        verdict["correct"] = score_of([counts], len(some.classes)).accuracy
    else:
        predicted = output.argmax(1)
        verdict |= {"correct": (predicted == y).tolist(), "predicted": predicted.tolist()}
    facts = verdict | {
        "clean": tensors_sha256({"x": x, "y": y}),
        "distance": (job.threat.size(made.adv - x) if job.threat else torch.zeros(len(x))).tolist(),
        "forward": made.forward + len(x),
        "backward": made.backward,
        "seconds": time.monotonic() - start,
        "warnings": list(made.warnings),
    }
    with written_whole(path) as aside:
        text = json.dumps(facts)
        save_file(tensors, aside, {"facts": text, "sha256": _checksum(tensors, text)})
    return facts


def _images(job: Job, x: torch.Tensor, y: torch.Tensor, index: int) -> _Made:
    """The batch as it is, from another job's shard, or attacked and rounded to 8 bits inside the budget."""
    if job.source is not None:
        with safe_open(_place(job.source, index), "pt") as file:
            return _Made(file.get_tensor("adv").to(x.device, x.dtype) / 255)
    if job.threat is None:
        return _Made(x)
    outcome = run(
        job.attack,
        job.model,
        x,
        y,
        job.threat,
        victim=job.victim,
        batch=len(x),
        precision=job.precision,
        compiler=job.compiler,
        **job.settings,
    )
    adv = eight_bit(x, outcome.adv, job.threat)
    return _Made(adv, outcome.forward, outcome.backward, outcome.warnings)


def _cosines(job: Job, x: torch.Tensor, adv: torch.Tensor) -> dict[str, list[float]]:
    """For each image the mean over tokens; nothing where nobody asks."""
    if job.original is None:
        return {}
    assert isinstance(job.judged, Model)
    after, before = job.judged.features(adv), job.judged.features(x)
    return {
        "original": F.cosine_similarity(after, job.original.features(x), dim=-1).mean(1).tolist(),
        "own": F.cosine_similarity(after, before, dim=-1).mean(1).tolist(),
    }


def _attention(judged: nn.Module, x: torch.Tensor, adv: torch.Tensor) -> dict[str, torch.Tensor]:
    """Where the judged model looks, each map stretched over 0 to 255; nothing where it has no such maps."""
    model = judged if isinstance(judged, Model) else getattr(judged, "net", None)
    looks = [class_attention(model, t) for t in (x, adv)] if isinstance(model, Model) else [None]
    if any(look is None for look in looks):
        return {}
    maps = torch.stack([look for look in looks if look is not None], dim=1)
    low, high = maps.amin((2, 3), keepdim=True), maps.amax((2, 3), keepdim=True)
    return {"attention": levels((maps - low) / (high - low).clamp_min(1e-12)).cpu()}


def _note(correct: list[float], kind: str) -> str:
    """What is left so far."""
    if kind == "masks":
        return f"{sum(correct) / len(correct):.0%} of pixels right"
    return f"{sum(correct)} of {len(correct)} withstand"


def _trial(job: Job, folder: Path) -> Trial:
    parts = [shard.facts for shard in shards(folder, len(job.batches()))]
    joined: dict[str, Any] = {
        name: [v for part in parts for v in part[name]] for name in ("correct", "predicted", "distance")
    }
    return Trial(
        job.attack,
        job.threat.budget if job.threat else None,
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
    if not mark.exists():
        write_json(mark, {"key": job.key(), "attack": job.attack, "threat": str(job.threat)})
    elif _held_key(folder) != job.key():
        raise InputError(f"{folder} holds the shards of another run; choose another --out or remove it")


def _held_key(folder: Path) -> Any:
    mark = folder / "job.json"
    content = parse_json(read_text(mark, "the mark of a run"), mark, "the mark of a run")
    return content.get("key") if isinstance(content, dict) else None


def _place(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.safetensors"


def _checksum(tensors: dict[str, torch.Tensor], facts: str) -> str:
    """Names all that a shard holds."""
    return hashlib.sha256(f"{tensors_sha256(tensors)} {facts}".encode()).hexdigest()


def _done(path: Path, some: ImageDataset) -> dict[str, Any] | None:
    """The facts of a whole shard of these very pixels and labels; any other is made again."""
    if not path.exists():
        return None
    try:
        tensors, about = read_tensors(path, "a shard")
        whole = about.get("sha256") == _checksum(tensors, about["facts"])
        facts: dict[str, Any] = json.loads(about["facts"])
        same = facts["clean"] == tensors_sha256(dict(zip("xy", some.tensors(), strict=True)))
    except (InputError, KeyError, TypeError, ValueError):
        return None
    return facts if whole and same else None
