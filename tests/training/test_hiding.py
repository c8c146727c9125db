"""Tuning with windows hidden: who sees what, and that it teaches what certificates ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora, images
from helpers.plain_vit import plain_vit
from robvit.backbones.model import Model
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import cover
from robvit.cli import app
from robvit.defenses.low_rank import trainable
from robvit.errors import InputError, Unsupported, WrongBackbone
from robvit.training.features import FeatureLearner, Features
from robvit.training.finetune import finetune
from robvit.training.hiding import Hiding
from robvit.training.tuning import Tuning


@pytest.fixture(scope="module")
def model() -> Model:
    net = plain_vit()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "qkv" in name or "proj" in name:
                weight.mul_(8)  # else a class token hardly looks at the patches
    return Model(net)


class Untouched:
    """An attack that changes nothing."""

    more, seed = 0, 1

    def __call__(self, model: Any, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return x


def test_views_are_pairs_of_windows_and_differ_between_images(model: Model) -> None:
    hiding = Hiding(model, 3, 4)
    covered = cover(model.input_size, TokenDropping(model).token, 3, 4)
    pairs = {frozenset(covered.kept(*pair)) for pair in covered.pairs}
    assert {frozenset(view) for view in hiding.views.tolist()} <= pairs
    assert len(hiding.views) > len(pairs) / 2
    x = torch.rand(16, 3, *model.input_size)
    places = hiding.places(x, 1)
    assert torch.equal(places[3:5], hiding.places(x[3:5], 1))  # whatever else is in the batch
    assert len(places.unique(dim=0)) > 4
    assert not torch.equal(places, hiding.places(x, 2))


def test_the_original_sees_the_whole_image_and_the_learner_does_not(model: Model) -> None:
    learner = FeatureLearner(*trainable(model, 2, 2.0))
    x = torch.rand(3, 3, *model.input_size)
    loss = Features(learner, images(), hide=3)
    value = float(loss(learner, x, torch.zeros(3), Untouched()).detach())  # type: ignore[arg-type]
    assert loss.hiding is not None
    places = loss.hiding.places(x, Untouched.seed)
    dropping = TokenDropping(model)
    seen = dropping.tokens(dropping.embed(x), places).features()
    whole = model.features(x)
    rows = torch.cat((torch.zeros(3, 1, dtype=torch.long), 1 + places), dim=1)
    aim = torch.stack([features[row] for features, row in zip(whole, rows, strict=True)])
    assert value == pytest.approx(float((seen - aim).square().sum(-1).mean().detach()), rel=1e-4)
    assert learner(x).shape == whole.shape  # nothing is left behind


@pytest.mark.slow
def test_what_is_left_comes_nearer_to_the_whole_image(model: Model) -> None:
    few: dict[str, Any] = {"steps": 30, "batch": 8, "held_out": 2, "validations": 1, "judge_steps": 1}
    made = finetune(model, images(), hide=3, eps=0.1 / 255, inner_steps=1, class_weight=1.0, **few)
    x = torch.stack([images()[i][0] for i in range(8)])
    places = Hiding(model, 3, 4).places(x, 5)

    def far(net: Model) -> float:
        dropping = TokenDropping(net)
        seen = dropping.tokens(dropping.embed(x), places).prefix[:, 0]
        return float((seen - model.features(x)[:, 0]).square().sum(1).mean().detach())

    assert far(made.model) < 0.8 * far(model)
    clean = "cosine, original, clean"  # of held-out images of which some is hidden too
    assert made.record.metrics[clean] < 1 - 1e-6
    assert any("windows of tokens were hidden" in note for note in made.record.notes)


def test_what_cannot_hide_is_refused(model: Model) -> None:
    learner = FeatureLearner(*trainable(model, 2, 2.0))
    with pytest.raises(InputError, match="hide must be the side of a patch in pixels, and keep left out"):
        Features(learner, images(), hide=3, keep=0.5)
    with pytest.raises(InputError, match="a patch must be 1 to 31 pixels"):
        Features(learner, images(), hide=64)
    with pytest.raises(InputError, match="hide is for the loss features"):
        Tuning(loss="task", hide=3)
    shared = FeatureLearner(*trainable(robvit.load("robvit-mini"), 2, 2.0))
    with pytest.raises(Unsupported, match="share pixels"):
        Features(shared, images(), hide=3)


@pytest.mark.slow
def test_a_head_is_trained_on_tuned_features(tmp_path: Path) -> None:
    changed_lora(robvit.load("robvit-mini")).save(tmp_path / "lora.safetensors")
    head, lora = (str(tmp_path / name) for name in ("head.safetensors", "lora.safetensors"))
    words = ["train", "head", "robvit-mini", "sample", "--limit", "20", "--lora", lora, "--out", head]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert f"--lora {lora}" in " ".join(result.output.split())
    robvit.load("robvit-mini", lora=lora, head=head)
    with pytest.raises(WrongBackbone):
        robvit.load("robvit-mini", head=head)
