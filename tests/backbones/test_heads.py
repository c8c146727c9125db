"""Heads learn, keep, and refuse other backbones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.networks import small_net
from robvit.backbones.heads import HEADS, LinearHead, load_head, pooled
from robvit.backbones.model import Model
from robvit.errors import IGNORE, DataError, InputError, WrongBackbone
from robvit.training.head import train_head


def bright_or_dark(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of two classes that anything can tell apart: dark and bright."""
    y = torch.arange(count) % 2
    return torch.rand(count, 3, 32, 32) * 0.3 + 0.6 * y.view(-1, 1, 1, 1), y


def halves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a bright half, left or right, and their masks; the first row does not count."""
    masks = torch.zeros(count, 32, 32, dtype=torch.long)
    masks[::2, :, :16] = 1
    masks[1::2, :, 16:] = 1
    x = torch.rand(count, 3, 32, 32) * 0.2 + 0.7 * masks[:, None]
    masks[:, 0] = IGNORE
    return x, masks


@pytest.fixture
def model() -> Model:
    return Model(small_net("vit"), name="small").eval()


@pytest.mark.parametrize("kind", ["linear", "knn"])
def test_a_head_learns_and_survives_saving(kind: str, model: Model, tmp_path: Path) -> None:
    x, y = bright_or_dark(40)
    head = HEADS[kind].fit(model, [(x[:30], y[:30])], 2, names=["dark", "bright"])
    model = model.replace(head=head)
    logits = model(x[30:])
    assert (logits.argmax(1) == y[30:]).all()
    head.save(tmp_path / "head.safetensors")
    again = load_head(tmp_path / "head.safetensors")
    model = model.replace(head=again)
    assert torch.equal(model(x[30:]), logits)
    assert (again.names, again.classes, model.classes) == (["dark", "bright"], 2, 2)


def test_a_segmentation_head_learns_patches_and_enlarges_them(model: Model, tmp_path: Path) -> None:
    x, masks = halves(24)
    head = HEADS["segmentation"].fit(model, [(x[:8], masks[:8]), (x[8:16], masks[8:16])], 2)
    model = model.replace(head=head)
    out = model(x[16:])
    assert out.shape == (8, 2, 32, 32)
    counted = masks[16:] != IGNORE
    assert (out.argmax(1) == masks[16:])[counted].float().mean() > 0.9
    head.save(tmp_path / "seg.safetensors")
    model = model.replace(head=load_head(tmp_path / "seg.safetensors"))
    assert torch.equal(model(x[16:]), out)


def test_the_linear_head_is_the_optimum_of_its_convex_loss(model: Model) -> None:
    """At the optimum of ridge logistic regression on standardised features the gradient is zero."""
    x, y = bright_or_dark(30)
    y = (y + (torch.arange(30) % 3 == 0).long()) % 2  # not separable by brightness alone
    head = LinearHead.fit(model, [(x, y)], 2, weight_decay=0.1)
    with torch.no_grad():
        features = pooled(model.tokens(x))
        mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
        z = (features - mean) / std
        weight = (head.linear.weight * std).requires_grad_()
        bias = (head.linear.bias + head.linear.weight @ mean).requires_grad_()
    with torch.enable_grad():
        loss = torch.nn.functional.cross_entropy(z @ weight.T + bias, y) + 0.05 * weight.square().sum()
        gradients = torch.autograd.grad(loss, [weight, bias])
    assert max(float(g.abs().max()) for g in gradients) < 1e-3


def test_features_of_a_class_are_class_token_beside_mean_patch(model: Model) -> None:
    tokens = model.tokens(torch.rand(2, 3, 32, 32))
    assert torch.equal(pooled(tokens), torch.cat((tokens.prefix[:, 0], tokens.patch.mean(1)), 1))
    headless = Model(small_net("siglip")).eval()
    assert pooled(headless.tokens(torch.rand(2, 3, 32, 32))).shape == (2, headless.width)


def test_a_head_refuses_other_weights(model: Model) -> None:
    x, y = bright_or_dark(10)
    head = HEADS["linear"].fit(model, [(x, y)], 2)
    head.check(model)
    with torch.no_grad():
        next(model.net.blocks[1].parameters()).add_(1e-3)
    with pytest.raises(WrongBackbone, match="trained on a backbone with fingerprint"):
        head.check(model)


def test_bad_labels_and_files_are_refused(model: Model, tmp_path: Path) -> None:
    x, y = bright_or_dark(4)
    fit = HEADS["linear"].fit
    with pytest.raises(InputError, match=r"0\.\.1, got 0\.\.2"):
        fit(model, [(x, torch.tensor([0, 1, 2, 1]))], 2)
    with pytest.raises(InputError, match="at least two classes"):
        fit(model, [(x, torch.zeros_like(y))], 2)
    with pytest.raises(InputError, match="at least one labelled image"):
        fit(model, [], 2)
    (tmp_path / "broken.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="not a head file"):
        load_head(tmp_path / "broken.safetensors")
    with pytest.raises(InputError, match="not a head file"):
        load_head(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("linear", "shapes", "a linear head learns from labels, the images of shapes have masks"),
        ("segmentation", "sample", "a segmentation head learns from masks, the images of sample have labels"),
    ],
)
def test_a_head_does_not_learn_from_targets_of_another_kind(
    kind: str, data: str, message: str, model: Model
) -> None:
    with pytest.raises(DataError, match=message):
        train_head(model, data, kind=kind, limit=4)
