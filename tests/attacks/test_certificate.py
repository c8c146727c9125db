"""What is kept was certified as it is kept: after rounding, with one tolerance, for every attack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import robvit
from robvit.attacks import ATTACKS, certify, run
from robvit.attacks.pixels import eight_bit
from robvit.data import open_data
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.errors import BrokenAttack
from robvit.threat import Threat


@pytest.mark.parametrize("eps", [0.031372, 8 / 255, 8.0001 / 255, 7.5 / 255])
def test_what_rounding_allows_the_certificate_allows(eps: float) -> None:
    """0.031372 is 8/255 written with few digits: rounding took eight levels, the certificate refused them."""
    threat = Threat("linf", eps)
    x = (torch.rand(2, 3, 6, 6) * 255).round() / 255
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 3))
    outcome = run("pgd", net, x, net(x).argmax(1), threat, steps=3, eight_bit=True, early_stop=False)
    certify(x, outcome.adv, threat, eight_bit=True)
    with pytest.raises(BrokenAttack, match="must stay within"):
        certify(x, (x + 9 / 255).clamp(0, 1), threat, eight_bit=True)


@pytest.mark.parametrize("name", ["aas", "aas_uniform", "pgd"])
def test_no_attack_on_a_head_leaves_its_budget_unseen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever depends on its batch used to go uncertified into the images that tokens learn from."""
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
    certify(x, adv, threat, eight_bit=True)
    assert torch.equal(adv, eight_bit(x, adv, threat))
