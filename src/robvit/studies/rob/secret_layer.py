"""Beyond the paper: does it help that attackers do not know the layer that the tokens enter?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from robvit.errors import InputError
from robvit.evaluation.attackers import scenario_of
from robvit.evaluation.compare import check_same_images, open_record
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study, told
from robvit.studies.judging import with_interval
from robvit.studies.rob.common import PAPER
from robvit.verdict import claim_of

PUBLIC, KNOWS, GUESSES = (
    scenario_of(name, tokens=True) for name in ("no-tokens", "own-tokens", "guess-layer")
)
NOTE = (
    "The worst case of each attacker's surrogates, image by image, with 95 % intervals. Whoever guesses has "
    "a set for each of several layers, and so more surrogates than whoever knows."
)


@study(
    "rob-secret-layer", paper=PAPER, title="beyond the paper: whether a secret layer helps, from two records"
)
def secret_layer(context: StudyContext, *, known: str = "", guessed: str = "") -> Record:
    """Records of rob-levels-known@1 and rob-levels-layer@1 on the same images with the same tokens.

    A secret layer helps if guessing leaves more than knowing. Whoever guesses must still break more than an
    attacker without tokens, or their surrogates were of no use at all.
    """
    first, second = _opened(known, KNOWS, "known"), _opened(guessed, GUESSES, "guessed")
    check_same_images(first, second)
    if first.model != second.model:
        raise InputError(f"{known} and {guessed} must be of one model with the same tokens, got two models")
    told(int(first.data["count"]))
    left = {name: first.still_correct(name) for name in (PUBLIC, KNOWS)}
    left[GUESSES] = second.still_correct(GUESSES)
    claims = [
        claim_of(
            "a secret layer: left where it is guessed over where it is known", left[GUESSES], left[KNOWS]
        ),
        claim_of(
            "surrogates of guessed layers: left without any over with them", left[PUBLIC], left[GUESSES]
        ),
    ]
    rows: list[list[Any]] = [[name, with_interval(correct)] for name, correct in left.items()]
    table = Table("Does a secret layer help?", ["attacker", "accuracy left, %"], rows, NOTE)
    judged = (*first.trials, *(t for t in second.trials if t.scenario == GUESSES))
    trials = [replace(trial, shards="", shards_sha256="") for trial in judged]
    record = Record("study", first.model, first.data, trials=trials, claims=claims)
    record.tables = [table, claims_table(claims)]
    return record


def _opened(path: str, scenario: str, name: str) -> Record:
    """A record with the attacker that is asked for."""
    if not path:
        raise InputError(f"say which record has the scenario {scenario!r}: --set {name}=FOLDER/record.json")
    record = open_record(Path(path))
    if scenario not in record.scenarios():
        got = ", ".join(filter(None, record.scenarios())) or "none"
        raise InputError(f"{path}: expected the scenario {scenario!r}, got {got}")
    return record
