"""Records that can be checked: impersonated protocols, forged outcomes, other images, signatures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

import robvit
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.verify_rules import Verification, _not_run, check_protocol
from robvit.record import Record, Trial
from robvit.tensor_files import read_tensors
from robvit.threat import Threat

MODEL = "robvit-mini"
RULES = """
name: small@1
about: one attack
threat: {norm: linf, eps: 4/255}
attacks: [{attack: pgd, settings: {steps: 2}}]
"""


def robvit_(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished evaluation."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "rules.yaml").write_text(RULES)
    robvit.evaluate(MODEL, "sample", protocol=folder / "rules.yaml", limit=6, batch=4, out=folder / "out")
    return folder / "out"


@pytest.fixture
def copy(judged: Path, tmp_path: Path) -> Path:
    for path in judged.rglob("*"):
        if path.is_file():
            place = tmp_path / path.relative_to(judged)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return tmp_path


def forged(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The record with a change."""
    place = folder / "record.json"
    content = json.loads(place.read_text())
    change(content)
    place.write_text(json.dumps(content))


def test_a_bundled_name_is_for_the_bundled_rules(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(RULES.replace("small@1", "linf-8-standard@1"))
    with pytest.raises(InputError, match="bundled protocol, and these are other rules"):
        find(path)
    with pytest.raises(InputError, match="other rules"):
        find(find("quick@1").model_copy(update={"name": "linf-8-standard@1"}))
    assert find(find("quick@1")).digest() == find("quick@1").digest()


@pytest.mark.slow
def test_a_sound_record_carries_its_hashes_and_verifies(judged: Path) -> None:
    record = Record.load(judged / "record.json")
    assert len(record.protocol["digest"]) == 64
    assert [len(trial.shards_sha256) for trial in record.attacks()] == [64]
    done = robvit_("verify", judged, MODEL)
    assert done.exit_code == 0, done.output
    assert "BROKEN" not in done.output
    for claim in (
        "protocol small@1",
        "is the judged model",
        "those of the record",
        "files",
        "budget",
        "success",
    ):
        assert claim in done.output
    alone = robvit_("verify", judged)
    assert alone.exit_code == 0, alone.output
    assert "not checked: what the model answers" in alone.output


def test_a_patch_is_measured_by_the_pixels_that_changed(tmp_path: Path) -> None:
    settings = {"steps": 2, "locations": 1}
    square = robvit.Threat("patch", 5)
    robvit.attack(MODEL, "sample", attack="patch", threat=square, settings=settings, limit=2, out=tmp_path)
    done = robvit_("verify", tmp_path, MODEL)
    assert done.exit_code == 0, done.output
    assert "patch" in done.output


def test_outcomes_that_contradict_predictions_are_not_even_loaded(copy: Path) -> None:
    forged(copy, lambda r: r["trials"][1].update(correct=[True] * 6))
    with pytest.raises(InputError, match="calls image"):
        Record.load(copy / "record.json")


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "success": (
        lambda r: r["trials"][1].update(correct=[True] * 6, predicted=r["data"]["labels"]),
        "success of every image",
    ),
    "distance": (lambda r: r["trials"][1].update(distance=[0.001] * 6), "budget"),
    "budget": (lambda r: r["trials"][1]["threat"].update(eps=0.001), "budget"),
    "model": (lambda r: r["model"].update(identity="abc"), "the judged model"),
    "pixels": (lambda r: r["data"].update(pixels="abc"), "the images are those"),
    "rules": (lambda r: r["protocol"]["attacks"][0]["settings"].update(steps=50), "protocol small@1"),
    "another attack": (lambda r: r["trials"][1]["settings"].update(steps=50), "as the protocol says"),
    "protocol": (lambda r: r["protocol"].update(name="linf-8-standard@1"), "protocol linf-8-standard@1"),
    "no shards": (lambda r: r["trials"][1].update(shards="elsewhere"), "kept images"),
    "outside": (lambda r: r["trials"][1].update(shards="../.."), "kept images"),
    "nothing kept": (lambda r: r["trials"][1].update(shards=""), "nothing shows what it claims"),
    "no labels": (
        lambda r: (r["data"].update(labels=None), r["trials"][1].update(correct=[True] * 6)),
        "outcomes agree with predictions and labels",
    ),
    "no digest": (
        lambda r: (r["protocol"].pop("digest"), r["protocol"].update(name="linf-8-standard@1")),
        "protocol linf-8-standard@1",
    ),
    "digest": (lambda r: r["protocol"].update(digest="0" * 64), "its rules are not those of its digest"),
    "hash": (lambda r: r["trials"][1].update(shards_sha256="0" * 64), "not the files that the record names"),
    "not counted": (lambda r: r["trials"][1].update(control=True), "no trial that counts"),
    "no attack": (lambda r: r["trials"].pop(), "no trial that counts"),
    "another budget": (lambda r: other_budget(r), "the protocol wants linf 8/255, the record has linf 4/255"),
    "rounded budget": (lambda r: r["trials"][1]["threat"].update(eps=0.0156), "the budget is linf 3.978/255"),
    "no number": (lambda r: r["trials"][1].update(distance=[float("nan")] * 6), "nan is claimed"),
    "preprocessing": (lambda r: r["data"].update(resize="crop", pixels=""), "budget: image"),
    "size": (lambda r: r["data"].update(size=28, pixels=""), "28 pixels a side, robvit-mini takes 32"),
    "model file": (lambda r: r["model"].update(file_sha256="abc"), "another file than the record names"),
    "code in the rules": (
        lambda r: r["protocol"].update(
            name="quick@1", attacks=[{"attack": "antigravity:attack", "settings": {}}]
        ),
        "the bundled protocol has no attack antigravity:attack",
    ),
    "left out as wrong": (lambda r: left_out(r, "skipped"), "no trial before says so"),
    "left out as correct": (lambda r: left_out(r, "unseen"), "has no audit by this attack"),
}


