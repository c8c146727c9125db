"""Tokens on an adversarially trained backbone, which the paper calls orthogonal and does not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robvit.defenses.tokens import RobustTokens
from robvit.evaluation.protocol import CONTROLS
from robvit.record import Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import with_interval
from robvit.studies.rob.common import PAPER
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.rob.variants import INSIDER, HeadSource, TokenFiles, judge_attacked, prepare_variants
from robvit.verdict import claim_of

ROWS = (*CONTROLS, "tokens", INSIDER)


@study(
    "rob-orthogonal",
    paper=PAPER,
    title="section 3: tokens on an adversarially trained backbone, beside the standard one",
    effort=TokenEffort(),
)
def orthogonal(
    context: StudyContext,
    effort: TokenEffort,
    *,
    standard: str = "robvit-mini",
    robust: str = "robvit-mini-robust",
    tokens: str = "",
    robust_tokens: str = "",
    head: int = 0,
    attack_steps: int = 20,
) -> Record:
    """Both backbones with and without tokens, attacked without knowing the tokens and knowing them.

    `tokens` are those of the standard one, `robust_tokens` of the other; they are learned if left out.
    """
    attempt = effort.class_attack(attack_steps, context.seed)
    found: dict[str, dict[str, Trial]] = {}
    trials, rows, sets = list[Trial](), list[list[Any]](), list[RobustTokens]()
    for name, file in ((standard, tokens), (robust, robust_tokens)):
        at = replace(context, model=name, out=context.out / name)
        variants = prepare_variants(at, effort, HeadSource(head), TokenFiles(file), images=64)
        sets.append(variants.tokens)
        judged = judge_attacked(at, variants, attempt)
        clean = {t.scenario: t for t in judged if t.kind == "clean"}
        attacked = {t.scenario: t for t in judged if t.kind == "attack"}
        found[name] = attacked
        trials += [replace(t, scenario=f"{name}: {t.scenario}", shards="", shards_sha256="") for t in judged]
        for row in ROWS:
            cells = (with_interval(side[row].correct) for side in (clean, attacked))
            rows.append([f"{name}, {row}", *cells])
    bare, hardened, known = (found[robust][row].correct for row in ("no tokens", "tokens", INSIDER))
    other = found[standard]["tokens"].correct
    claims = [
        claim_of(f"{robust}: tokens over none, attacker without them", hardened, bare),
        claim_of(f"{robust}: tokens over none, attacker knows them", known, bare),
        claim_of(f"tokens on {robust} over tokens on {standard}, attacker without them", hardened, other),
    ]
    record = context.record(variants.model, variants.judged, trials=trials, claims=claims)
    columns = ["backbone and tokens", "clean, %", f"{attempt.title} within {attempt.threat}, %"]
    note = f"Attacked without tokens unless the attacker knows them; 95 % intervals. {effort.told(*sets)}"
    title = "Tokens on a robust backbone"
    record.tables = [Table(title, columns, rows, note), claims_table(claims)]
    return record
