"""AutoAttack's audited version: the same survivors at less cost, a bound that holds, and when it switches."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.attack_cases import images, labelled, tiny
from robvit.attacks import AuditedSample, Count, autoattack, misclassified, run
from robvit.attacks.apgd_t import _targets
from robvit.attacks.audited import audited_settings, autoattack_audited, concluded
from robvit.audit import Audit, bound, draw, pooled
from robvit.errors import InputError
from robvit.threat import Threat

QUICK: dict[str, int] = {"steps": 8, "targets": 3, "queries": 20}


def standing(model: Any, adv: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return ~misclassified(model(adv), y)


def near_its_boundaries(threat: Threat, count: int = 24) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A model and images, of which some break within the threat and some do not."""
    model, x = tiny(classes=5).eval(), images(count)
    return model, x, labelled(model, x)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_no_image_survives_that_the_standard_version_breaks(norm: str) -> None:
    threat = Threat(norm, {"linf": 0.012, "l2": 0.08, "l1": 0.6}[norm])
    model, x, y = near_its_boundaries(threat)
    ours, theirs = (
        standing(model, autoattack(model, x, y, threat, version=version, **QUICK), y)
        for version in ("audited", "standard")
    )
    assert 0 < int(theirs.sum()) < len(x)  # else nothing is shown
    assert not bool((ours & ~theirs).any())


def test_targets_in_another_order_break_the_same_images_sooner() -> None:
    threat = Threat("linf", 0.012)
    model, x, y = near_its_boundaries(threat, 40)
    stands, passes = [], []
    for candidates in (None, 4):
        counted = Count(model)
        outcome = run("apgd_t", counted, x, y, threat, steps=20, targets=4, candidates=candidates)
        stands.append(~outcome.success)
        passes.append(counted.forward + counted.backward)
    assert torch.equal(*stands)
    assert 0 < int(stands[0].sum()) < len(x)
    with pytest.raises(InputError, match="at least targets"):
        run("apgd_t", model, x, y, threat, targets=4, candidates=3)


def test_the_nearest_class_is_aimed_at_first() -> None:
    """Margin over gradient norm is the distance on a linear model; here its order is not the logits'."""
    weight = torch.zeros(3, 3 * 4)
    weight[1, 0], weight[2, 1] = 1.0, 100.0
    bias = torch.tensor([0.0, -0.6, -50.5])  # class 1 is likelier, class 2 nearer

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ weight.T + bias

    x, y = torch.full((1, 3, 2, 2), 0.5), torch.zeros(1, dtype=torch.long)
    counted = Count(model)
    for candidates, targets, ranks in ((None, [1, 2], [0, 1]), (2, [2, 1], [1, 0])):
        found = _targets(counted, x, y, Threat("linf", 0.02), 2, candidates)
        assert [part.tolist() for part in found] == [[targets], [ranks]]
    assert (counted.forward, counted.backward) == (2, 2)


@pytest.mark.slow
def test_the_audit_tries_the_sample_only_and_costs_less() -> None:
    threat = Threat("linf", 1e-4)  # nothing falls
    model, x, y = near_its_boundaries(threat, 40)
    settings = audited_settings(threat, **QUICK)
    passes = {}
    for size in (10, 40):
        counted = Count(model)
        _, audit = autoattack_audited(counted, x, y, threat, settings=settings, audit=size)
        passes[size] = counted.forward
        assert (audit.survivors, audit.audited, audit.successes, audit.switched) == (40, size, [], "")
    rest = 3 * 9 + 1 + 20  # FAB and Square, an image
    assert passes[40] - passes[10] >= 30 * rest
    assert autoattack_audited(model, x, y, threat, settings=settings, audit=40)[1].bound == 0
    _, audit = autoattack_audited(model, x, y, threat, settings=settings, audit=10)
    assert audit.bound == 10 / 40  # 0.75^10 is above 5 %, 0.75^11 below
    assert "With 95 % confidence at most 25 % of the 40 survivors would fall" in str(audit)