def other_budget(record: dict[str, Any]) -> None:
    """Say of an attack within 4/255 that it was one of a protocol for 8/255."""
    record["protocol"]["threat"]["eps"] = 8 / 255
    held = {key: value for key, value in record["protocol"].items() if key in Protocol.model_fields}
    record["protocol"]["digest"] = Protocol(**held).digest()


def left_out(record: dict[str, Any], how: str) -> None:
    """Say of an image that the attack never saw it."""
    clean, attack = record["trials"]
    place = next(i for i, correct in enumerate(clean["correct"]) if correct)
    attack[how] = [place]
    attack["correct"][place] = how == "unseen"
    attack["predicted"][place] = record["data"]["labels"][place] + (how == "skipped")


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_record_is_found_out(what: str, copy: Path) -> None:
    change, claim = FORGERIES[what]
    forged(copy, change)
    done = robvit_("verify", copy, MODEL)
    assert done.exit_code == 1, done.output
    assert any(line.startswith("BROKEN") and claim in line for line in done.output.splitlines()), done.output


def test_other_images_in_the_shards_are_found_out(copy: Path) -> None:
    shard = next(iter(sorted(copy.rglob("shards/*pgd*/shard-*.safetensors"))))
    tensors, facts = read_tensors(shard, "a shard")
    tensors["adv"] = 255 - tensors["adv"]
    save_file(tensors, shard, facts)
    done = robvit_("verify", copy, MODEL)
    assert done.exit_code == 1
    assert "not the files that the record names" in done.output
    assert "away, the budget is" in done.output


def test_another_model_and_other_images_are_found_out(copy: Path) -> None:
    done = robvit_("verify", copy, "robvit-mini-robust")
    assert done.exit_code == 1
    assert "BROKEN: robvit-mini-robust is the judged model: the record names" in done.output
    other = robvit_("verify", copy, MODEL, "--data", "sample?corruption=fog:3")
    assert other.exit_code == 1
    assert "BROKEN: the images are those of the record" in other.output


def test_fewer_or_more_images_than_outcomes(copy: Path) -> None:
    shard = sorted(copy.rglob("shards/*pgd*/shard-*.safetensors"))[-1]
    shard.unlink()
    done = robvit_("verify", copy, MODEL)
    assert done.exit_code == 1
    assert "counts: 4 images for 6 outcomes" in done.output
    forged(copy, lambda r: r["data"].update(count=5))
    assert "must have 5 entries, got 6" in str(robvit_("verify", copy, MODEL).exception)


STRANGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "names": lambda r: r["data"].update(names=5),
    "classes": lambda r: r["data"].update(classes=5),
    "a giant side": lambda r: r["data"].update(size=10**6),
    "a side in words": lambda r: r["data"].update(size="large"),
    "a way to resize": lambda r: r["data"].update(resize=[1]),
    "rules": lambda r: r["protocol"].update(attacks={"a": 1}),
    "a network place": lambda r: r["data"].update(spec="//host/images"),
    "a folder's name": lambda r: r["trials"][1].update(shards="a\0b"),
    "no budget": lambda r: r["trials"][1].update(threat=None),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_values_are_told_in_words(what: str, copy: Path) -> None:
    forged(copy, STRANGE[what])
    done = robvit_("verify", copy)
    assert done.exception is None or isinstance(done.exception, SystemExit | InputError), done.exception
    assert what == "classes" or done.exit_code or "not checked: distances" in done.output, done.output


