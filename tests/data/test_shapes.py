"""The drawn scenes: exact masks, the same at every size and every time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from robvit.data import open_data
from robvit.data.shapes import CLASSES, COUNTS, FORMS, REACH, Scene
from robvit.errors import DataError


def test_a_set_like_any_other() -> None:
    images = open_data("shapes", split="train", limit=5, size=56)
    x, masks = images.tensors()
    assert images.kind == "masks"
    assert x.shape == (5, 3, 56, 56)
    assert masks.shape == (5, 56, 56)
    assert masks.dtype == torch.int64
    assert 0 <= x.min() < x.max() <= 1
    assert images.classes == CLASSES
    assert int(masks.max()) < len(CLASSES)
    assert images.shape(0) == (224, 224)
    assert torch.equal(images.resized(56, "crop").tensors()[0], x)  # a scene is a square already
    assert open_data("shapes", limit=1)[0][0].shape == (3, 224, 224)
    assert len(open_data("shapes", split="train")) == COUNTS["train"]


def test_the_same_every_time_and_other_for_every_index_and_part() -> None:
    first, again = Scene("train", 3).render(40), Scene("train", 3).render(40)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    seen = {Scene(part, i).render(24)[0].numpy().tobytes() for part in COUNTS for i in range(20)}
    assert len(seen) == 40


def test_every_size_shows_the_same_scene() -> None:
    """A mask at a third of the size is the middle pixel of every three by three, exactly."""
    for i in range(6):
        (small_x, small), (large_x, large) = (Scene("test", i).render(side) for side in (60, 180))
        agree = (small == large[1::3, 1::3]).float().mean()
        assert agree > 0.999  # a centre may fall on an edge to within rounding
        shrunk = torch.nn.functional.avg_pool2d(large_x.float()[None], 3)[0]
        assert (shrunk - small_x.float()).abs().mean() < 8


@pytest.mark.slow
def test_every_class_occurs_and_none_drowns_the_others() -> None:
    masks = torch.stack([Scene("train", i).render(48)[1] for i in range(120)])
    shares = masks.flatten().bincount(minlength=len(CLASSES)) / masks.numel()
    assert 0.4 < shares[0] < 0.8
    assert shares[1:].min() > 0.01


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_distances(name: str) -> None:
    """Near the edge a step of one pixel changes the distance by at most one pixel, and by about one
    across it; beyond REACH there is nothing."""
    side = np.linspace(-1.6, 1.6, 641, dtype=np.float32)
    u, v = np.meshgrid(side, side)
    step = float(side[1] - side[0])
    distance, part = FORMS[name][0](u, v)
    assert set(np.unique(part)) <= {0, 1, 2}
    for stretch in (0.85, 1.15):
        assert (distance[np.hypot(u * stretch, v / stretch) > REACH] > 0).all()
    rows, columns = np.gradient(distance, step)
    edge = np.abs(distance) < 2 * step
    slope = np.hypot(rows, columns)[edge]
    assert 0.8 < np.median(slope) < 1.2
    assert np.quantile(slope, 0.95) < 1.4


def test_masks_are_sharp_where_the_image_is_smooth() -> None:
    """A ball alone: its mask is the set of pixel centres inside the circle, its edge has in-between tones."""
    side, radius = 100, 31.4
    centres = np.arange(side, dtype=np.float32) + 0.5 - side / 2
    u, v = np.meshgrid(centres / radius, centres / radius)
    distance, _ = FORMS["ball"][0](u, v)
    assert ((distance < 0) == (u**2 + v**2 < 1)).all()
    cover = (0.5 - distance * radius).clip(0, 1)
    assert ((cover > 0.5) == (distance < 0)).all()
    assert ((cover > 0) & (cover < 1)).sum() > 100


def test_parts_share_no_scene_and_others_are_refused() -> None:
    train, test = (open_data("shapes", split=part) for part in ("train", "test"))
    assert not set(train.names) & set(test.names)
    assert train.digest() != test.digest()
    smaller, larger = (open_data("shapes", limit=n).names for n in (3, 6))
    assert larger[:3] == smaller
    assert all(a != b for a, b in pairwise(larger))
    with pytest.raises(DataError, match="train and test, got 'val'"):
        open_data("shapes", split="val")
    with pytest.raises(DataError, match="takes nothing after a colon"):
        open_data("shapes:here")