class Masked:
    """Gradients lead nowhere: pixels are rounded coarsely, so only what sees outputs alone succeeds."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.model((x * 64).round() / 64 + 0 * x)


def test_masked_gradients_switch_to_the_standard_version() -> None:
    threat = Threat("linf", 0.05)
    net, x, _ = near_its_boundaries(threat, 20)
    model = Masked(net)
    y = model(x).argmax(1)
    settings = audited_settings(threat, **QUICK)
    adv, audit = autoattack_audited(model, x, y, threat, settings=settings, audit=4)
    assert "ZeroGradient" in audit.switched
    assert audit.bound == 0
    whole = autoattack(model, x, y, threat, **QUICK)
    assert bool((standing(model, adv, y) <= standing(model, whole, y)).all())
    assert "as in the standard version" in str(audit)


@pytest.mark.slow
def test_a_flip_in_the_audit_switches_to_the_standard_version(monkeypatch: pytest.MonkeyPatch) -> None:
    threat = Threat("linf", 0.02)
    model, x, y = near_its_boundaries(threat)
    settings: dict[str, Any] = audited_settings(threat, **QUICK)
    settings["apgd"] = {"steps": 1, "loss": lambda output, _: 0 * output.sum(1)}  # leads nowhere
    settings["fab_t"]["steps"] = 50
    monkeypatch.setattr("robvit.attacks.audited.SCREENED", ("apgd",))
    adv, audit = autoattack_audited(model, x, y, threat, settings=settings, audit=4)
    assert audit.successes
    assert audit.switched == f"{len(audit.successes)} of {audit.audited} audited survivors fell"
    whole = run("fab_t", model, x, y, threat, steps=50, targets=3)
    assert not bool((standing(model, adv, y) & whole.success).any())


def test_the_sample_depends_on_names_and_seed_not_on_order_and_covers_every_stratum() -> None:
    margins = {f"image {i}": -float(i) for i in range(1000)}
    drawn = draw(margins, 300, seed=0)
    shuffled = list(margins.items())
    random.Random(1).shuffle(shuffled)
    assert draw(dict(shuffled), 300, seed=0) == drawn
    assert draw(margins, 300, seed=1).names != drawn.names
    assert len(set(drawn.names)) == 300
    assert [row[2:] for row in drawn.strata] == [[200, 60]] * 5
    assert draw(dict.fromkeys(margins, 0.0), 300, seed=0).names != list(margins)[:300]
    assert len(draw({"a": 0.0, "b": 1.0}, 300, seed=0).names) == 2
    assert draw({}, 300, seed=0) == ([], [])


def test_the_sample_is_as_large_as_asked_for_and_leaves_no_stratum_out() -> None:
    for survivors in range(1, 120):
        margins = {str(i): float(i) for i in range(survivors)}
        for size in (1, 3, 5, 6, 17, 80):
            drawn = draw(margins, size, seed=0)
            counts = [int(row[3]) for row in drawn.strata]
            assert len(drawn.names) == sum(counts) == min(size, survivors)
            assert min(counts) >= 1
            assert max(counts) - min(counts) <= 1 + (survivors <= size)
            assert sum(row[2] for row in drawn.strata) == survivors


@pytest.mark.parametrize("spread", [False, True])
def test_the_bound_holds_as_often_as_it_says(spread: bool) -> None:
    """Flips that are one more than the bound allows are missed by fewer than 5 % of all samples."""
    count, size = 100, 20
    margins = {f"image {i}": float(i) for i in range(count)}
    most = round(bound(draw(margins, size, 0).strata) * count)
    places = range(0, count, count // (most + 1)) if spread else range(count)
    flips = {f"image {i}" for i in list(places)[: most + 1]}
    missed = sum(not flips & set(draw(margins, size, seed).names) for seed in range(1000))
    assert missed <= 50 + 3 * math.sqrt(1000 * 0.05 * 0.95)


@pytest.mark.slow
def test_the_default_sample_bounds_one_per_cent() -> None:
    for count in (400, 1000, 10_000, 100_000):
        strata = draw({str(i): float(i) for i in range(count)}, 300, 0).strata
        assert 0 < bound(strata) <= 0.01
    assert bound(draw({str(i): 0.0 for i in range(300)}, 300, 0).strata) == 0


def test_a_sample_of_all_is_no_reason_to_switch() -> None:
    audit = concluded(Audit(["square"], 300, 0, survivors=10, audited=10, successes=[3]))
    assert not audit.switched
    assert "All 10 survivors were tried by square" in str(audit)


def test_the_attack_tells_the_bound_of_its_audit() -> None:
    threat = Threat("linf", 1e-4)  # nothing falls
    model, x, y = near_its_boundaries(threat, 12)
    small = {"steps": 2, "targets": 1, "queries": 2}
    with pytest.warns(AuditedSample, match=r"at most 58.34 % of the 12 survivors would fall"):
        autoattack(model, x, y, threat, version="audited", audit=5, **small)


@pytest.mark.filterwarnings("ignore::robvit.attacks.AuditedSample")
def test_an_outcome_holds_its_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places of an audit's successes are those of the images given, also where some were wrong before."""
    threat = Threat("linf", 0.02)
    model, x, y = near_its_boundaries(threat, 12)
    quiet = run("autoattack", model, x, y, Threat("linf", 1e-4), version="audited", audit=5, **QUICK)
    assert quiet.audits[0].bound > 0
    assert "AuditedSample" in quiet.warnings
    assert run("pgd", model, x, y, threat, steps=1).audits == ()
    monkeypatch.setattr("robvit.attacks.audited.SCREENED", ())
    y[:3] = (y[:3] + 1) % 5
    outcome = run("autoattack", model, x, y, threat, version="audited", **{**QUICK, "steps": 30})
    (audit,) = outcome.audits
    assert (audit.survivors, audit.audited) == (9, 9)
    assert "AuditedSample" not in outcome.warnings  # all were tried
    assert audit.successes == [place for place in range(3, 12) if outcome.success[place]]
    assert audit.successes


