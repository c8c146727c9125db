"""A model that is judged on images that its head or tokens learned from is told so, wherever it is judged."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import robvit
from robvit import reviewing
from robvit.backbones.heads import load_head
from robvit.challenging import challenge
from robvit.diagnosis.doctor import doctor
from robvit.errors import InputError
from robvit.evaluation.classifiers import open_classifier
from robvit.evaluation.doubts import doubts
from robvit.evaluation.protocol import Protocol
from robvit.training.head import train_head

ONE_STEP = {
    "name": "tiny@1",
    "about": "One step.",
    "threat": {"norm": "linf", "eps": "1/255"},
    "attacks": [{"attack": "fgsm"}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images of each of two colours, without splits."""
    place = tmp_path_factory.mktemp("colours")
    for name, colour in (("blue", (0, 0, 1)), ("red", (1, 0, 0))):
        (place / name).mkdir()
        for level in range(150, 250, 10):
            Image.new("RGB", (32, 32), tuple(level * part for part in colour)).save(
                place / name / f"{level}.png"
            )
    return place


@pytest.fixture(scope="module")
def head(folder: Path) -> Path:
    path = folder.parent / "head.safetensors"
    train_head(robvit.load("robvit-mini"), folder, out=path)
    return path


@pytest.mark.slow
def test_training_images_are_told_and_others_are_not(folder: Path, head: Path) -> None:
    model = robvit.load("robvit-mini", head=head)
    rules = Protocol.model_validate(ONE_STEP)
    told = "the head was trained on 16 of these 20 images"
    judged = robvit.evaluate(model, folder, protocol=rules)
    assert any(told in note for note in judged.notes)
    assert any(told in note for note in robvit.attack(model, folder, settings={"steps": 1}).notes)
    apart = robvit.evaluate(model, folder, protocol=rules, split="held-out")
    assert not any("was trained on" in note for note in apart.notes)


def test_images_that_tokens_were_learned_from_are_told(folder: Path) -> None:
    model, images = robvit.load("robvit-mini"), robvit.open_data(folder)
    values, names = torch.zeros(1, 2, model.width), tuple(images.names[:5])
    tokens = robvit.RobustTokens(values, model.fingerprint(), learned_from=names)
    hardened = open_classifier(model.replace(tokens=tokens))
    (told,) = doubts(hardened, images)
    assert "the tokens were learned from 5 of these 20 images" in told
    assert doubts(hardened, images.take(range(5, 20))) == doubts(open_classifier(model), images) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::robvit.attacks.AttackWarning")
def test_a_challenge_tells_it_too(folder: Path, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(challenge, "CHECKS", ("randomness",))  # the others add nothing
    model = robvit.load("robvit-mini", head=head)
    made = robvit.challenge(model, folder, lambda plain: plain, steps=1, queries=1)
    assert "Attackers who know the defence" in made.notes[0]
    assert "the head was trained on 16 of these 20 images" in made.notes[1]


@pytest.mark.slow
def test_a_review_puts_it_among_the_reds(folder: Path, head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviewing, "doctor", partial(doctor, checks=["randomness"]))  # the others add nothing
    rules = Protocol.model_validate(ONE_STEP)
    made = robvit.review(robvit.load("robvit-mini", head=head), folder, protocol=rules, limit=8)
    (finding,) = (one for one in made.reds if one.check == "training_images")
    assert "of these 8 images" in finding.evidence


def test_what_is_passed_on_does_not_tell_which_images_they_were(head: Path, tmp_path: Path) -> None:
    assert len(load_head(head).learned_from) == 16
    load_head(head).save_pretrained(tmp_path)
    assert robvit.load("robvit-mini", head=tmp_path).head.learned_from == ()


def test_a_file_that_tells_nonsense_of_its_images_is_refused(head: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(head, "pt") as file:
        facts = file.metadata()
    save_file(load_file(head), tmp_path / "bad.safetensors", facts | {"learned_from": json.dumps([1, 2])})
    with pytest.raises(InputError, match="learned_from must be a list of texts"):
        load_head(tmp_path / "bad.safetensors")
