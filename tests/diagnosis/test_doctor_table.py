"""The doctor's own examination, whole: every defence under its checks, honest models under all.

The first check that is named for a defence is asked in test_doctor.py.
"""

from __future__ import annotations

import pytest
import torch

import robvit
from robvit.data import open_data
from robvit.diagnosis.broken_defenses import BROKEN_DEFENSES
from robvit.diagnosis.checks import CHECKS
from robvit.diagnosis.doctor import doctor

SMALL = {"steps": 8, "restarts": 2, "queries": 60, "draws": 20}
FEW = {"steps": 5, "restarts": 2, "queries": 20, "draws": 8}  # where nothing is to be found
# What the first two find is a weakness of the attack, not of the model; the third has a test of its own.
NEVER_RED = {"more_restarts", "eight_bit", "attention_scaling"}

pytestmark = pytest.mark.slow


def honest(name: str) -> object:
    if name != "plain timm":
        return robvit.load(name)
    mini = robvit.load("robvit-mini")
    net, mean, std = mini.net, mini.mean, mini.std
    return lambda x: net((x - mean) / std)


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("robvit-mini", None),
        ("robvit-mini-robust", None),
        ("plain timm", ["attention_underflow", "attention_scaling", "eight_bit"]),
    ],
)
def test_honest_models_pass(name: str, checks: list[str] | None) -> None:
    record = doctor(honest(name), open_data("sample", limit=8), **FEW, checks=checks)
    assert [f for f in record.findings if f.status == "red"] == []
    attention = next(f for f in record.findings if f.check == "attention_underflow")
    assert attention.status == "green"  # so the attention was found, in the function too


@pytest.mark.weights
def test_a_foundation_model_with_a_head_passes() -> None:
    from robvit.backbones.heads import HEADS

    model = robvit.load("dinov2-small", img_size=56)
    train = open_data("sample", split="train", size=56, limit=100)
    model = model.replace(head=HEADS["linear"].fit(model, train.batches(32), 10, names=train.classes))
    images = open_data("sample", size=56, limit=4)
    threat = robvit.Threat("linf", 4 / 255)
    record = doctor(model, images, threat=threat, steps=4, restarts=2, queries=10, draws=4)
    assert [f for f in record.findings if f.status == "red"] == []


@pytest.mark.parametrize("name", [p.name for p in BROKEN_DEFENSES if p.info.caught_by[1:]])
def test_every_further_check_named_for_a_defence_turns_red(name: str) -> None:
    defense = BROKEN_DEFENSES.entry(name)
    torch.manual_seed(0)
    named = defense.info.caught_by[1:]
    record = doctor(
        defense.value(robvit.load("robvit-mini")), open_data("sample", limit=16), **SMALL, checks=named
    )
    assert {f.check: f.status for f in record.findings} == dict.fromkeys(named, "red")


def test_attention_that_saturates_opens_the_aas_gap() -> None:
    hot = BROKEN_DEFENSES["hot_attention"](robvit.load("robvit-mini"))
    threat = robvit.Threat("linf", 2 / 255)
    record = doctor(hot, open_data("sample", limit=16), threat=threat, **SMALL, checks=["attention_scaling"])
    assert record.findings[0].status != "green"


def test_every_check_that_can_be_red_has_a_defense() -> None:
    caught = {check for defense in BROKEN_DEFENSES for check in defense.info.caught_by}
    assert caught | NEVER_RED == {check.name for check in CHECKS}
