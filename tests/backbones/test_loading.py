"""robvit.load: names, sizes, statistics, tokens and heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import robvit
from helpers.lora import changed_lora
from robvit.backbones import download, weights, zoo
from robvit.backbones.heads import HEADS
from robvit.backbones.trained_on import fitting
from robvit.defenses.lora import LoRA
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, UnknownName, Unsupported, WrongBackbone
from robvit.exporting import export
from robvit.training.checkpoint import save_model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["robvit-mini", "robvit-mini-robust"])
def test_bundled_models_load_and_know_their_images(name: str) -> None:
    model = robvit.load(name)
    x, y = robvit.data.open_data("sample", limit=200).tensors()
    assert model.input_size == (32, 32)
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean()
    assert accuracy > (0.8 if name == "robvit-mini" else 0.5)
    assert model.features(x[:2]).shape == (2, 65, 128)


def test_any_timm_name_loads_with_its_own_statistics() -> None:
    clip = robvit.load("vit_xsmall_patch16_clip_224", pretrained=False, img_size=64, num_classes=3)
    assert [round(float(v), 4) for v in clip.mean.flatten()] == [0.4815, 0.4578, 0.4082]
    assert clip(torch.rand(1, 3, 64, 64)).shape == (1, 3)
    plain = robvit.load("vit_tiny_patch16_224", pretrained=False, img_size=32, normalise="none")
    assert (plain.mean == 0).all()
    assert (plain.std == 1).all()
    given = robvit.load(
        "vit_tiny_patch16_224", pretrained=False, img_size=32, normalise=((0.1,) * 3, (0.2,) * 3)
    )
    assert float(given.std[0, 0, 0, 0]) == pytest.approx(0.2)


@pytest.mark.slow
def test_dinov2_takes_the_papers_size_unless_told() -> None:
    assert robvit.load("dinov2-small", pretrained=False).input_size == (224, 224)
    assert robvit.load("dinov2-small", pretrained=False, img_size=112).input_size == (112, 112)


@pytest.mark.slow
def test_a_checkpoint_of_another_size_is_fitted_as_timm_does(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224", num_classes=4).state_dict()
    save_file(state, tmp_path / "tiny.safetensors", {"timm_name": "vit_tiny_patch16_224"})
    model = robvit.load(str(tmp_path / "tiny.safetensors"), img_size=64, num_classes=7)
    reference = timm.create_model("vit_tiny_patch16_224", img_size=64)
    fitted = timm.models.vision_transformer.checkpoint_filter_fn(dict(state), reference)
    assert torch.equal(model.net.state_dict()["pos_embed"], fitted["pos_embed"])
    assert model(torch.rand(1, 3, 64, 64)).shape == (1, 7)


@pytest.mark.slow
def test_a_checkpoint_that_does_not_name_itself_needs_arch(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224").state_dict()
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "tiny.pth")
    with pytest.raises(InputError, match="name it with arch="):
        robvit.load(str(tmp_path / "tiny.pth"))
    model = robvit.load(str(tmp_path / "tiny.pth"), arch="vit_tiny_patch16_224")
    assert torch.equal(model.net.head.weight, state["head.weight"])
    with pytest.raises(InputError, match="do not fit"):
        robvit.load(str(tmp_path / "tiny.pth"), arch="vit_small_patch16_224")


@pytest.mark.slow
def test_robust_xcit_files_take_raw_pixels_and_other_weights_do_not(tmp_path: Path) -> None:
    torch.save({"state_dict": zoo.build(zoo.resolve("xcit-s12")).state_dict()}, tmp_path / "robust.pth.tar")
    file = str(tmp_path / "robust.pth.tar")
    robust = robvit.load(file, arch="xcit-s12", img_size=32)
    assert (robust.std == 1).all()
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(robust(x), robust.net(x))  # what judges it sees pixels as they are
    assert (robvit.load(file, arch="xcit-s12", normalise="imagenet").std != 1).all()
    assert (robvit.load(file, arch="xcit_small_12_p16_224").std != 1).all()
    assert (robvit.load("xcit-s12", pretrained=False).std != 1).all()


@pytest.mark.slow
def test_tokens_and_head_come_along_and_foreign_ones_are_refused(tmp_path: Path) -> None:
    plain = robvit.load("robvit-mini")
    x, y = robvit.data.open_data("sample", split="train", limit=20).tensors()
    tokens = RobustTokens(0.1 * torch.randn(1, 4, 128), plain.fingerprint())
    tokens.save(tmp_path / "tokens.safetensors")
    head = HEADS["linear"].fit(plain, [(x, y)], 10)
    head.save(tmp_path / "head.safetensors")
    strong = robvit.load(
        "robvit-mini", tokens=tmp_path / "tokens.safetensors", head=tmp_path / "head.safetensors"
    )
    assert torch.equal(strong.features(x), plain.features(x, tokens.values))
    assert strong(x).shape == (20, 10)
    for wrong in ({"tokens": tokens}, {"head": head}):
        with pytest.raises(WrongBackbone):
            robvit.load("robvit-mini-robust", **wrong)


@pytest.mark.slow
def test_positions_can_be_interpolated_the_hubs_way(tmp_path: Path) -> None:
    state = timm.create_model("vit_tiny_patch16_224").state_dict()
    save_file(state, tmp_path / "tiny.safetensors", {"timm_name": "vit_tiny_patch16_224"})
    path = str(tmp_path / "tiny.safetensors")
    hub, own = (robvit.load(path, img_size=64, pos_embed=way).net.pos_embed for way in ("hub", "timm"))
    assert torch.equal(hub, weights.hub_pos_embed(state["pos_embed"], (4, 4)))
    assert (hub - own).abs().max() > 1e-3
    save_file(
        timm.create_model("xcit_nano_12_p16_224").state_dict(),
        tmp_path / "xcit.safetensors",
        {"timm_name": "xcit_nano_12_p16_224"},
    )
    with pytest.raises(Unsupported, match="no position embedding"):
        robvit.load(str(tmp_path / "xcit.safetensors"), pos_embed="hub")


@pytest.mark.weights
def test_real_dinov2_small_sees_what_is_in_a_image() -> None:
    """Nearest neighbours of real features tell sample images apart; random weights cannot."""
    x, y = robvit.data.open_data("sample", size=112, limit=60).tensors()
    correct = {}
    for pretrained in (True, False):
        model = robvit.load("dinov2-small", pretrained=pretrained, img_size=112)
        with torch.no_grad():
            classes = torch.nn.functional.normalize(model.features(x)[:, 0], dim=1)
        near = (classes @ classes.T).fill_diagonal_(-1).argmax(1)
        correct[pretrained] = float((y[near] == y).float().mean())
    assert correct[True] > 0.6 > 0.4 > correct[False]


def test_bad_names_get_near_ones() -> None:
    with pytest.raises(UnknownName, match="dinov2-small"):
        robvit.load("dinov2-smal")
    with pytest.raises(InputError, match="no file at"):
        robvit.load("nowhere/model.safetensors")
    with pytest.raises(InputError, match="normalise must be"):
        robvit.load("robvit-mini", normalise="clip")


@pytest.mark.slow
def test_a_name_may_stand_for_bundled_factors_on_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini = robvit.load("robvit-mini")
    tuned = zoo.Known("mini-tuned", "robvit_mini", "mini", "MIT", 0.8, tuned_from="robvit-mini")
    monkeypatch.setitem(zoo.ALIASES, "mini-tuned", tuned)
    monkeypatch.setattr(download, "BUNDLED", tmp_path)
    (tmp_path / "robvit-mini.safetensors").symlink_to(
        Path(download.__file__).parent / "bundled/robvit-mini.safetensors"
    )
    lora = changed_lora(mini)
    lora.save(tmp_path / "mini-tuned.lora.safetensors")
    model = robvit.load("mini-tuned")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), lora.merge(mini)(x))
    assert (model.name, model.original_fingerprint) == ("mini-tuned", mini.fingerprint())
    assert (download.on_disk(tuned), weights.verify(tuned)[0].passed) == ("bundled", True)
    saved = tmp_path / "baked.safetensors"
    export(model, saved, "timm", images=x, arch=weights.architecture("mini-tuned"))
    assert torch.equal(robvit.load(str(saved), arch="mini-tuned")(x), model(x))  # not merged a second time
    with pytest.raises(InputError, match="has a LoRA of its own; load robvit-mini"):
        robvit.load("mini-tuned", lora=lora)


def test_what_a_training_left_can_be_bundled_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its patches, size and classes come from its file, under the name of the network it was trained as."""
    trained = robvit.load("xcit-mini", pretrained=False, patch_size=8)
    known = replace(zoo.ALIASES["xcit-mini"], alias="robvit-xcit-mini-robust", licence="MIT", bundled=True)
    monkeypatch.setitem(zoo.ALIASES, known.alias, known)
    monkeypatch.setattr(download, "BUNDLED", tmp_path)
    saved = tmp_path / f"{known.alias}.safetensors"
    save_model(trained, saved, {"arch": "xcit-mini", "patch_size": 8})
    assert saved.stat().st_size <= 6_000_000
    model = robvit.load(known.alias)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), trained(x))
    assert (model.name, model.classes, download.on_disk(known)) == (known.alias, 10, "bundled")