@pytest.mark.parametrize("where", ["data", "protocol"])
def test_a_record_makes_nobody_run_code(where: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever checks a stranger's folder may well stand in it, where its modules would be found."""
    (copy / "evil.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(str(copy))
    if where == "data":
        forged(copy, lambda r: r["data"].update(spec="evil:images"))
    else:
        forged(copy, lambda r: r["protocol"].update(attacks=[{"attack": "evil:attack", "settings": {}}]))
    done = robvit_("verify", copy, MODEL)
    assert "does not make anyone run" in done.output
    assert "it ran" not in done.output
    reported = robvit_("report", copy)
    assert reported.exit_code == 0, reported.output
    assert "it ran" not in reported.output


@pytest.mark.parametrize("unseen", [[3, 4], [2, 3, 4]])
def test_an_audit_tries_as_many_as_the_protocol_says(unseen: list[int]) -> None:
    """Five survivors, of which the protocol has three tried."""
    attacks = [{"attack": "pgd"}, {"attack": "square", "audited": True}]
    rules = Protocol(
        name="mine@1", about="", threat={"norm": "linf", "eps": 0.1}, attacks=attacks, survivors=True, audit=3
    )
    budget, outcome = Threat("linf", 0.1).budget, ([True] * 5, [0] * 5, [0.0] * 5)
    first = Trial("pgd", budget, {}, *outcome, attacker="white-box")
    audited = replace(first, attack="square", unseen=unseen)
    held = {**rules.model_dump(mode="json"), "digest": rules.digest()}
    found = Verification()
    check_protocol(Record("evaluate", {}, {}, [first, audited], protocol=held), found)
    wrong = ["square tried 2 of 5 survivors, 3 are wanted"] if len(unseen) == 3 else []
    assert [line.rpartition(": ")[2] for line in found.broken] == wrong


@pytest.mark.slow
def test_a_signature_is_of_the_content_and_of_one_key(copy: Path) -> None:
    pytest.importorskip("cryptography")
    key, record = copy / "key.pem", copy / "record.json"
    assert robvit_("sign", "--new-key", key).exit_code == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert robvit_("sign", copy, "--key", key).exit_code == 0
    check = ("verify", copy, "--key", f"{key}.pub")
    assert robvit_(*check).exit_code == 0
    record.write_text(json.dumps(json.loads(record.read_text()), sort_keys=True, indent=7))
    assert robvit_(*check).exit_code == 0  # spaces and order are no content
    forged(copy, lambda r: r.update(command="robvit something else"))
    done = robvit_(*check)
    assert done.exit_code == 1
    assert "changed afterwards" in done.output
    assert robvit_("sign", copy, "--key", key).exit_code == 0
    assert robvit_("sign", "--new-key", copy / "other.pem").exit_code == 0
    assert robvit_("verify", copy, "--key", copy / "other.pem.pub").exit_code == 1
    (copy / "record.json.sig").unlink()
    assert "there is no record.json.sig" in robvit_(*check).output
    assert "not a key" in str(robvit_("sign", copy, "--key", f"{key}.pub").exception)  # of this kind
    assert robvit_("sign", "--new-key", key).exception is not None  # a key is never overwritten


def test_a_new_key_replaces_neither_half_of_an_old_one(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    key, public = tmp_path / "key.pem", tmp_path / "key.pem.pub"
    public.write_text("somebody's")
    assert "key.pem.pub is already there" in str(robvit_("sign", "--new-key", key).exception)
    assert public.read_text() == "somebody's"
    assert not key.exists()
    public.unlink()
    key.write_text("a secret")
    assert "key.pem is already there" in str(robvit_("sign", "--new-key", key).exception)
    assert key.read_text() == "a secret"


def test_every_seed_and_every_surrogate_has_to_be_there() -> None:
    rules = Protocol.model_validate(
        {
            "name": "mine@1",
            "about": "two seeds",
            "threat": {"norm": "linf", "eps": "4/255"},
            "attacks": [{"attack": "pgd", "attacker": "own-tokens", "settings": {"steps": 2}}],
            "seeds": [0, 1],
            "attacker_budget": {"sets": 2},
        }
    )
    budget = Threat("linf", 4 / 255).budget
    names = ("own tokens 1", "own tokens 2", "own tokens together")

    def flaw(*left_out: tuple[int, str]) -> str:
        trials = [
            Trial(
                "pgd",
                budget,
                {"steps": 2, "seed": seed},
                [True],
                [0],
                [0.0],
                attacker="own-tokens",
                surrogate=name,
            )
            for seed in (0, 1)
            for name in names
            if (seed, name) not in left_out
        ]
        return _not_run(rules.attacks[0], rules, Record("evaluate", {}, {"count": 1}, trials))

    assert flaw() == ""
    assert flaw((1, names[2])) == "seed 1 of the protocol ran on 2 models, 3 are wanted"
    assert flaw(*((0, name) for name in names)) == "seed 0 of the protocol ran on 0 models, 3 are wanted"
