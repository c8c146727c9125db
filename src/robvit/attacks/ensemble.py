"""Several attacks as one: each goes on where those before had no success. No attack maths."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from robvit.attacks.audited import audited_settings, autoattack_audited
from robvit.attacks.best import Best
from robvit.attacks.core import ATTACKS, AttackCheck, Model, attack, misclassified, require_labels, supported
from robvit.attacks.eot import eot
from robvit.attacks.losses import margin
from robvit.attacks.sanity import AuditedSample
from robvit.audit import SIZE
from robvit.autoattack import PARTS, QUERIES, RAND, STEPS, TARGETS, part_settings
from robvit.errors import InputError
from robvit.threat import NORMS, Threat


@attack(
    kind="budget", norms=NORMS, paper="2003.01690", check=AttackCheck({"settings": {"pgd": {"steps": 3}}})
)
def worst_of(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    attacks: Sequence[str] = ("pgd", "apgd_dlr"),
    settings: dict[str, dict[str, Any]] | None = None,
    judge: Model | None = None,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """The worst case of several attacks for each image. x (B 3 H W) in [0,1], y (B,).

    attacks: names, in the order in which they run; each sees what the ones before left.
    settings: those of single attacks by name.
    judge: decides what is misclassified, the model itself if left out; an image leaves once it errs. With
        a judge each attack runs to its full objective whatever the model thinks.
    early_stop: images leave once they are misclassified, also inside the attacks.
    seed: passed on to every attack.
    """
    labels, best = require_labels(y, "worst_of"), Best(x, early_stop or judge is not None)
    for name in attacks:
        rows = best.survivors()
        if not len(rows):
            break
        given = supported(name, seed=seed, early_stop=early_stop and judge is None)
        given |= (settings or {}).get(name, {})
        adv = ATTACKS[name](model, x[rows], labels[rows], threat, **given)
        output = (judge or model)(adv)
        best.offer(rows, adv, margin(output, labels[rows]), misclassified(output, labels[rows]))
    return best.adv


@attack(
    kind="budget",
    norms=NORMS,
    paper="2003.01690",
    check=AttackCheck({"steps": 4, "targets": 2, "queries": 8}, {"queries": 50}),
)
def autoattack(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    version: str = "standard",
    steps: int = STEPS,
    targets: int = TARGETS,
    queries: int = QUERIES,
    audit: int = SIZE,
    averaged: int = 20,
    judgements: int = 100,
    judge: Model | None = None,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """AutoAttack. x (B 3 H W) in [0,1], y (B,); models of few classes have fewer targets.

    version: "standard" is APGD-CE, targeted APGD, targeted FAB and Square, in L1 with five starts of the
        first and five targets of the second; "audited" is the same, but only a sample of what the first
        two leave goes through the others, unless one of it falls; a warning (`AuditedSample`) then says what
        that bounds, and `robvit.attacks.audited.autoattack_audited` returns it too. "rand", for randomised
        models, is APGD-CE and APGD-DLR on means of passes.
    steps: of each gradient attack.
    targets: of targeted APGD and FAB.
    queries: of Square.
    audit: "audited": the size of the sample, which is drawn from the images of the call.
    averaged: "rand": passes whose mean is attacked.
    judgements: "rand": fresh passes whose mean decides, never those on which a point was chosen.
    judge: decides what is misclassified, the model itself if left out.
    early_stop: images leave once they are misclassified.
    seed: passed on to every attack.
    """
    if version == "audited":
        given = audited_settings(threat, steps, targets, queries)
        adv, found = autoattack_audited(
            model, x, y, threat, settings=given, audit=audit, judge=judge, early_stop=early_stop, seed=seed
        )
        if found.bound:
            warnings.warn(str(found), AuditedSample, stacklevel=3)
        return adv
    if version == "standard":
        return worst_of(
            model,
            x,
            y,
            threat,
            attacks=tuple(PARTS),
            judge=judge,
            early_stop=early_stop,
            seed=seed,
            settings=part_settings(threat.sparse, steps, targets, queries),
        )
    if version == "rand":
        return worst_of(
            eot(model, averaged),
            x,
            y,
            threat,
            attacks=RAND,
            seed=seed,
            judge=eot(judge or model, judgements),
            settings={name: {"steps": steps} for name in RAND},
        )
    raise InputError(f'version must be "standard", "audited" or "rand", got {version!r}')
