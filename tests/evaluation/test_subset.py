"""Which images are judged and which attackers learn from."""

from __future__ import annotations

from robvit.data import open_data
from robvit.evaluation.subset import public_images


def test_attackers_learn_from_images_that_a_defenders_draw_does_not_hold() -> None:
    judged, defender = open_data("sample", limit=8), open_data("sample", split="train", limit=192)
    own = public_images(None, "sample", judged, split=None)
    assert len(own(64)) == 64
    assert not set(own(64).names) & set(defender.names)
    assert set(own(16).names) <= set(own(64).names)  # fewer are the beginning of more
    assert {own(64).labels.count(label) for label in range(10)} == {6, 7}


def test_images_that_attackers_are_given_are_drawn_from_the_first() -> None:
    judged = open_data("sample", limit=8)
    given = public_images("sample", "sample", judged, split="train")(16)
    assert given.names == open_data("sample", split="train", limit=16).names
