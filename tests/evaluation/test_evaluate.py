"""Protocols and the runner: what a protocol refuses, what a record holds, resume and sharing out."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.protocols import SHORT_PROTOCOL
from robvit.attacks import run
from robvit.autoattack import PARTS, part_settings
from robvit.cli import app
from robvit.data import ImageDataset, open_data
from robvit.errors import Busy, DataError, InputError
from robvit.evaluation import protocol as protocols
from robvit.evaluation.forecast import Steadfast, forecast, plan_of
from robvit.evaluation.protocol import Protocol
from robvit.evaluation.robustbench import model_info
from robvit.locks import alone_in
from robvit.record import Record

HEAD = "name: mine@1\nabout: for a test\n"
LINF = HEAD + "threat: {norm: linf, eps: 8/255}\n"


def written(tmp_path: Path, rules: dict[str, Any]) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(rules))  # JSON is YAML
    return path


@pytest.mark.parametrize("name", protocols.names())
def test_the_packages_protocols_are_sound_and_called_by_their_names(name: str) -> None:
    assert protocols.find(name).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINF + "attacks: [{attack: pdg}]", "attacks.0: no attack is called 'pdg'; did you mean pgd"),
        (HEAD + "threat: {norm: linf, eps: 8}", "threat: eps is in pixels, more than 0 and at most 1, got 8"),
        (HEAD + "threat: {norm: linf, eps: 0}", "more than 0"),
        (HEAD + "threat: {norm: l2, eps: .inf}", "finite"),
        (HEAD + "threat: {norm: linf, eps: many}", "threat.eps: expected a number such as 8/255"),
        (HEAD + "threat: {norm: l7, eps: 1}", "norm must be one of linf, l2, l1, patch, got 'l7'"),
        (LINF + "attcks: []", "no field is called 'attcks'; did you mean attacks"),
        (
            LINF + "attacks: [{attck: pgd}]",
            "attacks.0.attck: no field is called 'attck'; did you mean attack",
        ),
        (LINF + "attacks: [{attack: pgd, settings: {stepz: 2}}]", "did you mean step"),
        (LINF + "attacks: [{attack: pgd, settings: {steps: 0}}]", "settings.steps must be a whole number"),
        (LINF + "attacks: [{attack: pgd, settings: {seed: 2}}]", "`seeds` of the protocol"),
        (LINF + "attacks: [{attack: feature}]", "judges classifiers"),
        (LINF + "attacks: [{attack: cw_l2}]", "attacks.0: cw_l2 works in l2, not linf"),
        (LINF + "attacks: [{attack: pgd, attacker: all}]", "no attacker is called 'all'"),
        (LINF + "attacks: [{attack: pgd, attacker: black-box}]", "take square"),
        (LINF + "controls: [noise]", "no control is called 'noise'"),
        (LINF + "subset: {count: 0}", "subset.count"),
        (HEAD + "attacks: [{attack: pgd}]", "has no threat"),
        ("name: mine\nabout: x", "name: String should match"),
        ("name: mine@1", "about is missing"),
        ("- 1", "got list"),
        ("a: [", "not plain YAML"),
        ("a: !!python/object/apply:os.getcwd []", "not plain YAML"),
    ],
)
def test_a_protocol_with_a_mistake_is_refused_by_the_field(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        protocols.find(path)
    assert message in str(refused.value)


def test_an_unknown_protocol_offers_the_nearest() -> None:
    with pytest.raises(robvit.RobvitError, match="did you mean quick@1"):
        protocols.find("quik@1")


@pytest.mark.slow
def test_attacks_on_survivors_are_autoattack_and_tell_what_they_skipped() -> None:
    """The four parts one after another break the images that AutoAttack breaks."""
    steps, queries = 3, 10
    rules = Protocol.model_validate(
        {
            **SHORT_PROTOCOL,
            "survivors": True,
            "attacks": [
                {"attack": "apgd_ce", "settings": {"steps": steps}},
                {"attack": "apgd_t", "settings": {"steps": steps, "targets": 3}},
                {"attack": "fab_t", "settings": {"steps": steps, "targets": 3}},
                {"attack": "square", "settings": {"steps": queries}},
            ],
        }
    )
    model = robvit.load("robvit-mini-robust")
    images = open_data("sample", limit=16)
    record = robvit.evaluate(model, images, protocol=rules, batch=16)
    whole = run(
        "autoattack",
        model,
        *images.tensors(),
        rules.threat_of(rules.attacks[0]),
        steps=steps,
        targets=3,
        queries=queries,
        eight_bit=True,
    )
    assert record.still_correct() == (~whole.success).tolist()
    clean, *attacks = record.trials
    assert sum(clean.correct) > sum(attacks[0].correct)  # else nothing was skipped and nothing shown
    before = clean
    for trial in attacks:
        assert trial.skipped == [i for i, correct in enumerate(before.correct) if not correct]
        assert all(trial.predicted[i] == before.predicted[i] for i in trial.skipped)
        before = trial
    assert any("none before it succeeded" in note for note in record.notes)


@pytest.mark.slow
def test_without_survivors_every_attack_sees_every_image_and_the_worst_case_is_by_image() -> None:
    rules = Protocol.model_validate({**SHORT_PROTOCOL, "seeds": [0, 1]})
    model = robvit.load("robvit-mini-robust")
    images = open_data("sample", limit=12)
    record = robvit.evaluate(model, images, protocol=rules, batch=5)
    assert [(t.attack, t.settings.get("seed")) for t in record.trials] == [
        ("clean", None),
        ("pgd", 0),
        ("pgd", 1),
        ("square", 0),
        ("square", 1),
    ]
    assert not any(t.skipped for t in record.trials)
    x, y = images.tensors()
    alone = run("pgd", model, x, y, rules.threat_of(rules.attacks[0]), steps=2, seed=1, eight_bit=True)
    assert record.trials[2].correct == (~alone.success).tolist()
    worst = [all(t.correct[i] for t in record.trials) for i in range(12)]
    assert record.headline().share == sum(worst) / 12


@pytest.mark.slow
def test_the_images_are_the_protocols(tmp_path: Path) -> None:
    rules = {**SHORT_PROTOCOL, "attacks": [], "subset": {"count": 9, "seed": 3}}
    by_name = robvit.evaluate("robvit-mini", "sample", protocol=Protocol.model_validate(rules))
    everything = open_data("sample")
    by_set = robvit.evaluate("robvit-mini", everything, protocol=Protocol.model_validate(rules))
    assert by_name.data["names"] == by_set.data["names"] == open_data("sample", limit=9, seed=3).names
    digest = by_name.data["digest"]
    pinned = {**rules, "subset": {"count": 9, "seed": 3, "digest": digest}}
    robvit.evaluate("robvit-mini", "sample", protocol=Protocol.model_validate(pinned))
    with pytest.raises(DataError, match=digest[:12]):
        robvit.evaluate("robvit-mini", "sample", protocol=Protocol.model_validate(pinned), limit=8)
    fewer = robvit.evaluate("robvit-mini", "sample", protocol=Protocol.model_validate(rules), limit=4)
    assert "4 of its 9 images" in " ".join(fewer.notes)


@pytest.mark.slow
def test_only_one_batch_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    arrays = ImageDataset.tensors

    def watched(self: ImageDataset) -> tuple[torch.Tensor, torch.Tensor]:
        held.append(len(self))
        return arrays(self)

    monkeypatch.setattr(ImageDataset, "tensors", watched)
    rules = Protocol.model_validate(SHORT_PROTOCOL)
    robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=20, batch=4, out=tmp_path, log=print)
    robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=20, batch=4, out=tmp_path)
    assert max(held) == 4


def test_the_forecast_is_exact_where_no_attack_succeeds() -> None:
    rules = Protocol.model_validate(SHORT_PROTOCOL)
    net = Steadfast(10)
    listing = open_data("sample", limit=200)
    airplanes = listing.take([i for i, label in enumerate(listing.labels) if label == 0][:5]).resized(8)
    record = robvit.evaluate(net, airplanes, protocol=rules, batch=1)
    guess = forecast(plan_of(rules, net, count=5, classes=10), net, airplanes.tensors()[0])
    assert sum(t.forward for t in record.trials) == guess.forward
    assert sum(t.backward for t in record.trials) == guess.backward
    assert guess.seconds > 0
    assert f"{guess.forward} forward" in str(guess)


@pytest.mark.slow
def test_the_command_ends_with_a_table_and_the_next_step(tmp_path: Path) -> None:
    rules = written(tmp_path, SHORT_PROTOCOL)
    arguments = [
        "evaluate",
        "robvit-mini",
        "sample",
        "--protocol",
        str(rules),
        "--limit",
        "4",
        "--out",
        str(tmp_path / "out"),
        "--robustbench",
        str(tmp_path / "info.json"),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    for text in ("backward passes", "worst case", "The attacker knew everything", "next: robvit report"):
        assert text in done.output
    record = Record.load(tmp_path / "out" / "record.json")
    assert record.protocol["attacks"][0]["settings"] == {"steps": 2}
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["clean_acc"] == f"{100 * sum(record.trials[0].correct) / 4:.2f}"
    assert (info["eps"], info["threat_model"], "autoattack_acc" in info) == ("8/255", "Linf", False)
    full = part_settings(sparse=False)
    parts = [replace(record.trials[1], attack=name, settings=full[name]) for name in PARTS]
    whole = replace(record, trials=[record.trials[0], *parts])
    assert "autoattack_acc" not in model_info(replace(whole, trials=whole.trials[:-1]))
    assert model_info(whole)["autoattack_acc"] == f"{100 * whole.robust_accuracy():.2f}"
    listed = CliRunner().invoke(app, ["evaluate", "--list"])
    assert "linf-8-standard@1" in listed.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["robvit-mini", "sample", "--protocol", "nothing@1"], "no protocol is called"),
        (["robvit-mini", "sample", "--protocol", "rob-tokens@1"], "give --tokens"),
        (["robvit-mini", "DATA"], "images with labels"),
        (["robvit-mini", "sample", "--precision", "fp8"], "precision must be auto, fp32"),
        (["robvit-mini", "sample", "--protocol", "clean@1", "--robustbench", "x.json"], "wants attacks"),
    ],
)
def test_bad_input_leaves_nothing_behind(
    arguments: list[str], message: str, tmp_path: Path, sample_folder: Path
) -> None:
    given = [str(sample_folder) if a == "DATA" else a for a in arguments]
    done = CliRunner().invoke(app, ["evaluate", *given, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, robvit.RobvitError)
    assert message in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def sample_folder(tmp_path: Path) -> Path:
    """Two images without labels."""
    from PIL import Image

    folder = tmp_path / "unlabelled"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (32, 32)).save(folder / name)
    return folder


@pytest.mark.slow
def test_a_record_survives_writing_and_reading(tmp_path: Path) -> None:
    rules = Protocol.model_validate(SHORT_PROTOCOL)
    record = robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=3)
    record.save(tmp_path / "record.json")
    assert asdict(Record.load(tmp_path / "record.json")) == asdict(record)
    text = (tmp_path / "record.json").read_text()
    (tmp_path / "half.json").write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match="not a record that can be read"):
        Record.load(tmp_path / "half.json")


@pytest.mark.parametrize("verb", [robvit.evaluate, robvit.attack])
def test_every_parameter_is_in_the_signature_and_in_the_docstring(verb: Any) -> None:
    names = list(inspect.signature(verb).parameters)
    assert names[:2] == ["model", "data"]
    assert "out" in names
    lines = (inspect.getdoc(verb) or "").splitlines()
    assert [line.split(":")[0] for line in lines if line.split(":")[0] in names] == names


VERBS: dict[str, Any] = {
    "evaluate": lambda **given: robvit.evaluate("robvit-mini", "sample", protocol="clean@1", **given),
    "attack": lambda **given: robvit.attack("robvit-mini", "sample", attack="fgsm", **given),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VERBS)
def test_out_always_leaves_the_record_and_no_two_runs_share_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = VERBS[name](limit=2, out="out")
    assert Record.load("out/record.json") == record
    bare = VERBS[name](limit=2)
    assert [t.correct for t in bare.trials] == [t.correct for t in record.trials]
    assert not any(t.shards for t in bare.trials)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert all((tmp_path / "out" / t.shards).is_dir() for t in record.trials)
    with alone_in("out"), pytest.raises(Busy, match="another run"):
        VERBS[name](limit=2, out="out")


@pytest.mark.slow
def test_progress_adds_up_to_one(tmp_path: Path) -> None:
    done: list[float] = []

    def advance(amount: float = 1, note: str = "") -> None:
        done.append(amount)

    rules = Protocol.model_validate(SHORT_PROTOCOL)
    robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=4, batch=2, progress=advance)
    assert sum(done) == pytest.approx(1)
    done.clear()
    attacks = [{"attack": name, "settings": {"steps": 4}} for name in ("pgd", "apgd_ce")]
    large = {"survivors": True, "threat": {"norm": "linf", "eps": "128/255"}, "attacks": attacks}
    rules = Protocol.model_validate(SHORT_PROTOCOL | large)
    record = robvit.evaluate("robvit-mini", "sample", protocol=rules, limit=4, batch=2, progress=advance)
    assert record.headline().share == 0  # so that the second attack found no image left
    assert sum(done) == pytest.approx(1)
    done.clear()
    robvit.attack("robvit-mini", "sample", attack="fgsm", limit=4, batch=2, progress=advance)
    assert sum(done) == pytest.approx(1)
