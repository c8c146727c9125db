"""What is kept was checked as it is kept: after rounding, with one tolerance, for every attack."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import robvit
from robvit.attacks import ATTACKS, check_adversarial, run
from robvit.attacks.pixels import eight_bit
from robvit.data import open_data
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.errors import BrokenAttack
from robvit.threat import Threat


@pytest.mark.parametrize("eps", [0.031372, 8 / 255, 8.0001 / 255, 7.5 / 255])
def test_what_rounding_allows_the_check_allows(eps: float) -> None:
    """0.031372 is a little less than 8/255: rounding took eight levels of it, where seven are inside."""
    threat = Threat("linf", eps)
    x = (torch.rand(2, 3, 6, 6) * 255).round() / 255
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 3))
    outcome = run("pgd", net, x, net(x).argmax(1), threat, steps=3, eight_bit=True, early_stop=False)
    check_adversarial(x, outcome.adv, threat, eight_bit=True)
    assert float(outcome.distance.max()) <= eps + 2e-7
    with pytest.raises(BrokenAttack, match="must stay within"):
        check_adversarial(x, (x + 9 / 255).clamp(0, 1), threat, eight_bit=True)


def test_what_rounding_makes_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding to the nearest level makes two levels of 1.6: it must not come out, should it ever be back."""
    runner = sys.modules["robvit.attacks.run"]
    monkeypatch.setattr(runner, "whole_levels", lambda x, adv, threat: (adv * 255).round() / 255)
    x = torch.full((2, 3, 6, 6), 128 / 255)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 3))
    with pytest.raises(BrokenAttack, match="must stay within"):
        run("pgd", net, x, net(x).argmax(1), Threat("linf", 1.6 / 255), steps=3, eight_bit=True)


@pytest.mark.parametrize("name", ["aas", "aas_uniform", "pgd"])
def test_no_attack_on_a_head_leaves_its_budget_unseen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever depends on its batch used to go unchecked into the images that tokens learn from."""
    entry = ATTACKS.entry(name)
    far = replace(entry, value=lambda model, x, y, threat, **_: (x + 0.2).clamp(0, 1))
    monkeypatch.setitem(ATTACKS._entries, name, far)
    x, y = open_data("sample", limit=2).tensors()
    with pytest.raises(BrokenAttack, match="must stay within"):
        AttackSetting(name, Threat("linf", 4 / 255)).run(robvit.load("robvit-mini"), x, y)


def test_kept_images_are_inside_the_budget_as_they_are_read_back(tmp_path: Path) -> None:
    """Half a level more than the budget, on every pixel, was what rounding to nearest made of 1.6 levels."""
    images, threat = open_data("sample", limit=4), Threat("linf", 1.6 / 255)
    cache = AttackCache(
        robvit.load("robvit-mini"), images, AttackSetting("pgd", threat, {"steps": 2}), tmp_path
    )
    cache.fill(cache.missing(range(4)), lambda *_, **__: None)
    x = images.tensors()[0]
    adv = torch.cat([cache.row(place)[0] for place in range(4)])
    check_adversarial(x, adv, threat, eight_bit=True)
    assert torch.equal(adv, eight_bit(x, adv, threat))


@pytest.mark.parametrize(
    ("norm", "eps", "over", "kind"),
    [
        ("l1", 0.01, 0.0105, torch.float32),  # 0.0269 used to pass at this size
        ("l1", 12.0, 12.001, torch.float32),
        ("l2", 0.5, 0.50001, torch.float32),
        ("linf", 8 / 255, 8 / 255 + 3e-7, torch.float32),
        ("linf", 8 / 255, 8.5 / 255, torch.float16),  # half a grey level used to pass
    ],
)
def test_the_tolerance_is_what_rounding_can_do_and_no_more(
    norm: str, eps: float, over: float, kind: torch.dtype
) -> None:
    x = torch.full((1, 3, 224, 224), 0.5, dtype=torch.float64)
    changed = 8 if norm == "linf" or eps < 1 else 100
    each = {"linf": 1.0, "l2": changed**-0.5, "l1": 1 / changed}[norm]
    for size, is_inside in ((eps, True), (over, False)):
        adv = x.clone()
        adv.view(-1)[:changed] += size * each
        before, after = x.to(kind), adv.to(kind)
        if is_inside:
            check_adversarial(before, after, Threat(norm, eps))
        else:
            with pytest.raises(BrokenAttack, match="must stay within"):
                check_adversarial(before, after, Threat(norm, eps))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_projections_of_large_images_keep_the_tolerance(norm: str, kind: torch.dtype) -> None:
    seeded = torch.Generator().manual_seed(0)
    x, far = (torch.rand(2, 3, 224, 224, generator=seeded).to(kind) for _ in range(2))
    threat = Threat(norm, {"linf": 4 / 255, "l2": 3.0, "l1": 60.0}[norm])
    if norm == "linf" or kind == torch.float32:  # half precision sums no norms; attacks there are in L-inf
        check_adversarial(x, threat.project(x, far), threat)
