"""How a run computes: the probe takes what is fastest and sound, and a folder keeps what was chosen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import robvit
from robvit.attacks import run
from robvit.attacks.compute import Compute, probe, settle
from robvit.attacks.cost import QUICK, Passes, forecast_of, probed
from robvit.attacks.precision import Autocast, fused_layers
from robvit.data import open_data
from robvit.errors import InputError
from robvit.threat import Threat

LONG = 1e9  # passes that nobody would call short


@pytest.fixture(autouse=True)
def _multiplies_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with bf16 in hardware, so that the tests are the same on every machine."""
    monkeypatch.setattr("robvit.attacks.compute._multiplies_faster", lambda *_: True)


class Paced(nn.Module):
    """A linear classifier that takes its time in some ways of computing, and errs in others."""

    def __init__(self, slow: str = "", broken: str = "", fused: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3 * 4 * 4, 3)
        self.slow, self.broken, self.slept = slow, broken, 0
        if fused:
            self.fused_attn = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = torch.is_autocast_enabled("cpu")
        now = {"low" if low else "fp32", *(["fused"] if getattr(self, "fused_attn", False) else [])}
        now |= {"threads"} if torch.get_num_threads() > 1 else set()
        if self.slow in now:
            time.sleep(0.03)
            self.slept += 1
        out: torch.Tensor = self.linear(x.flatten(1))
        if low and self.broken == "nan":
            return out * float("nan")
        if low and self.broken == "refused":
            raise RuntimeError("no such kernel on this device")
        return out.flip(1) if low and self.broken == "flipped" else out


def some(count: int = 4) -> torch.Tensor:
    return torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "precision", "warnings"),
    [
        (Paced(slow="fp32"), "bf16", []),
        (Paced(slow="low"), "fp32", []),
        (Paced(slow="fused", fused=True), "/plain", []),
        (Paced(slow="fp32", broken="nan"), "fp32", ["PrecisionUnsound"]),
        (Paced(slow="fp32", broken="flipped"), "fp32", ["PrecisionUnsound"]),
        (Paced(slow="fp32", broken="refused"), "fp32", ["PrecisionUnavailable"]),
    ],
)
def test_the_fastest_sound_way_is_taken(model: Paced, precision: str, warnings: list[str]) -> None:
    found = probe(model, some(), "auto", LONG)
    assert found.precision.endswith(precision)
    assert found.warnings == warnings
    assert found.notes() == [] or "fp32 was used" in found.notes()[0]
    assert getattr(model, "fused_attn", True)  # as it was


def test_low_precision_is_not_tried_where_products_are_slow_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robvit.attacks.compute._multiplies_faster", lambda *_: False)
    found = probe(Paced(slow="fp32", broken="nan"), some(), "auto", LONG)
    assert (found.precision, found.warnings) == ("fp32", [])
    assert probe(Paced(slow="fused", fused=True), some(), "auto", LONG).precision == "fp32/plain"


def test_a_wish_is_followed_unless_the_model_breaks_in_it() -> None:
    assert probe(Paced(slow="low"), some(), "bf16", 10).precision == "bf16"
    fallen = probe(Paced(broken="nan"), some(), "bf16", 10)
    assert (fallen.precision, fallen.warnings) == ("fp32", ["PrecisionUnsound"])


def test_short_work_is_not_probed() -> None:
    found = probe(Paced(slow="fused", fused=True), some(), "auto", 10)
    assert (found.precision, found.short) == ("fp32", True)


def test_threads_that_wait_for_each_other_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")  # somebody's choice
        assert probe(Paced(slow="threads"), some(), "fp32", LONG).threads == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        found = probe(slow := Paced(slow="threads"), some(), "fp32", LONG)
        assert found.threads == 1
        assert slow.slept == 1 + 2  # one step tells, and before that passes tell that the work is long
        assert torch.get_num_threads() == 2
        with found.in_use():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        assert str(found) == "fp32 on cpu, 1 thread"
    finally:
        torch.set_num_threads(before)


def test_a_gpu_is_probed_with_the_run_s_own_batch() -> None:
    assert [probed(batch, device) for batch in (2, 32) for device in ("cpu", "cuda")] == [2, 2, 4, 32]


@pytest.mark.parametrize(("share", "passed"), [(0.0, {4, 16}), (1.2, {4})])
def test_a_quick_network_is_timed_on_a_fuller_batch(share: float, passed: set[int]) -> None:
    seen = set[int]()

    def net(x: torch.Tensor) -> torch.Tensor:
        seen.add(len(x))
        time.sleep(share * QUICK)
        return x.flatten(1)

    found = forecast_of(Passes(100, 0), net, some())
    assert seen == passed
    assert found.seconds >= 100 * share * QUICK / 4


