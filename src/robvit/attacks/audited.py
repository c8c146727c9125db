"""AutoAttack at a fraction of its cost: its gradient attacks in full, the others on a sample (2003.01690).

FAB and Square take four fifths of AutoAttack's passes and break next to nothing that targeted APGD left. So
they try a random sample of the survivors, which bounds what they would break among all of them; if one
falls, or the gradient is not to be trusted, they try all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

from robvit.attacks.best import Best
from robvit.attacks.core import ATTACKS, Model, misclassified, require_labels, supported
from robvit.attacks.losses import margin
from robvit.attacks.pgd import pgd
from robvit.attacks.sanity import RandomisedOutput, SoftmaxOutput, ZeroGradient, doubts
from robvit.audit import Audit, bound, draw
from robvit.autoattack import AUDITED, NAME, SCREENED, SCREENING, is_audited, part_settings
from robvit.errors import InputError
from robvit.statistics import surely_above
from robvit.tensor_files import tensors_sha256
from robvit.threat import Threat

SCREENING_STEPS = 20  # steps on the margin before the long runs: what falls to them need not wait
MASKING = (ZeroGradient, SoftmaxOutput, RandomisedOutput)  # warnings after which gradients prove little
HUGE = 0.5  # a change of every value by so much can hide any image
HUGE_STEPS, HUGE_LEFT = 20, 0.05  # of the attack with that budget, and the share that it may leave

_AUDITS: ContextVar[list[Audit] | None] = ContextVar("audits", default=None)

Settings = dict[str, dict[str, Any]]


@contextmanager
def audits_inside() -> Iterator[list[Audit]]:
    """A list that takes every audit made inside: an attack returns images and nothing else."""
    made: list[Audit] = []
    before = _AUDITS.set(made)
    try:
        yield made
    finally:
        _AUDITS.reset(before)


def audited_settings(threat: Threat, steps: int, targets: int, queries: int) -> Settings:
    """The settings of each attack; draws are the standard version's, so the same images survive or fewer."""
    parts = part_settings(threat.sparse, steps, targets, queries)
    parts["apgd_t"]["candidates"] = parts["apgd_t"]["targets"]
    return {SCREENING: {"loss": "margin", "steps": SCREENING_STEPS}, **parts}


def refuse_batches(attack: object, settings: Mapping[str, Any]) -> None:
    """Refuse the audited version where an attack sees a part of the images only: a sample is of all."""
    if is_audited(attack, settings):
        raise InputError(
            "version audited draws its sample from all images at once, and these come in batches; judge by "
            "the protocol linf-8-audited@1 or its like, or pass all images with batch=len(x)"
        )


def autoattack_audited(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    settings: Settings,
    audit: int,
    judge: Model | None = None,
    early_stop: bool = True,
    batch: int = 128,
    seed: int = 0,
) -> tuple[torch.Tensor, Audit]:
    """Adversarial images (B 3 H W), and the audit of those that stay correct; x is what it is drawn from.

    `settings` are those of each attack (`audited_settings`), `audit` is the size of the sample, `batch` how
    many images are attacked at once; the other settings are those of `autoattack`.
    """
    labels, best = require_labels(y, NAME), Best(x, early_stop or judge is not None)

    def go_on(names: tuple[str, ...], places: torch.Tensor) -> None:
        """Attack what is still correct among these places; whatever breaks is kept."""
        for name in names:
            given = supported(name, seed=seed, early_stop=early_stop and judge is None) | settings[name]
            for rows in places[~best.success[places]].split(batch):
                if not len(rows):
                    return
                adv = ATTACKS[name](model, x[rows], labels[rows], threat, **given)
                output = (judge or model)(adv)
                best.offer(rows, adv, margin(output, labels[rows]), misclassified(output, labels[rows]))

    go_on(SCREENED, torch.arange(len(x), device=x.device))
    left = (~best.success).nonzero()[:, 0]
    keys = [tensors_sha256({"x": image}) for image in x[left].cpu()]
    names = [f"{key} {place}" for key, place in zip(keys, _nth(keys), strict=True)]
    drawn = draw(dict(zip(names, best.value[left].tolist(), strict=True)), audit, seed)
    sample = left[torch.tensor([names.index(name) for name in drawn.names], dtype=torch.long)]
    doubt = distrust(judge or model, x[sample], labels[sample], threat)
    if not doubt:
        go_on(AUDITED, sample)
    successes = sample[best.success[sample]].sort().values.tolist()
    tried = 0 if doubt else len(sample)
    found = Audit(list(AUDITED), audit, seed, len(left), tried, successes, drawn.strata)
    found = concluded(found, doubt)
    if found.switched:
        go_on(AUDITED, left)
    if (told := _AUDITS.get()) is not None:
        told.append(found)
    return best.adv, found


def _nth(keys: list[str]) -> list[int]:
    """How many equal ones stand before each: images may repeat."""
    return [keys[:place].count(key) for place, key in enumerate(keys)]


def concluded(audit: Audit, doubt: str = "") -> Audit:
    """The audit with its bound, or with the reason why the whole run must be done."""
    if doubt:
        return replace(audit, switched=doubt)
    if audit.successes and audit.audited < audit.survivors:
        fell = f"{len(audit.successes)} of {audit.audited:,} audited survivors fell"
        return replace(audit, switched=fell)
    return replace(audit, bound=bound(audit.strata, audit.confidence))


def distrust(model: Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, batch: int = 32) -> str:
    """Why gradients on these survivors (B 3 H W) prove little, in words; empty if they seem sound.

    A gradient that is zero, outputs that are probabilities or random, or images that stay correct under a
    budget that could turn them grey: each a red check of the doctor's.
    """
    if not len(x):
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clean = model(x[:batch])
        seen = doubts(model, x[:batch], y[:batch], clean, gradients=True, steady=True)
    red = [kind.__name__ for kind in MASKING if kind.__name__ in seen]
    if red:
        return f"gradients may be masked ({', '.join(red)})"
    huge = replace(threat, eps=float(threat.size(torch.full_like(x[:1], HUGE))), psnr=None)
    left = 0
    for some, labels in zip(x.split(batch), y.split(batch), strict=True):
        adv = pgd(model, some, labels, huge, steps=HUGE_STEPS)
        left += int((~misclassified(model(adv), labels)).sum())
    if surely_above(left, len(x), HUGE_LEFT):
        return f"gradients may be masked ({left} of {len(x)} images stay correct at {huge})"
    return ""
