"""Images that a program holds: arrays, datasets and loaders, as a set of ours and in evaluate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import robvit
from robvit.data import from_arrays, from_items, open_data
from robvit.errors import DataError, InputError


@pytest.mark.slow
def test_every_form_of_the_same_images_gives_the_same_record() -> None:
    x, y = open_data("sample", limit=6).tensors()
    levels = (x * 255).round().to(torch.uint8)
    forms = {
        "floats": (x, y),
        "numpy, channels last": (levels.permute(0, 2, 3, 1).numpy(), y.numpy()),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=4),
        "pillow": [
            (Image.fromarray(one.permute(1, 2, 0).numpy()), int(label))
            for one, label in zip(levels, y, strict=True)
        ],
    }
    named = robvit.evaluate("robvit-mini", "sample", protocol="clean@1", limit=6)
    for name, form in forms.items():
        record = robvit.evaluate("robvit-mini", form, protocol="clean@1")
        assert record.trials[0].correct == named.trials[0].correct, name
        assert record.data["labels"] == y.tolist(), name


def test_pixels_are_kept_at_eight_bits() -> None:
    x = torch.rand(3, 3, 8, 8)
    kept = from_arrays(x, torch.tensor([0, 1, 1]), classes=["cat", "dog"])
    assert torch.equal(kept.tensors()[0], (x * 255).round() / 255)
    assert kept.classes == ["cat", "dog"]
    assert from_arrays(x).kind == "none"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(2, 3, 4, 4), torch.tensor([0.0, 1.0]), "one whole number an image"),
        (torch.rand(2, 3, 4, 4), torch.tensor([True, False]), "one whole number an image"),
        (torch.rand(2, 3, 4, 4), torch.tensor([0]), r"\(2,\), got \(1,\)"),
        (torch.rand(2, 3, 4, 4), torch.tensor([0, -1]), "0 or more, got -1"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), r"got \(2, 4, 4\)"),
        (2 * torch.ones(2, 3, 4, 4), torch.tensor([0, 1]), r"\[0,1\]"),
    ],
)
def test_what_is_no_image_or_label_is_refused(
    images: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_arrays(images, labels)


def test_datasets_of_other_things_are_refused() -> None:
    with pytest.raises(DataError, match="expected \\(image, label\\)"):
        from_items([torch.rand(3, 4, 4)])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no images"):
        from_items([])  # type: ignore[arg-type]
    mixed = [(torch.rand(3, side, side), 0) for side in (4, 8)]
    with pytest.raises(DataError, match="one size"):
        from_items(mixed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got int"):
        robvit.evaluate("robvit-mini", 3, protocol="clean@1")
    with pytest.raises(DataError, match="largest label is 5"):
        from_arrays(np.zeros((1, 3, 4, 4), dtype=np.uint8), np.array([5]), classes=["one"])