def test_bundled_factors_are_there_and_small() -> None:
    for known in zoo.ALIASES.values():
        if known.tuned_from:
            assert download.bundled_path(known).stat().st_size <= 3_000_000
            assert LoRA.load(download.bundled_path(known)).fingerprint


@pytest.mark.parametrize(("name", "patch"), [("robvit-mini", 4), ("vit_tiny_patch16_224", 16)])
def test_a_size_that_patches_do_not_fill_is_refused(name: str, patch: int) -> None:
    expected = f"a multiple of {patch} pixels, the side of its patches, got 33; take 32 or {32 + patch}"
    with pytest.raises(InputError, match=expected):
        robvit.load(name, pretrained=False, img_size=33)


def test_averaged_and_compiled_checkpoints_lose_what_was_around_them(tmp_path: Path) -> None:
    state = zoo.build(zoo.resolve("robvit-mini")).state_dict()
    averaged = {"n_averaged": torch.tensor(3)} | {f"module._orig_mod.{k}": v for k, v in state.items()}
    for content in (averaged, {"model_ema": state}, {"model": state, "model_ema": averaged}):
        torch.save(content, tmp_path / "net.pth")
        model = robvit.load(str(tmp_path / "net.pth"), arch="robvit-mini")
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.net.state_dict().items())


def test_a_checkpoint_remembers_how_its_images_became_square(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini").replace(usual_resize="crop")
    save_model(model, tmp_path / "net.safetensors", {"arch": "robvit-mini"})
    assert fitting(robvit.load(str(tmp_path / "net.safetensors")), None) == "crop"


def test_options_that_a_network_of_ones_own_cannot_have_are_refused() -> None:
    net = zoo.build(zoo.resolve("robvit-mini"))
    for option in ({"num_classes": 9}, {"patch_size": 3}, {"arch": "vit-base"}, {"pos_embed": "hub"}):
        with pytest.raises(InputError, match=f"{next(iter(option))} is for networks that robvit builds"):
            robvit.load(net, normalise="none", **option)
