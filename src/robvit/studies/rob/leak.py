"""Beyond the paper: what answers with features give away of secret tokens, by the number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.token_surrogates import recover_tokens
from robvit.progress import part_of, progress
from robvit.record import Curve, Record, Table
from robvit.studies.common import StudyContext, study
from robvit.studies.rob.common import PAPER, backbone, images_for, tokens_for
from robvit.studies.rob.effort import TokenEffort

EFFORT = TokenEffort()


@study("rob-leak", paper=PAPER, title="beyond the paper: tokens recovered from features", effort=EFFORT)
def leak_by_queries(
    context: StudyContext,
    effort: TokenEffort,
    *,
    tokens: str = "",
    answers: Sequence[int] = (1, 2, 4, 8, 16, 32),
    leak_steps: int = 300,
) -> Record:
    """Each query is one image whose features the attacker saw; judged on `images` that nobody asked about."""
    model = backbone(context, effort)
    learn, judged = images_for(context, effort, model, learn=effort.learn, judged=context.count(32))
    secret = tokens_for(context, effort, model, learn, tokens)
    hardened = model.replace(tokens=secret)
    rows: list[list[Any]] = [["no query: the public model", 1 - _cosine(model, hardened, judged)]]
    points = []
    with progress("recovering tokens", total=1) as advance:
        for count in answers:
            share = part_of(advance, 1 / len(answers), f"{count} answers")
            asked = learn.take(range(count))
            found = recover_tokens(hardened, asked, steps=leak_steps, batch=min(count, 16), progress=share)
            guess = model.replace(tokens=found, layers=hardened.layers)
            rows.append([str(count), 1 - _cosine(guess, hardened, judged)])
            points.append([count, rows[-1][1]])
    note = (
        f"{leak_steps} steps of Adam on the squared difference of features; 1 - cosine with the "
        f"hardened features, a mean over {len(judged)} images that were not asked about."
    )
    record = context.record(model, judged)
    title, axis = "What features give away", "1 - cosine with the hardened features"
    record.curves = [Curve(title, "queries", axis, {"recovered tokens": points}, note)]
    record.tables = [Table(title, ["queries", axis], [[name, f"{gap:.1e}"] for name, gap in rows], note)]
    return record


@torch.no_grad()
def _cosine(guess: Model, hardened: Model, images: ImageDataset) -> float:
    """The mean cosine of two models' features on the same images, in double precision."""
    parts = [
        F.cosine_similarity(guess.features(x).double(), hardened.features(x).double(), dim=-1).mean(1)
        for x, _ in images.batches(16)
    ]
    return float(torch.cat(parts).mean())
