"""A review: the verdict first, in forms that people and programs read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as XML

import pytest
from typer.testing import CliRunner

import robvit
from robvit.budget import Budget
from robvit.cli import app
from robvit.diagnosis.doctor import weakness
from robvit.errors import InputError
from robvit.evaluation.attackers import ATTACKERS
from robvit.evaluation.claims import claims, knowledge_of, near_chance
from robvit.evaluation.protocol import Protocol
from robvit.places import command_without_places
from robvit.record import Finding, Record, Table, Trial
from robvit.report.verdict import Review
from robvit.report.verdict_files import junit, markdown, sarif


def review(
    robust: str,
    clean: str = "RRRRRRRRRR",
    status: str = "green",
    classes: int = 5,
    attack: str = "autoattack",
) -> Review:
    """A review of ten images whose outcomes are given by letters, R for right."""
    labels = [i % classes for i in range(10)]

    def trial(attack: str, text: str, threat: Budget | None) -> Trial:
        correct = [c == "R" for c in text]
        pred = [y if ok else (y + 1) % classes for y, ok in zip(labels, correct, strict=True)]
        return Trial(attack, threat, {}, correct, pred, [0.0] * 10)

    trials = [trial("clean", clean, None), trial(attack, robust, Budget("linf", 4 / 255))]
    data = {"count": 10, "spec": "sample", "labels": labels, "names": [str(i) for i in range(10)]}
    judged = Record("evaluate", {"name": "net"}, data, trials, protocol={"name": "linf-4-audited@1"})
    finding = Finding(
        "masking", status, "an \x1b[31mevidence", title="Gradients point somewhere", remedy="look"
    )
    examined = Record("doctor", {"name": "net"}, data, [], findings=[finding])
    own = [one for one in [weakness(judged.headline(), "red")] if one]
    return Review(judged, examined, "ab" * 32, own)


def test_a_model_of_no_robustness_is_never_all_green() -> None:
    weak = review("." * 10)
    assert [one.check for one in weak.reds] == ["robust_accuracy"]
    assert weak.findings[0].status == "red"
    assert weak.believable.startswith("Yes")
    assert review("R.........").reds == []


def test_terms_are_those_of_the_attacks_that_were_tried() -> None:
    identifiers = [identifier for _, identifier, _ in review("RRRRR.....").terms]
    assert identifiers == ["NISTAML.022", "AML.T0015", "AML.T0043.000"]
    asked = review("RRRRR.....", attack="square")
    assert [one for _, one, _ in asked.terms] == ["NISTAML.025", "AML.T0015", "AML.T0043.001"]
    moved = [
        replace(trial, surrogate="other" * (trial.kind == "attack")) for trial in asked.evaluation.trials
    ]
    carried = replace(asked, evaluation=replace(asked.evaluation, trials=moved))
    assert [one for _, one, _ in carried.terms] == ["NISTAML.025", "AML.T0015", "AML.T0043.002"]
    for text in (markdown(carried), sarif(carried), junit(carried)):
        assert "AML.T0043.002" in text


def test_who_needs_no_gradients_had_no_white_box(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial("pgd", None, {}, [True], [0], [0.0], attacker="white-box")
    assert knowledge_of(trial) == "white box"
    assert knowledge_of(replace(trial, attack="square")) == "black box"
    assert knowledge_of(replace(trial, surrogate="another model")) == "transfer"
    blind = replace(ATTACKERS.info("white-box"), gradients=False)
    monkeypatch.setattr(ATTACKERS, "info", lambda name: blind)  # an attacker that nobody knows yet
    assert knowledge_of(trial) == "black box"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("robvit review /home/me/net.onnx '/data/my photos'", "robvit review net.onnx 'my photos'"),
        ("robvit evaluate net imagenet:/data/in --out=~/runs/x", "robvit evaluate net imagenet:in --out=x"),
        (
            "robvit attack hf:facebook/dino data --eps 8/255",
            "robvit attack hf:facebook/dino data --eps 8/255",
        ),
        ("robvit attack C:\\\\nets\\\\mine.pt ../photos?a=1", "robvit attack mine.pt 'photos?a=1'"),
        ("robvit explain runs/a.pt", "robvit explain runs/a.pt"),
    ],
)
def test_commands_are_passed_on_without_local_places(typed: str, shown: str) -> None:
    assert command_without_places(typed) == shown


def test_records_are_passed_on_without_local_places() -> None:
    record = replace(
        review("R" * 10).evaluation, model={"name": "/home/me/net.pt"}, data={"spec": "/home/me/photos"}
    )
    cut = record.without_places()
    assert (cut.model["name"], cut.data["spec"]) == ("net.pt", "photos")


def test_sentences_and_offered_commands_are_passed_on_without_local_places() -> None:
    told = "no image at /home/me/a b/c.png under linf 4/255; 1/2 of them"
    table = Table(
        "t", ["", "next"], [["x", "robvit certify /home/me/net.pt '/data/my photos' --patch 2%"], [1, None]]
    )
    record = replace(
        review("R" * 10).evaluation,
        notes=["made from ~/photos/x, at 4/255"],
        findings=[Finding("c", "skipped", told, remedy="see /opt/x/y")],
        tables=[table],
    )
    cut = record.without_places()
    assert cut.notes == ["made from x, at 4/255"]
    assert cut.findings[0].evidence == "no image at a b/c.png under linf 4/255; 1/2 of them"
    assert cut.findings[0].remedy == "see y"
    assert cut.tables[0].rows == [["x", "robvit certify net.pt 'my photos' --patch 2%"], [1, None]]


def test_what_the_doctor_refuses_is_on_record_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Record:
        raise InputError("nothing to examine")

    monkeypatch.setattr("robvit.reviewing.doctor", refuse)
    robvit.review("robvit-mini", "sample", protocol="clean@1", out=tmp_path, limit=4)
    (finding,) = Record.load(tmp_path / "doctor" / "record.json").findings
    assert (finding.status, finding.evidence) == ("skipped", "nothing to examine")


def test_clean_accuracy_near_chance_is_red() -> None:
    lost = review("R" + "." * 9, "R" + "." * 9, classes=2)
    assert "hardly recognises" in lost.believable
    assert "normalisation" in lost.reds[0].remedy
    assert near_chance(lost.evaluation) == 0.5
    assert near_chance(review("." * 10, "RRRRRRRR..", classes=2).evaluation) is None
    assert near_chance(review("." * 10, "RR........", classes=5).evaluation) == pytest.approx(0.2)
    assert any("near chance" in note for note in claims(lost.evaluation))


def test_a_red_check_says_that_the_figure_is_too_high() -> None:
    assert review("RRRRR.....", status="red").believable.startswith("No: a check found")
    assert review("RRRRR.....", status="amber").believable.startswith("With care: 1")
    assert "not evidence of robustness" in review("RRRRR.....").believable


def test_what_may_be_written_has_everything_a_reader_needs() -> None:
    text = review("RRRRR.....").to_paste()
    for part in (
        "50.0%",
        "23.7% to 76.3%",
        "10 images of sample",
        "autoattack",
        "linf 4/255",
        "100.0%",
        "abab",
    ):
        assert part in text
    assert "> " + text in markdown(review("RRRRR....."))


def test_short_attacks_give_a_first_look_and_nothing_to_quote() -> None:
    short = review("RRRRR.....", status="amber", attack="pgd")
    assert short.believable.startswith("As a first look only")
    assert "1 finding is amber" in short.believable
    assert "longer ones may leave less" in short.to_paste()
    assert "longer ones" not in review("RRRRR.....").to_paste()
    assert review("." * 10, attack="pgd").believable.startswith("Yes")  # it cannot be lower


def test_junit_and_sarif_can_be_read_and_say_what_failed() -> None:
    suite = XML.fromstring(junit(review("RRRRR.....", status="red")))  # noqa: S314  our own
    assert (suite.get("failures"), suite.get("tests")) == ("1", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "an [31mevidence"
    told = {one.get("name"): one.get("value") for one in suite[0].iter("property")}  # properties come first
    assert told["model"] == "net"
    assert told["model file sha-256"] == "ab" * 32
    assert told["AML.T0015"] == "MITRE ATLAS: Evade AI Model"
    content = json.loads(sarif(review("RRRRR.....", status="amber")))
    (result,) = content["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("masking", "warning")


# Of the official schema of SARIF 2.1.0: what an object must have, and what of ours it may have besides;
# it allows no other names. A list stands for its entries.
SARIF_SCHEMA: dict[str, tuple[set[str], set[str]]] = {
    "": ({"version", "runs"}, {"$schema"}),
    "runs": ({"tool"}, {"results", "artifacts", "properties"}),
    "runs.tool": ({"driver"}, set()),
    "runs.tool.driver": ({"name"}, {"version", "rules"}),
    "runs.tool.driver.rules": ({"id"}, {"shortDescription", "help"}),
    "runs.tool.driver.rules.shortDescription": ({"text"}, set()),
    "runs.tool.driver.rules.help": ({"text"}, set()),
    "runs.results": ({"message"}, {"ruleId", "ruleIndex", "level", "locations"}),
    "runs.results.message": ({"text"}, set()),
    "runs.results.locations": (set(), {"physicalLocation", "logicalLocations"}),
    "runs.results.locations.physicalLocation": ({"artifactLocation"}, {"region"}),
    "runs.results.locations.physicalLocation.artifactLocation": (set(), {"uri"}),
    "runs.results.locations.physicalLocation.region": (set(), {"startLine"}),
    "runs.results.locations.logicalLocations": (set(), {"name", "kind"}),
    "runs.artifacts": (set(), {"location", "hashes"}),
    "runs.artifacts.location": (set(), {"uri"}),
    "runs.artifacts.hashes": (set(), {"sha-256"}),
    "runs.properties": (set(), {"terms"}),
}


def check_sarif(part: object, place: str = "") -> None:
    """Compare every object below a part with the schema."""
    if isinstance(part, list):
        for entry in part:
            check_sarif(entry, place)
    elif isinstance(part, dict):
        required, allowed = SARIF_SCHEMA[place]
        assert required <= part.keys() <= required | allowed, (place, part.keys())
        for name, value in part.items():
            check_sarif(value, f"{place}.{name}".lstrip("."))
    else:
        assert isinstance(part, str | int), place


@pytest.mark.parametrize("status", ["red", "amber", "green", "skipped"])
@pytest.mark.parametrize("outcome", ["." * 10, "RRRRRRRRRR"])
def test_sarif_has_what_its_schema_and_dashboards_require(outcome: str, status: str) -> None:
    made = review(outcome, status=status)
    content = json.loads(sarif(made))
    check_sarif(content)
    assert content["version"] == "2.1.0"
    assert content["$schema"].endswith("sarif-2.1.0.json")
    (run,) = content["runs"]
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert driver["name"] == "robvit"
    assert rules == list(dict.fromkeys(one.check for one in made.findings)), "each rule once"
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    told = [one.check for one in made.findings if one.status in ("red", "amber")]
    assert [result["ruleId"] for result in run["results"]] == told
    for result in run["results"]:
        assert result["ruleId"] == rules[result["ruleIndex"]]
        assert result["level"] in ("error", "warning")
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]  # dashboards pass over results without one
        assert place["artifactLocation"]["uri"] == "review.md"
        assert place["region"]["startLine"] == 1
    assert run["artifacts"] == [{"location": {"uri": "net"}, "hashes": {"sha-256": "ab" * 32}}]
    assert "MITRE ATLAS AML.T0015 Evade AI Model" in run["properties"]["terms"]


@pytest.mark.slow
def test_the_command_reviews_a_model_and_leaves_no_local_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    protocol = {
        "name": "tiny@1",
        "about": "One step.",
        "threat": {"norm": "linf", "eps": "8/255"},
        "attacks": [{"attack": "fgsm"}],
    }
    made = robvit.review("robvit-mini", "sample", protocol=Protocol(**protocol), limit=2)
    assert made.evaluation.data["count"] == 2
    assert not list(tmp_path.iterdir())  # nothing is left behind without a folder
    (tmp_path / "tiny.yaml").write_text(json.dumps(protocol))
    words = ["--protocol", str(tmp_path / "tiny.yaml"), "--limit", "4", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["review", "robvit-mini", "sample", *words])
    assert done.exit_code in (0, 1), (done.output, done.exception)
    assert "you may write:" in done.output
    for name in ("review.md", "junit.xml", "review.sarif", "report.html"):
        assert (tmp_path / "out" / name).stat().st_size > 100
    for name in ("review.md", "junit.xml", "review.sarif", "report.html"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()
