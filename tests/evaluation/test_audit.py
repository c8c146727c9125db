"""Protocols with an audit: what the record holds, and that batches, kills and processes do not matter."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.sturdy import Sturdy, airplanes
from robvit.attacks import run
from robvit.audit import Audit
from robvit.cli import app
from robvit.errors import InputError, UnknownName
from robvit.evaluation.forecast import forecast, plan_of
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.robustbench import model_info
from robvit.evaluation.verify_rules import Verification, check_protocol
from robvit.record import Record

SHORT: dict[str, Any] = {
    "name": "short-audited@1",
    "about": "for a test",
    "threat": {"norm": "linf", "eps": "4/255"},
    "survivors": True,
    "audit": 5,
    "attacks": [
        {"attack": "apgd", "settings": {"loss": "margin", "steps": 2}},
        {"attack": "apgd_t", "settings": {"steps": 2, "targets": 2, "candidates": 2}},
        {"attack": "fab_t", "audited": True, "settings": {"steps": 2, "targets": 2}},
        {"attack": "square", "audited": True, "settings": {"steps": 6}},
    ],
}


class Flipping(Sturdy):
    """Errs wherever a vertical stripe stands out, which Square's start has and no gradient leads to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) - 40 * (roughness(x) > 0.09)[:, None] * (torch.arange(10) == 0)


def roughness(x: torch.Tensor) -> torch.Tensor:
    """How much the means of neighbouring columns differ: (B 3 H W) -> (B,)."""
    return x.detach().mean(2).diff(dim=2).abs().mean((1, 2))


@pytest.mark.slow
def test_an_audit_is_in_the_record_as_data_and_as_a_sentence(tmp_path: Path) -> None:
    rules, images = Protocol.model_validate(SHORT), airplanes(20)
    record = robvit.evaluate(Sturdy(10), images, protocol=rules, batch=8, out=tmp_path / "a")
    (audit,) = record.audits
    assert (audit.survivors, audit.audited, audit.successes, audit.switched) == (20, 5, [], "")
    assert audit.attacks == ["fab_t", "square"]
    assert audit.bound == 10 / 20  # 0.75^10 is above 5 %
    assert str(audit) in record.notes
    for trial in record.trials[-2:]:
        assert len(trial.unseen) == 15
        assert not trial.skipped
    assert all(not trial.unseen for trial in record.trials[:-2])
    assert "fab_t, 5 of 20" in record.table()
    assert Record.load(tmp_path / "a" / "record.json") == record
    other = robvit.evaluate(Sturdy(10), images, protocol=rules, batch=20, out=tmp_path / "b")
    assert [t.unseen for t in other.trials] == [t.unseen for t in record.trials]
    shuffled = images.take(list(reversed(range(20))))
    again = robvit.evaluate(Sturdy(10), shuffled, protocol=rules, batch=8)
    assert {19 - i for i in again.trials[-1].unseen} == set(record.trials[-1].unseen)
    assert "autoattack_acc" not in model_info(record)
    assert "With 95 % confidence" in model_info(record)["footnote"]


@pytest.mark.slow
def test_a_smaller_or_larger_audit_can_be_asked_for_and_is_told() -> None:
    rules = Protocol.model_validate({**SHORT, "audit": 10})
    record = robvit.evaluate(Sturdy(10), airplanes(20), protocol=rules, audit=5, batch=8)
    (audit,) = record.audits
    assert (audit.size, record.protocol["audit"], record.protocol["digest"]) == (5, 10, rules.digest())
    assert (audit.audited, audit.bound) == (5, 10 / 20)
    assert "its audit tried 5 survivors, 10 are wanted." in " ".join(record.notes)
    found = Verification()
    check_protocol(record, found)
    assert not found.broken
    more = robvit.evaluate(Sturdy(10), airplanes(20), protocol=rules, audit=15, batch=8)
    assert (more.audits[0].size, more.audits[0].audited) == (15, 15)
    assert more.audits[0].bound < audit.bound
    check_protocol(more, found)
    assert not found.broken
    with pytest.raises(InputError, match="has none; leave it out"):
        robvit.evaluate(Sturdy(10), airplanes(2), protocol="quick@1", audit=3)