def test_a_folder_keeps_its_precision(tmp_path: Path) -> None:
    keep = tmp_path / "compute.json"
    first = settle(Paced(slow="fp32"), some(), wanted="auto", passes=LONG, keep=keep)
    assert first.precision == "bf16"
    again = settle(Paced(slow="low"), some(), wanted="auto", passes=LONG, keep=keep)
    assert again.precision == "bf16"
    assert settle(Paced(), some(), wanted="fp32", passes=LONG, keep=keep).precision == "fp32"
    keep.write_text('{"precision": 3}')
    with pytest.raises(InputError, match="does not say how a run computes"):
        settle(Paced(), some(), wanted="auto", passes=LONG, keep=keep)
    keep.unlink()
    (tmp_path / "shards").mkdir()  # a run from before there was a choice
    assert settle(Paced(slow="fp32"), some(), wanted="auto", passes=LONG, keep=keep).precision == "fp32"


def test_what_was_found_once_is_not_probed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Paced(slow="fp32")
    found = settle(model, some(), wanted="auto", passes=LONG)

    def fail(*_: object) -> Compute:
        raise AssertionError("probed again")

    monkeypatch.setattr("robvit.attacks.compute.probe", fail)
    assert settle(model, some(), wanted="auto", passes=LONG) is found


@pytest.mark.slow
def test_plain_attention_is_the_search_s_alone() -> None:
    model = robvit.load("robvit-mini")
    x, y = open_data("sample", limit=8).tensors()
    layers = fused_layers(model)
    assert layers
    with torch.no_grad():
        own = model(x)
        torch.testing.assert_close(Autocast(model, "fp32/plain")(x), own, rtol=1e-4, atol=1e-4)
        assert torch.equal(model(x), own)
    threat = Threat("linf", 4 / 255)
    outcome = run("pgd", model, x, y, threat, steps=3, precision="bf16/plain")
    with torch.no_grad():
        assert torch.equal(outcome.success, model(outcome.adv).argmax(1) != y)
    assert fused_layers(model) == layers


def test_the_record_says_what_was_used_and_why(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.flatten(1)[:, :10] * 10
            return out * float("nan") if torch.is_autocast_enabled("cpu") else out

    for verb, given in ((robvit.attack, {"attack": "fgsm"}), (robvit.evaluate, {"protocol": "quick@1"})):
        record = verb(Broken(), "sample", limit=3, precision="bf16", out=tmp_path / verb.__name__, **given)
        assert record.protocol["precision"] == "fp32"
        assert record.protocol["wanted precision"] == "bf16"
        assert record.protocol["warnings"] == ["PrecisionUnsound"]
        assert any(note.startswith("PrecisionUnsound") for note in record.notes)
        assert record.machine["device"] == "cpu"
    plain: Any = robvit.attack("robvit-mini", "sample", attack="fgsm", limit=2)
    assert plain.protocol["precision"] == "fp32"  # a short work
    with pytest.raises(InputError, match="precision must be auto, fp32"):
        robvit.attack("robvit-mini", "sample", attack="fgsm", limit=2, precision="fp8")


def test_the_cost_and_what_was_chosen_are_told_before_the_work() -> None:
    told: list[str] = []
    robvit.attack("robvit-mini", "sample", attack="fgsm", limit=2, log=told.append)
    few, cost = told
    assert few == "2 of 1,000 images are judged; for all of them: --limit 1000"
    assert cost.startswith("fgsm on 2 images: at most ")
    assert "fp32 on cpu" in cost
    record = robvit.doctor(
        "robvit-mini", "sample", limit=2, checks=["randomness"], precision="fp32/plain", log=told.append
    )
    assert "seconds" in told[2]
    assert told[2].endswith("threads" if torch.get_num_threads() > 1 else "1 thread")
    assert record.protocol["precision"] == "fp32/plain"


def test_an_attack_that_no_toy_can_stand_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(*_: object) -> None:
        raise RuntimeError("images must be 32 pixels wide")

    monkeypatch.setattr("robvit.evaluation.attack.passes_of", picky)
    record = robvit.attack("robvit-mini", "sample", attack="fgsm", limit=2)
    assert len(record.trials[-1].correct) == 2


@pytest.mark.slow
def test_progress_moves_inside_a_batch() -> None:
    told: list[float] = []

    def advance(amount: float = 1, note: str = "") -> None:
        told.append(amount)

    given = {"attack": "pgd", "settings": {"steps": 9}, "limit": 4, "batch": 4, "progress": advance}
    robvit.attack("robvit-mini-robust", "sample", threat=Threat("linf", 1e-4), **given)
    assert len(told) > 8  # one batch, ten passes
    assert sum(told) == pytest.approx(1)
    assert max(told) < 0.6
