"""Explanations: closed forms of what is drawn, and images that are there, readable and not blank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import robvit
from helpers.networks import SMALL_NETS, small_net
from robvit.attention import watch
from robvit.backbones.heads import SegmentationHead
from robvit.cli import app
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.io import adapted, fresh
from robvit.errors import DataError, InputError, UnknownName, Unsupported, WrongBackbone
from robvit.explanation.explain import draw_figures as draw_figures  # its module files the figures
from robvit.explanation.figures import NAMES, accumulation, landscape
from robvit.explanation.figures.accumulation import accumulate_gradient, noise
from robvit.explanation.figures.attending import group_shares
from robvit.explanation.figures.attention import attention_by_block, attention_maps, rollout
from robvit.explanation.figures.features import FeatureColours
from robvit.explanation.figures.gaps import gaps
from robvit.explanation.figures.gates import gate_maps
from robvit.explanation.figures.landscape import loss_landscape, random_like
from robvit.explanation.figures.massive import surface
from robvit.explanation.inputs import Inputs, open_inputs
from robvit.explanation.subject import FIGURES, Subject
from robvit.measuring.saturation import score_gaps
from robvit.record import Record
from robvit.threat import Threat


def test_an_accumulated_gradient_is_steepest_ascent_on_the_target() -> None:
    weights = torch.randn(3, 3 * 4 * 4, generator=torch.Generator().manual_seed(1))

    def linear(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ weights.T

    start, threat = torch.full((1, 3, 4, 4), 0.5), Threat("linf", 0.1)
    made = accumulate_gradient(linear, torch.tensor([1]), start=start, steps=1, step_size=0.1, threat=threat)
    share = linear(start).softmax(1)[0]
    slope = weights[1] - (share[:, None] * weights).sum(0)  # of the target's log-probability
    torch.testing.assert_close(made.flatten(), start.flatten() + 0.1 * slope.sign())


def test_an_accumulated_gradient_raises_the_targets_logit_and_stays_near() -> None:
    model = robvit.load("robvit-mini-robust").requires_grad_(True)
    start, target = noise(2, model.input_size), torch.tensor([1, 8])
    made = accumulate_gradient(model, target, start=start, steps=8, threat=Threat("l2", 6.0))
    with torch.no_grad():
        before, after = (model(p).gather(1, target[:, None]) for p in (start, made))
    assert (after > before).all()
    assert model(made).argmax(1).tolist() == [1, 8]
    assert (made - start).flatten(1).norm(dim=1).max() <= 6.0 + 1e-4
    assert 0 <= made.min() <= made.max() <= 1
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(noise(2, (4, 4), seed=1), noise(2, (4, 4), seed=1))
    with pytest.raises(InputError, match="steps"):
        accumulate_gradient(model, target, start=start, steps=0)
    with pytest.raises(InputError, match="one an image"):
        accumulate_gradient(model, target[:1], start=start)


def test_rollout_is_the_product_of_half_attention_and_half_identity() -> None:
    first = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]])  # two heads, mean 1/2
    second = torch.tensor([[[[0.2, 0.8], [0.6, 0.4]]]]).expand(1, 2, 2, 2)
    flow = rollout([first, second])[0]
    one = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    two = torch.tensor([[0.6, 0.4], [0.3, 0.7]])
    torch.testing.assert_close(flow, two @ one)
    torch.testing.assert_close(flow.sum(1), torch.ones(2))
    with pytest.raises(InputError, match="all of one size"):
        rollout([first, second[..., :1]])


def test_attention_over_patches_is_the_class_tokens_row() -> None:
    model, x = robvit.load("robvit-mini"), sample(2).x
    maps, tokens = attention_maps(model, x)
    found = attention_by_block(model, x)
    assert list(found) == ["block 1", "block 2", "block 3", "block 4", "rollout"]
    torch.testing.assert_close(found["block 3"][1, 2, 5], maps[2][1, :, 0, 1 + 2 * 8 + 5].mean())
    torch.testing.assert_close(rollout(list(maps.values())).sum(-1), torch.ones(2, 65))
    hand = torch.zeros(1, 1, 65, 65)
    hand[..., 0], hand[..., 7] = 0.25, 0.75
    assert group_shares(hand, tokens) == {
        "the class token": 0.25,
        "registers": 0.0,
        "extra tokens": 0.0,
        "the most attended patch": 0.75,
    }


def test_only_attention_over_the_whole_image_is_shown() -> None:
    x = sample(2).x
    xcit = robvit.Model(small_net("xcit"), name="xcit")
    assert list(attention_by_block(xcit, x)) == ["block 3", "block 4"]  # those before attend over channels
    with pytest.raises(Unsupported, match="only the class token"):
        FIGURES["attending"](Subject(xcit, x, settings={"steps": 1}))
    swin = robvit.Model(small_net("swin"), name="swin")
    name, shape = SMALL_NETS["swin"][0], {k: v for k, v in SMALL_NETS["swin"][1].items() if k != "img_size"}
    assert list(attention_maps(swin, x)[0]) == [2, 3]  # those before attend in windows
    with pytest.raises(Unsupported, match="channels or windows"):
        attention_maps(robvit.Model(timm.create_model(name, img_size=64, **shape)), torch.rand(2, 3, 64, 64))


def test_colours_of_features_stay_under_rotation_and_shift() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 60, 8, generator=generator).exp() * torch.tensor([9.0, 5, 3, 1, 1, 1, 1, 1])
    turn, _ = torch.linalg.qr(torch.randn(8, 8, generator=generator))
    turned = features @ turn + 3.0
    colours = FeatureColours.fit(features)(features)
    torch.testing.assert_close(colours, FeatureColours.fit(turned)(turned), atol=1e-4, rtol=0)
    assert colours.shape == (2, 60, 3)
    assert colours.amin() == 0
    assert colours.amax() == 1
    # Fitted once, then the same for all.
    assert torch.equal(FeatureColours.fit(features)(features[:1]), colours[:1])


def test_gaps_are_the_largest_minus_the_second_score() -> None:
    assert score_gaps(torch.tensor([[3.0, 1.0, 2.5], [0.0, 4.0, 4.0]])).tolist() == [0.5, 0.0]
    model, x = robvit.load("robvit-mini"), sample(1).x
    with watch(model, scores=True) as seen:
        model(x)
    found = gaps(model, x)
    top = seen.scores[2].sort(dim=-1, descending=True).values
    torch.testing.assert_close(found[2], (top[..., 0] - top[..., 1]).flatten())


def test_a_surface_holds_the_highest_stems_where_they_stand() -> None:
    values = torch.zeros(65, 128)
    values[1 + 8 * 2 + 3, 100], values[0, 7] = 5.0, 3.0
    tokens = robvit.load("robvit-mini").tokens(torch.rand(1, 3, 32, 32))
    held = surface("test", values, tokens, 5.0)
    assert held.stems[:2] == [[100, 20, 5.0], [7, 0, 3.0]]
    assert held.row_names[20] == "patch 3/4"
    assert held.row_names[0] == "class token"


def test_what_secret_tokens_become_inside_is_not_drawn() -> None:
    model, held = robvit.load("robvit-mini"), sample(1)
    subject = Subject(
        model, held.x, settings={"steps": 1}, hardened=model.replace(tokens=torch.full((1, 3, 128), 50.0))
    )
    surfaces = FIGURES["massive"](subject).surfaces
    assert [one.rows for one in surfaces] == [65] * 4
    assert all(stem[1] < 65 for one in surfaces for stem in one.stems)


def test_the_landscape_of_a_linear_loss_is_a_plane_through_the_image_and_the_attack() -> None:
    weights = torch.randn(3, 4, 4)
    x = torch.full((3, 4, 4), 0.5)
    delta = 0.01 * weights.sign()
    other = random_like(delta[None], seed=3)[0]
    torch.testing.assert_close(other.norm(), delta.norm())
    assert torch.equal(other.abs().unique(), other.abs().max()[None])

    def loss(batch: torch.Tensor) -> torch.Tensor:
        return (batch * weights).sum((1, 2, 3))

    found = loss_landscape(loss, x, x + delta, other, points=7)
    along, across = torch.linspace(-1, 2, 7), torch.linspace(-1.5, 1.5, 7)
    slopes = (delta * weights).sum(), (other * weights).sum()
    plane = (x * weights).sum() + along * slopes[0] + across[:, None] * slopes[1]
    torch.testing.assert_close(found, plane, atol=1e-5, rtol=1e-5)


def sample(count: int) -> Inputs:
    return open_inputs([f"sample:{i}" for i in range(count)], 32)


def test_images_are_tensors_data_sets_files_or_numbers_in_a_set(tmp_path: Path) -> None:
    everything = robvit.data.open_data("sample")
    three = open_inputs("sample:3", 32)
    assert torch.equal(three.x[0], everything[3][0])
    assert three.truth is not None
    assert three.truth.tolist() == [everything[3][1]]
    some = open_inputs(everything.take([3, 5]), 32)
    assert (some.names, some.kind) == ([everything.names[3], everything.names[5]], "labels")
    assert torch.equal(some.x[:1], three.x)
    bare = open_inputs(three.x, 32)
    assert (bare.truth, bare.names) == (None, [])
    file = tmp_path / "photo.png"
    Image.new("RGB", (50, 40), (255, 0, 0)).save(file)
    mixed = open_inputs([file, "sample:3"], 32)
    assert mixed.truth is None
    assert mixed.names[0] == "photo.png"
    assert mixed.facts["spec"] == "photo.png sample:3"  # without the folders
    assert mixed.x.shape == (2, 3, 32, 32)
    assert open_inputs(["shapes:0"], 32).truth.shape == (1, 32, 32)
    for wrong, message in (
        ("nowhere.png", "DATA:NUMBER"),
        ("sample:1000", "has 1000 images"),
        ("sample", "file"),
    ):
        with pytest.raises(DataError, match=message):
            open_inputs([wrong], 32)
    with pytest.raises(InputError, match="at least one"):
        open_inputs([], 32)


def test_classes_are_named_by_the_head_the_data_or_imagenet() -> None:
    ten = robvit.load("robvit-mini")
    thousand = robvit.Model(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1))
    assert sample(1).classes_for(ten)[0] == "airplane"
    assert sample(1).classes_for(thousand)[0].startswith("tench")
    assert Inputs(torch.rand(1, 3, 32, 32)).classes_for(ten) == []


@pytest.mark.slow
def test_every_figure_is_drawn_and_none_is_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "STEPS", 2)
    monkeypatch.setattr(landscape, "POINTS", 5)
    model, held = robvit.load("robvit-mini"), sample(2)
    record = robvit.explain(
        model,
        ["sample:0", "sample:1"],
        settings={"steps": 3},
        tokens=0.5 * torch.randn(1, 3, model.width),
        beside="robvit-mini-robust",
        out=tmp_path,
    )
    drawn = record.protocol["figures"]
    assert drawn[:3] == ["activations", "massive", "attention"]  # in the order of the report
    assert {*drawn, *record.protocol["not drawn"]} == set(NAMES) == {entry.name for entry in FIGURES}
    assert set(record.protocol["not drawn"]) == {"segmentation", "gates"}
    assert "--adapters" in record.protocol["not drawn"]["gates"]
    for name in drawn:
        with Image.open(tmp_path / f"{name}.png") as page:
            assert page.width == 1240
            assert page.height > 300
            below = np.asarray(page.convert("L"))[130:]  # under title and caption
            assert below.std() > 10, name
            assert (below < 250).mean() > 0.01, name
    assert Record.load(tmp_path / "record.json").curves
    table = record.tables[0]
    assert table.columns == ["image", "truth", "clean", "attacked", "clean, tokens", "attacked, tokens"]
    assert table.rows[0][1] == held.classes[int(held.truth[0])]
    text = (tmp_path / "report.html").read_text()
    for name in drawn:
        assert FIGURES.info(name).title in text
    assert text.count("<canvas") == 4 + 3  # massive: four views; landscape: three models
    assert "unnamed set" not in text


def test_titles_are_short_and_captions_one_sentence() -> None:
    for entry in FIGURES:
        caption = entry.info.caption
        assert caption.endswith(".")
        assert caption.count(".") == 1
        assert 40 < len(caption) < 120
        assert len(entry.info.title) < 60


def test_gates_are_drawn_where_there_are_adapters() -> None:
    model, held = robvit.load("robvit-mini"), sample(1)
    adapters = fresh(model)
    with torch.no_grad():
        for parameter in adapters.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    subject = Subject(adapted(model, adapters), held.x, truth=held.truth, settings={"steps": 1})
    drawn = FIGURES["gates"](subject)
    gate = gate_maps(subject.model, held.x).mean((1, 2, 3)).tolist()
    assert [point[1] for point in drawn.curves[0].lines["clean"]] == pytest.approx(gate)
    assert drawn.grid is not None


@pytest.mark.slow
def test_a_segmentation_head_brings_masks_and_its_own_attack() -> None:
    model, scenes = (
        robvit.load("robvit-mini"),
        robvit.data.open_data("shapes", split="train", size=32, limit=24),
    )
    head = SegmentationHead.fit(model, list(scenes.batches(8)), len(scenes.classes), names=scenes.classes)
    model = model.replace(head=head)
    held = open_inputs(["shapes:0", "shapes:1"], 32)
    subject = Subject(model, held.x, truth=held.truth, settings={"steps": 2})
    assert subject.attack == "segpgd"
    assert FIGURES["segmentation"](subject).grid is not None
    assert "pixels" in repr(Subject(model, held.x).task)
    with pytest.raises(Unsupported, match="--head"):
        FIGURES["accumulation"](subject)
    with pytest.raises(InputError, match="same classes apart"):
        Subject(model, held.x, beside=robvit.load("robvit-mini"))
    with pytest.raises(InputError, match="pgd attacks classes"):
        Subject(model, held.x, attack="pgd")


def test_a_model_without_a_head_is_attacked_in_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    model = robvit.load("robvit-mini", num_classes=0)
    held = sample(1)
    subject = Subject(model, held.x, settings={"steps": 2})
    assert (subject.task, subject.attack, subject.target) == ("features", "feature", None)
    assert subject.adv.shape == held.x.shape
    assert not torch.equal(subject.adv, held.x)
    monkeypatch.setattr(landscape, "POINTS", 7)
    drawn = FIGURES["landscape"](subject)
    zero = next(p for p in drawn.curves[1].lines[model.name] if p[0] == 0)
    assert abs(zero[1]) < 1e-5  # at the image itself the features are the clean ones
    with pytest.raises(Unsupported, match="--head"):
        FIGURES["accumulation"](subject)


def robvit_(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
def test_the_command_draws_what_is_asked_for_and_refuses_what_it_lacks(tmp_path: Path) -> None:
    small = ("explain", "robvit-mini", "sample:1", "--out", tmp_path, "--set", "steps=2")
    done = robvit_(*small, "--figure", "perturbation", "--figure", "activations")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in tmp_path.glob("*.png")) == ["activations.png", "perturbation.png"]
    assert f"next: open {tmp_path}/report.html" in done.output
    record = Record.load(tmp_path / "record.json")
    assert record.protocol["steps"] == 2
    assert record.data["spec"] == "sample:1"
    assert "--adapters" in str(robvit_(*small, "--figure", "gates").exception)
    assert "did you mean attention" in str(robvit_(*small, "--figure", "atention").exception)
    assert "setting" in str(robvit_(*small[:-1], "step=2").exception)


def test_the_help_names_every_figure() -> None:
    shown = robvit_("explain", "--help").output.replace("│", " ").split()
    assert all(name in " ".join(shown) for name in NAMES)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = robvit.data.open_data("sample", limit=2).tensors()
    settings = {"steps": 1}
    record = robvit.explain("robvit-mini", x, labels=y, figures=["activations"], settings=settings)
    assert [curve.title for curve in record.curves] == [
        "Largest activation after every block: mean over the images"
    ]
    assert record.data["names"] == ["image 1", "image 2"]
    assert record.tables[0].rows[0][1] == f"class {int(y[0])}"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnknownName, match="did you mean attention"):
        robvit.explain("robvit-mini", x, figures=["atention"])
    with pytest.raises(InputError, match="one an image"):
        robvit.explain("robvit-mini", x, labels=y[:1])
    with pytest.raises(InputError, match="wrap a timm network"):
        robvit.explain(torch.nn.Linear(2, 2), x)


def test_tokens_of_other_weights_are_refused(tmp_path: Path) -> None:
    RobustTokens(torch.randn(1, 2, 128), "0" * 64).save(tmp_path / "tokens.safetensors")
    with pytest.raises(WrongBackbone):
        robvit.explain("robvit-mini", "sample:0", tokens=tmp_path / "tokens.safetensors")


def test_a_checkpoint_is_shown_without_its_folders() -> None:
    model = robvit.load("robvit-mini").replace(name="/home/somebody/runs/best.safetensors")
    other = model.replace(name="/elsewhere/best.safetensors")
    assert list(Subject(model, sample(1).x, beside=other).models()) == [
        "best.safetensors",
        "best.safetensors, the other",
    ]


def test_classes_are_called_as_the_model_calls_them() -> None:
    images = open_inputs("sample:3", 32)
    own = images.classes
    model = robvit.load("robvit-mini")
    strange = robvit.Model(model.net, names=[f"tumour {i}" for i in range(10)])
    assert images.classes_for(strange)[0] == "tumour 0"
    assert images.truth_for(strange) is None  # nothing tells which tumour an airplane is
    turned = robvit.Model(model.net, names=own[::-1])
    assert turned.class_names[int(images.truth_for(turned))] == own[int(images.truth)]