@pytest.mark.slow
def test_the_forecast_of_an_audit_is_exact_where_nothing_falls() -> None:
    rules, images, net = Protocol.model_validate(SHORT), airplanes(10), Sturdy(10)
    record = robvit.evaluate(net, images, protocol=rules, batch=1)
    guess = forecast(plan_of(rules, net, count=10, classes=10), net, images.tensors()[0])
    # Five strata may each round up by one image.
    spent = sum(t.forward for t in record.trials)
    assert spent <= guess.forward <= spent + 5 * (2 * 3 + 1 + 6 + 8)


@pytest.mark.slow
def test_a_flip_switches_the_whole_run_and_sets_the_record_right() -> None:
    rules = Protocol.model_validate({**SHORT, "threat": {"norm": "linf", "eps": "32/255"}})
    net, images = Flipping(10), airplanes(40)
    images = images.take((roughness(images.tensors()[0]) < 0.04).nonzero()[:, 0].tolist())
    assert len(images) >= 10
    told: list[str] = []
    shown: list[float] = []
    moved: list[tuple[int, float]] = []

    def advance(amount: float = 1, note: str = "") -> None:
        moved.append((len([line for line in told if "standard version" in line]), amount))
        shown.append(sum(amount for _, amount in moved))

    record = robvit.evaluate(net, images, protocol=rules, batch=4, log=told.append, progress=advance)
    assert shown[-1] == pytest.approx(1)
    assert max(shown) <= 1 + 1e-9
    after = [amount for switched, amount in moved if switched]
    assert after[0] < 0  # the bar goes back once
    assert sum(amount > 0 for amount in after) > 4
    assert sum(after[1:-1]) > 0.2
    (audit,) = record.audits
    assert audit.successes
    assert "audited survivors fell" in audit.switched
    assert str(audit) in told
    assert audit.bound == 0
    x, y = images.tensors()
    square = run("square", net, x, y, rules.threat_of(rules.attacks[0]), steps=6, eight_bit=True)
    assert [not correct for correct in record.still_correct()] == square.success.tolist()
    sampled, rest = record.trials[-3], record.trials[-1]
    assert sampled.attack == rest.attack == "square"
    assert set(rest.unseen) <= set(range(len(images))) - set(sampled.unseen)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::robvit.attacks.ZeroGradient")
def test_masked_gradients_switch_before_the_audit() -> None:
    class Flat(Sturdy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward((x * 64).round() / 64 + 0 * x)

    record = robvit.evaluate(Flat(10), airplanes(12), protocol=Protocol.model_validate(SHORT), batch=4)
    assert "ZeroGradient" in record.audits[0].switched
    assert all(not trial.unseen for trial in record.trials)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"survivors": False}, "survivors: true"),
        ({"attacks": list(reversed(SHORT["attacks"]))}, "put them last"),
        ({"attacks": [{"attack": "square", "audited": True}]}, "put them last"),
        ({"audit": 0}, "greater than or equal to 1"),
        ({"attacks": [{"attack": "autoattack", "settings": {"version": "audited"}}]}, "linf-8-audited@1"),
    ],
)
def test_an_audit_of_something_else_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Protocol.model_validate({**SHORT, **change})


def test_the_audited_protocols_are_the_standard_ones_on_a_sample() -> None:
    for eps in (8, 4):
        audited, standard = (find(f"linf-{eps}-{kind}@1") for kind in ("audited", "standard"))
        assert audited.threat == standard.threat
        assert audited.subset == standard.subset
        screening, *others = audited.attacks
        assert screening.attack == "apgd"
        for one, other in zip(others, standard.attacks, strict=True):
            settings = {name: value for name, value in one.settings.items() if name != "candidates"}
            assert (one.attack, settings) == (other.attack, other.settings)
        assert [one.audited for one in others] == [False, False, True, True]
        assert audited.audit == 300


