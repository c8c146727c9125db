"""An evaluation in parts: together they are what one run is, and what is no part of it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import robvit
from helpers.sturdy import Sturdy, airplanes
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation.pooling import pool
from robvit.evaluation.protocol import Protocol
from robvit.evaluation.verify_rules import Verification, check_protocol
from robvit.record import Record

RULES: dict[str, Any] = {
    "name": "short@1",
    "about": "for a test",
    "threat": {"norm": "linf", "eps": "4/255"},
    "survivors": True,
    "attacks": [{"attack": "pgd", "settings": {"steps": 2}}, {"attack": "square", "settings": {"steps": 3}}],
}
AUDITED: dict[str, Any] = RULES | {
    "audit": 6,
    "attacks": [
        {"attack": "apgd", "settings": {"loss": "margin", "steps": 2}},
        {"attack": "square", "audited": True, "settings": {"steps": 4}},
    ],
}


def in_parts(judge: Callable[..., Record], count: int, **settings: Any) -> list[Record]:
    return [judge(part=(number, count), **settings) for number in range(1, count + 1)]


def short(**settings: Any) -> Record:
    rules = Protocol.model_validate(RULES)
    return robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=7, batch=3, **settings)


def sturdy(**settings: Any) -> Record:
    """An audited judgement of a toy that no attack breaks."""
    rules = Protocol.model_validate(AUDITED)
    return robvit.evaluate(Sturdy(10), airplanes(20), protocol=rules, batch=8, **settings)


@pytest.fixture(scope="module")
def parts() -> list[Record]:
    return in_parts(short, 3)


@pytest.fixture(scope="module")
def audited() -> list[Record]:
    return in_parts(sturdy, 2)


def told(record: Record) -> list[dict[str, Any]]:
    """All that trials say but how long they took."""
    return [asdict(replace(trial, seconds=0.0)) for trial in record.trials]


def test_parts_in_any_order_are_the_whole_run(parts: list[Record], tmp_path: Path) -> None:
    whole, found = short(), pool([parts[2], parts[0], parts[1]], out=tmp_path, command="pooled")
    assert [len(part.data["names"]) for part in parts] == [2, 2, 3]
    assert parts[1].notes[0] == "Part 2 of 3, 2 of 7 images: --pool makes one record."
    assert found.data == whole.data
    assert told(found) == told(whole)
    assert found.notes == [*whole.notes, "Judged in 3 parts, each apart."]
    assert found.protocol == whole.protocol
    assert sum(trial.seconds for trial in found.trials) > 0
    assert Record.load(tmp_path / "record.json").trials == found.trials


def test_what_made_a_part_doubtful_is_told_of_the_whole(parts: list[Record]) -> None:
    doubt = "Doubtful: the head was trained on 2 of these 2 images, so every accuracy is too high."
    first = replace(parts[0], notes=[doubt, *parts[0].notes])
    assert pool([first, *parts[1:]]).notes[0] == doubt


def test_names_of_one_machine_keep_no_parts_apart_and_precisions_do(parts: list[Record]) -> None:
    elsewhere = replace(
        parts[1],
        model=parts[1].model | {"name": "there/net.safetensors"},
        data=parts[1].data | {"spec": "folder:there"},
        protocol=parts[1].protocol | {"warnings": ["PrecisionUnavailable"]},
    )
    assert pool([parts[0], elsewhere, parts[2]]).model == parts[0].model
    low = replace(parts[1], protocol=parts[1].protocol | {"precision": "bf16"})
    with pytest.raises(InputError, match="give all the same --precision"):
        pool([parts[0], low, parts[2]])


def test_samples_of_all_parts_bound_what_was_not_tried(audited: list[Record]) -> None:
    assert [part.audits[0].audited for part in audited] == [3, 3]
    found = pool(audited)
    (audit,) = found.audits
    assert (audit.survivors, audit.audited, audit.size, audit.switched) == (20, 6, 6, "")
    assert 0 < audit.bound < 1
    assert str(audit) in found.notes
    assert len(found.trials[-1].unseen) == 14
    assert max(found.trials[-1].unseen) >= 10  # places are those of all images
    checked = Verification()
    check_protocol(found, checked)
    assert checked.good, checked.broken


def test_a_sample_that_fell_in_one_part_wants_all_survivors_of_the_others(audited: list[Record]) -> None:
    first, second = audited
    fell = replace(first.audits[0], switched="1 of 5 audited survivors fell")
    switched = replace(first, audits=[fell], trials=[*first.trials, first.trials[-1]])
    with pytest.raises(InputError, match="judge them again with --audit 10"):
        pool([switched, second])
    found = pool([switched, sturdy(part=(2, 2), audit=10)])
    assert [audit.switched for audit in found.audits] == [fell.switched]
    assert found.audits[0].audited == found.audits[0].survivors == 20
    rest = found.trials[-1]
    assert set(range(10, 20)) <= set(rest.unseen)  # the second part had nothing left
    assert len(rest.correct) == 20
    assert rest.forward == first.trials[-1].forward


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts[:2], "each of the parts 1 to 3 once, got 1, 2"),
        (lambda parts: [*parts[:2], parts[1]], "each of the parts 1 to 3 once, got 1, 2, 2"),
        (lambda parts: [*parts[:2], replace(parts[2], model={"name": "another"})], "differ in the model"),
        (lambda parts: [*parts[:2], replace(parts[2], versions={})], "differ in versions"),
        (lambda parts: [*parts[:2], replace(parts[2], kind="attack")], "got a record of attack"),
        (
            lambda parts: [*parts[:2], replace(parts[2], protocol=parts[2].protocol | {"seeds": [1]})],
            "differ in the protocol",
        ),
        (
            lambda parts: [
                *parts[:2],
                replace(parts[2], data=parts[2].data | {"names": parts[1].data["names"]}),
            ],
            "hold 4 images, all together are 7",
        ),
        (lambda parts: [replace(parts[0], data=parts[0].data | {"whole": 7})], "that is none"),
        (lambda parts: [], "got no record"),
    ],
)
def test_what_is_no_part_of_one_evaluation_is_refused(
    parts: list[Record], change: Callable[[list[Record]], list[Record]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        pool(change(parts))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"part": (3, 2)}, "from \\(1, N\\) to \\(N, N\\), got \\(3, 2\\)"),
        ({"part": (1, 8)}, "7 images cannot be judged in 8 parts"),
        ({"part": (1, 2), "protocol": "corruptions@1"}, "sums up over all images"),
    ],
)
def test_a_part_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        robvit.evaluate("robvit-mini", "sample", **{"limit": 7, **given})


def test_the_command_judges_parts_and_puts_them_together(tmp_path: Path) -> None:
    rules = tmp_path / "short.yaml"
    rules.write_text("name: brief@1\nabout: for a test\nattacks: []\n", "utf-8")
    judge = ["evaluate", "robvit-mini", "sample", "--limit", "5", "--protocol", str(rules)]
    folders = [str(tmp_path / name) for name in ("a", "b")]
    for number, folder in enumerate(folders, 1):
        done = CliRunner().invoke(app, [*judge, "--part", f"{number}/2", "--out", folder])
        assert done.exit_code == 0, done.output
    both = ["evaluate", "--pool", folders[0], "--pool", folders[1], "--out", str(tmp_path / "all")]
    done = CliRunner().invoke(app, both)
    assert done.exit_code == 0, done.output
    assert "Judged in 2 parts" in done.output
    assert Record.load(tmp_path / "all" / "record.json").data["count"] == 5
    refused = CliRunner().invoke(app, [*both[:-1], folders[0]])
    assert "holds one of the parts" in str(refused.exception)
    refused = CliRunner().invoke(app, [*both, "--limit", "3"])
    assert "--limit is decided by the records of --pool" in refused.output
    refused = CliRunner().invoke(app, [*judge, "--part", "3/2"])
    assert "expected a part such as 2/5" in str(refused.exception)
