"""The sample of an audit: drawn once by the first process, kept beside the shards, read by all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from robvit.attacks import frozen
from robvit.attacks.audited import distrust
from robvit.attacks.losses import margin
from robvit.audit import draw
from robvit.errors import InputError
from robvit.evaluation.attack_shards import Shards
from robvit.files import parse_json, read_text, write_json
from robvit.processes import processes

LOOKED_AT = 64  # of the sample, for masked gradients; the audit itself looks at all


@dataclass(frozen=True)
class Sample:
    """The names of the drawn survivors, their strata, and why gradients prove little, if they do.

    `drawn_from` names the job that left the survivors and how it was drawn, so that another's is refused.
    """

    names: list[str]
    strata: list[list[float]]
    doubt: str
    drawn_from: str


def draw_sample(last: Shards, size: int, seed: int, path: Path) -> Sample:
    """The sample of what the last attack left correct; every process gets the same, and a resumed run too."""
    state, key = processes(), f"{last.job.key()} {size} {seed}"
    if state.is_main_process and not path.exists():
        write_json(path, asdict(_drawn(last, size, seed, key)))
    state.wait_for_everyone()
    content: Any = parse_json(read_text(path, "an audit's sample"), path, "an audit's sample")
    try:
        sample = Sample(**content)
    except TypeError as error:
        raise InputError(f"{path} holds no audit's sample: {error}; remove it") from None
    if sample.drawn_from != key:
        raise InputError(f"{path} is of another run; choose another --out or remove it")
    return sample


@torch.no_grad()
def _drawn(last: Shards, size: int, seed: int, key: str) -> Sample:
    """Margins are of the images as the last attack left them: how near each survivor came to falling."""
    job, margins = last.job, dict[str, float]()
    device = processes().device
    with frozen(job.judged):
        for some, shard in zip(job.batches(), last, strict=True):
            adv, y = shard.adv.to(device).float() / 255, some.tensors()[1].to(device)
            found = zip(some.names, margin(job.judged(adv), y).tolist(), shard.facts["correct"], strict=True)
            margins |= {name: value for name, value, correct in found if correct}
        drawn = draw(margins, size, seed)
        doubt = ""
        if drawn.names:
            assert job.threat is not None
            places = {name: place for place, name in enumerate(job.images.names)}
            x, y = job.images.take([places[name] for name in drawn.names[:LOOKED_AT]]).tensors()
            doubt = distrust(job.judged, x.to(device), y.to(device), job.threat)
    return Sample(drawn.names, drawn.strata, doubt, key)
