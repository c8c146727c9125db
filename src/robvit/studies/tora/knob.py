"""Beyond the slides: the knob between accuracy and robustness, and TORA with the other systems."""

from __future__ import annotations

import torch

from robvit.backbones.model import Model
from robvit.evaluation.record import Curve, Record, Table, Trial
from robvit.studies.common import Request, study, study_record
from robvit.studies.rob.common import Effort as TokenEffort
from robvit.studies.rob.common import learned
from robvit.studies.tora.common import STRONG, Attempt, Effort, attacked, per_cent, subject, trained
from robvit.studies.tora.paper import PAPER


@study("tora-knob", paper=PAPER, title="One model, its trade-off moved after training")
def knob(
    request: Request,
    *,
    trades: tuple[float, ...] = (0.1, 0.5, 0.9),
    places: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9),
    learn: int = 1500,
    epochs: float = 3,
    fusion_epochs: float = 1,
    eps: float = 4 / 255,
    training: str = "",
    steps: int = 10,
) -> Record:
    """Fusions trained apart and interpolated ("states") against two ends trained together ("path")."""
    effort = Effort(learn, epochs, fusion_epochs, eps, training)
    held = subject(request, effort, 100)
    attempts: tuple[Attempt, ...] = (("clean", None, {}), ("pgd", STRONG[0], {"steps": steps}))
    trials, rows = list[Trial](), list[list[object]]()
    lines: dict[str, list[list[float]]] = {}
    for way in ("states", "path"):
        model = trained(request, held, effort, tuple(trades), knob=way)
        for place in places:
            model.trade_off = place
            scenario = f"{way}, {place:g}"
            found = attacked(request, model, model.identity(), held.judge, scenario, attempts)
            clean, robust = (per_cent(t) for t in found)
            trials += found
            known = "trained" if way == "states" and place in trades else "between"
            rows.append([scenario, clean, robust, known])
            lines.setdefault(f"{way}: clean", []).append([place, clean / 100])
            lines.setdefault(f"{way}: PGD {STRONG[0]}", []).append([place, robust / 100])
    record = study_record(held.request, held.model, held.judge, trials=trials)
    columns = ["knob, trade-off", "clean", f"PGD-{steps} {STRONG[0]}", ""]
    note = f"Both ways cost the same: {len(trades)} x {fusion_epochs:g} epochs of phase 2."
    record.tables = [Table("Accuracy and robustness along the knob", columns, rows, note)]
    record.curves = [Curve("The knob", "trade-off", "accuracy", lines)]
    return record


@study("tora-composed", paper=PAPER, title="TORA with robustness tokens, and attacked with scaled attention")
def composed(
    request: Request,
    *,
    trade: float = 0.5,
    learn: int = 1500,
    epochs: float = 3,
    fusion_epochs: float = 1,
    eps: float = 4 / 255,
    training: str = "",
    steps: int = 10,
    token_steps: int = 40,
    token_learn: int = 128,
) -> Record:
    """PGD and AAS of as many steps on TORA, with and without tokens that were learned for the backbone."""
    effort = Effort(learn, epochs, fusion_epochs, eps, training)
    held = subject(request, effort, 100)
    bare = trained(request, held, effort, (trade,))
    little = TokenEffort(learn=token_learn, steps=token_steps, attack_steps=4, eps=eps)
    images = held.splits.train.take(range(min(token_learn, len(held.splits.train))))
    tokens = learned(request, held.model, images, little.recipe(seed=request.seed)).tokens
    subjects: dict[str, Model] = {
        "backbone": held.model,
        "backbone, tokens": held.model.replace(tokens=tokens),
        "TORA": bare,
        "TORA, tokens": bare.replace(tokens=tokens),
    }
    attempts: tuple[Attempt, ...] = (
        ("clean", None, {}),
        ("pgd", STRONG[0], {"steps": steps}),
        ("aas", STRONG[0], {"steps": steps}),
    )
    trials, rows = list[Trial](), list[list[object]]()
    for scenario, model in subjects.items():
        found = attacked(request, model, model.identity(), held.judge, scenario, attempts)
        worst = torch.tensor([found[1].correct, found[2].correct]).all(0).float().mean()
        trials += found
        rows.append([scenario, *(per_cent(t) for t in found), 100 * float(worst)])
    record = study_record(held.request, held.model, held.judge, trials=trials)
    columns = ["", "clean", f"PGD-{steps}", f"AAS, PGD-{steps} inside", "worst of both"]
    note = (
        f"Per cent within {STRONG[0]}. Every attacker knows adapters and tokens. AAS crafts with scaled "
        "attention and is judged on the model as it is."
    )
    record.tables = [Table("TORA with the other systems", columns, rows, note)]
    return record