@pytest.mark.filterwarnings("ignore::robvit.attacks.AuditedSample")
def test_the_audit_is_of_what_full_precision_leaves() -> None:
    """In low precision this model errs nearly everywhere, so that little would be left to audit."""

    class Touchy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = net(x)
            return out.flip(1) if torch.is_autocast_enabled("cpu") else out

    net, x = tiny(classes=5).eval(), images(12)
    threat, y = Threat("linf", 1e-4), labelled(net, x)
    given: dict[str, Any] = {"version": "audited", "audit": 5, "steps": 2, "targets": 1, "queries": 2}
    low, full = (
        run("autoattack", Touchy(), x, y, threat, precision=precision, **given)
        for precision in ("bf16", "fp32")
    )
    assert low.audits == full.audits
    assert low.audits[0].survivors == int(low.correct.sum()) == 12
    assert set(low.warnings) - set(full.warnings) == {"PrecisionOfAudit"}


def test_audits_of_parts_bound_together_what_they_left_open() -> None:
    def part(survivors: int, tried: int, **more: Any) -> Audit:
        strata = draw({str(i): float(i) for i in range(survivors)}, tried, 0).strata
        return concluded(Audit(["square"], tried, 0, survivors, tried, strata=strata, **more))

    one, whole = part(100, 20), part(20, 20)
    five = pooled([*[one] * 5, whole])
    assert (five.survivors, five.audited, five.size) == (500, 100, 100)
    assert five.bound * 500 == one.bound * 100  # as many may be missed in five parts as in one
    assert "at most 2.6 % of the 500 survivors" in str(five)
    assert "All 20 survivors were tried" in str(pooled([whole]))
    with pytest.raises(InputError, match="same attacks"):
        pooled([one, Audit(["fab_t"], 20, 0, 100, 20)])
    fallen = replace(one, successes=[3], switched="1 of 20 audited survivors fell")
    with pytest.raises(InputError, match=r"1 of 20 audited survivors fell.*--audit 100"):
        pooled([one, fallen])  # a sample may not decide by what it finds whether it counts
    assert "20 survivors" in str(pooled([fallen, whole]))


def test_batches_are_refused() -> None:
    model, x, y = near_its_boundaries(Threat("linf", 0.1))
    with pytest.raises(InputError, match=r"batch=len\(x\)"):
        run("autoattack", model, x, y, Threat("linf", 0.1), batch=8, version="audited")
    outcome = run("autoattack", model, x, y, Threat("linf", 0.1), version="audited", **QUICK)
    assert outcome.success.any()
