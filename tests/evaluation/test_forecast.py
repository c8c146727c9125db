"""The forecast: passes counted without running what the protocol asks for, on any system."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch

import robvit
from robvit.attacks import ATTACKS, run
from robvit.attacks.cost import Passes
from robvit.data import open_data
from robvit.errors import Unsupported
from robvit.evaluation import forecast as forecasts
from robvit.evaluation.forecast import Steadfast, SteadfastViT, attack_passes, forecast, plan_of
from robvit.evaluation.protocol import Attack, Protocol
from robvit.threat import Threat

EPS = {"linf": 8 / 255, "l2": 0.5, "l1": 2.0, "patch": 3}
LARGE: dict[str, Any] = {"steps": 23, "queries": 29, "scale_steps": 21, "restarts": 2, "targets": 1}
CLASSIFYING = [entry.name for entry in ATTACKS if entry.info.task == "classes"]
SHORT: dict[str, Any] = {
    "name": "short@1",
    "about": "for a test",
    "threat": {"norm": "linf", "eps": "8/255"},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::robvit.attacks.AttackWarning")
@pytest.mark.parametrize("name", CLASSIFYING)
def test_passes_follow_from_those_of_fewer_steps(name: str) -> None:
    info = ATTACKS.info(name)
    settings = {key: value for key, value in LARGE.items() if key in info.defaults}
    layers = 1 if info.needs == "attention" else 0
    if layers:
        settings |= {"restarts": 1} | ({"factors": [1.0, 0.1]} if "factors" in info.defaults else {})
        settings |= {"fit": "batch"} if "fit" in info.defaults else {}  # else its search comes before
    toy = SteadfastViT(5, layers) if layers else Steadfast(5)
    x, y = torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, dtype=torch.long)
    for norm in info.norms[:1] if layers else info.norms:
        threat = Threat(norm, EPS[norm])
        whole = run(name, toy, x, y, threat, **settings)
        assert not whole.success.any()
        found = attack_passes(Attack(attack=name, settings=settings), threat, 5, layers)
        assert found == Passes(whole.forward, whole.backward), norm


@pytest.mark.slow
def test_settings_that_would_take_forever_are_not_run() -> None:
    start = time.monotonic()
    entry = Attack(attack="pgd", settings={"steps": 100_000_000, "restarts": 1000})
    few = attack_passes(Attack(attack="pgd", settings={"steps": 1}), Threat("linf", 8 / 255), 10)
    found = attack_passes(entry, Threat("linf", 8 / 255), 10)
    assert found.backward == pytest.approx(1e11, rel=1e-3)
    assert found.forward > found.backward > few.backward
    nested = {"settings": {"pgd": {"steps": 10**7}, "apgd_dlr": {"steps": 3}}}
    found = attack_passes(Attack(attack="worst_of", settings=nested), Threat("linf", 8 / 255), 10)
    assert found.backward == pytest.approx(1e7, rel=1e-3)
    assert time.monotonic() - start < 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aas", "aas_uniform"])
def test_attacks_on_attention_are_forecast_and_run(name: str) -> None:
    settings = {"steps": 1} | ({"scale_steps": 2} if name == "aas" else {})
    attacks = [{"attack": name, "settings": settings}]
    rules = Protocol.model_validate({**SHORT, "attacks": attacks})
    told: list[str] = []
    record = robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=2, log=told.append)
    assert [trial.attack for trial in record.trials] == ["clean", name]
    assert "2 images can tell no difference at all" in told[1]  # said before anything is attacked
    assert "backward passes" in told[-1]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    with pytest.raises(Unsupported, match="no attention layer"):
        robvit.evaluate(net, open_data("sample", limit=2), protocol=rules)


def test_a_forecast_does_without_what_only_unix_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(forecasts.torch.cuda, "is_available", lambda: False)
    rules = Protocol.model_validate({**SHORT, "attacks": [{"attack": "fgsm"}]})
    net = Steadfast(10)
    cost = forecast(plan_of(rules, net, count=3, classes=10), net, torch.rand(3, 3, 8, 8))
    assert cost.gigabytes is None
    assert "memory" not in str(cost)
