"""Which images are judged and which attackers learn from."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import robvit
from robvit.data import open_data
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import train_tokens
from robvit.errors import DataError, InputError
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import judged_images, public_images


def test_a_limit_says_how_many_images_there_are(tmp_path: Path) -> None:
    for index in range(10):
        Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / f"{index}.png")
    said: list[str] = []
    for data, split in ((str(tmp_path), None), (tmp_path, "learn"), (open_data(tmp_path), None)):
        judged_images(data, Subset(), split=split, limit=2, log=said.append)
        judged_images(data, Subset(), split=split, limit=10, log=said.append)
        judged_images(data, Subset(), split=split, limit=None, log=said.append)
    told = "2 of {0} images are judged; for all of them: --limit {0}"
    assert said == [told.format(10), told.format(8), told.format(10)]


@pytest.mark.slow
def test_attackers_learn_from_images_that_a_defenders_draw_does_not_hold() -> None:
    judged, defender = open_data("sample", limit=8), open_data("sample", split="train", limit=192)
    own = public_images(None, "sample", judged, split=None)
    assert len(own(64)) == 64
    assert not set(own(64).names) & set(defender.names)
    assert set(own(16).names) <= set(own(64).names)  # fewer are the beginning of more
    assert {own(64).labels.count(label) for label in range(10)} == {6, 7}


def test_of_a_folder_without_splits_attackers_have_the_last_to_learn_from(tmp_path: Path) -> None:
    for index in range(40):
        picture = tmp_path / ("ant", "bee")[index % 2] / f"{index}.png"
        picture.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (index, 0, 0)).save(picture)
    judged = open_data(tmp_path, split="held-out", limit=4)
    defender = open_data(tmp_path, split="learn", limit=20)
    taken = set(defender.names)
    own = public_images(None, str(tmp_path), judged, split="held-out", taken=taken)(8)
    assert len(own) == 8
    assert not set(own.names) & (taken | set(open_data(tmp_path, split="held-out").names))
    with pytest.raises(DataError, match="not in the dataset"):  # which part an image is in, no list changes
        open_data(tmp_path, split="held-out", subset=own.names)


def test_images_that_attackers_are_given_are_drawn_from_the_first() -> None:
    judged = open_data("sample", limit=8)
    given = public_images("sample", "sample", judged, split="train")(16)
    assert given.names == open_data("sample", split="train", limit=16).names


def test_attackers_who_are_given_sorted_images_learn_from_all_classes() -> None:
    everything = open_data("sample", split="train")
    in_order = everything.take(sorted(range(len(everything)), key=everything.labels.__getitem__))
    given = public_images(in_order, "sample", open_data("sample", limit=8), split="train")(20)
    assert len(set(given.labels)) == 10


def test_attackers_never_learn_from_the_defenders_images() -> None:
    judged, everything = open_data("sample", limit=8), open_data("sample", split="train")
    taken = set(everything.names[:900])
    for source in (None, "sample", everything):
        own = public_images(source, "sample", judged, split="train", taken=taken)
        assert len(own(64)) == 64
        assert not set(own(64).names) & taken
    with pytest.raises(InputError, match="are the defender's; give others: --public"):
        public_images(everything, "sample", judged, split="train", taken=set(everything.names))(4)


@pytest.mark.slow
def test_tokens_tell_an_evaluation_what_they_were_learned_from(tmp_path: Path) -> None:
    model, images = robvit.load("robvit-mini"), open_data("sample", split="train", limit=4)
    recipe = TokenRecipe(steps=1, batch=2, attack=AttackSetting(settings={"steps": 1}))
    tokens = train_tokens(model, images, recipe, cache=tmp_path / "cache").tokens
    tokens.save(tmp_path / "tokens.safetensors")
    hardened = robvit.load("robvit-mini", tokens=tmp_path / "tokens.safetensors")
    assert hardened.learned_from == set(images.names)
    assert hardened.replace(head=None).learned_from == set(images.names)
    assert not hardened.replace(tokens=None).learned_from