def test_a_whole_run_may_be_called_autoattacks() -> None:
    rules = Protocol.model_validate(SHORT)
    record = robvit.evaluate(Sturdy(10), airplanes(4), protocol=rules, batch=4)
    assert record.audits[0].audited == 4
    named = [replace(t, attack="apgd_ce") if t.attack == "apgd_t" else t for t in record.trials]
    short = replace(record, trials=[*named, replace(named[-1], attack="apgd_t")])
    assert "autoattack_acc" not in model_info(short)
    full = {"steps": 5000, "targets": 9}
    screened = replace(record, trials=[replace(t, settings=full) for t in short.trials])
    assert "autoattack_acc" in model_info(screened)
    part = replace(screened.audits[0], audited=2, bound=0.5)
    assert "autoattack_acc" not in model_info(replace(screened, audits=[part]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_protocol_attacks_a_compiled_model_alike() -> None:
    rules, images = Protocol.model_validate(SHORT), airplanes(4)
    plain, compiled = (
        robvit.evaluate(Sturdy(10), images, protocol=rules, batch=4, compiler=compiler)
        for compiler in (None, "eager")
    )
    assert [t.correct for t in plain.trials] == [t.correct for t in compiled.trials]
    assert compiled.protocol["compiler"] == "eager"
    assert "compiler" not in plain.protocol
    with pytest.raises(UnknownName, match="did you mean inductor"):
        robvit.evaluate(Sturdy(10), images, protocol=rules, batch=4, compiler="inductr")


@pytest.mark.filterwarnings("ignore::robvit.attacks.AuditedSample")
def test_an_audited_attack_as_one_leaves_its_audit_in_the_record(tmp_path: Path) -> None:
    settings = {"version": "audited", "audit": 5, "steps": 2, "targets": 2, "queries": 6}
    given: dict[str, Any] = {"attack": "autoattack", "settings": settings, "batch": 20}
    record = robvit.attack(Sturdy(10), airplanes(20), out=tmp_path, precision="bf16", **given)
    (audit,) = record.audits
    assert (audit.survivors, audit.audited, audit.bound) == (20, 5, 10 / 20)
    assert str(audit) in record.notes
    assert "AuditedSample" in record.trials[-1].warnings
    assert record.protocol["precision"] == "fp32"
    assert record.protocol["warnings"] == ["PrecisionOfAudit"]
    assert Record.load(tmp_path / "record.json").audits == record.audits
    full = [replace(t, settings={"version": "audited"} if t.kind == "attack" else {}) for t in record.trials]
    whole = replace(record, trials=full, audits=[replace(audit, audited=20, bound=0.0)])
    assert "autoattack_acc" in model_info(whole)
    assert "autoattack_acc" not in model_info(replace(whole, audits=record.audits))
    assert "autoattack_acc" not in model_info(replace(whole, audits=[]))


def test_a_sample_of_another_run_is_refused(tmp_path: Path) -> None:
    rules, images = Protocol.model_validate(SHORT), airplanes(8)
    robvit.evaluate(Sturdy(10), images, protocol=rules, batch=4, out=tmp_path)
    (tmp_path / "audit.json").write_text(
        json.dumps({"names": [], "strata": [], "doubt": "", "drawn_from": ""})
    )
    with pytest.raises(InputError, match="of another run"):
        robvit.evaluate(Sturdy(10), images, protocol=rules, batch=4, out=tmp_path)


def test_records_from_before_audits_can_be_read(tmp_path: Path) -> None:
    record = robvit.evaluate("robvit-mini", "sample", protocol="clean@1", limit=2, out=tmp_path)
    content = json.loads((tmp_path / "record.json").read_text())
    del content["audits"]
    for trial in content["trials"]:
        del trial["unseen"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert Record.load(tmp_path / "old.json") == record
    content["audits"] = [{**Audit(["square"], 3, 0, 3, 3).__dict__, "bound": "much"}]
    (tmp_path / "odd.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"Audit\.bound must be float"):
        Record.load(tmp_path / "odd.json")


@pytest.mark.slow
def test_the_command_tells_the_bound_and_two_processes_draw_as_one(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(json.dumps({**SHORT, "audit": 2, "threat": {"norm": "linf", "eps": 0.002}}))
    command = ["evaluate", "robvit-mini-robust", "sample", "--limit", "12", "--batch", "3"]
    command += ["--protocol", str(rules), "--out"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    assert "With 95 % confidence at most" in done.output
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    two = [*launch, "-m", "robvit", *command, str(tmp_path / "two")]
    assert subprocess.run(two, check=False, capture_output=True).returncode == 0
    one, other = (Record.load(tmp_path / name / "record.json") for name in ("one", "two"))
    assert one.audits[0].audited < one.audits[0].survivors
    assert [t.unseen for t in one.trials] == [t.unseen for t in other.trials]
    assert [t.correct for t in one.trials] == [t.correct for t in other.trials]
    assert (one.audits[0].bound, one.audits[0].successes) == (
        other.audits[0].bound,
        other.audits[0].successes,
    )
    page = CliRunner().invoke(app, ["report", str(tmp_path / "one")])
    assert page.exit_code == 0, page.output
    assert "With 95 % confidence at most" in (tmp_path / "one" / "report.html").read_text()
