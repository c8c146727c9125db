"""Training as people run it: by command, in several processes, with other patches."""

from __future__ import annotations

import gc
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.layers.patch_embed import resample_patch_embed
from typer.testing import CliRunner, Result

import robvit
from robvit.cli import app
from robvit.data import open_data
from robvit.data.augment import Augment, mix, seeded, transform
from robvit.errors import InputError, Unsupported
from robvit.record import Record
from robvit.tensor_files import read_tensors
from robvit.training.forecast import forecast
from robvit.training.job import job_of
from robvit.training.recipe import changed, load_recipe, names
from robvit.training.stream import Sharing, Stream

# A network of 0.4 million parameters that sees four patches: seconds, and no batch norm.
SMALL = [
    "train",
    "trades",
    "--model",
    "test_vit",
    "--data",
    "sample",
    "--limit",
    "88",
    "--set",
    "pretrained=false",
    "--set",
    "img_size=32",
    "--set",
    "batch=16",
    "--set",
    "validation=8",
    "--set",
    "inner.steps=1",
    "--set",
    "judge_steps=1",
    "--set",
    "warmup=0",
    "--set",
    "lr=1e-3",
]


def robvit_(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    return read_tensors(path, "tensors")[0]


@pytest.mark.slow
def test_a_training_by_command_leaves_a_model_that_opens_by_its_path(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = robvit_(*SMALL, "--out", out, "--set", "epochs=1", "--set", "drop_path=0.1", "--set", "ema=0.9")
    assert done.exit_code == 0, done.output
    assert "held-out" in done.output
    record = Record.load(out / "record.json")
    model = robvit.load(str(out / "model.safetensors"))
    assert model.identity() == record.model["identity"]
    assert (model.input_size, model.classes) == ((32, 32), 10)
    assert [trial.attack for trial in record.trials] == ["clean", "pgd"]
    x, y = open_data("sample", split="train", limit=88, subset=record.data["names"], size=32).tensors()
    with torch.no_grad():
        correct = (model(x).argmax(1) == y).tolist()
    assert sum(correct) == sum(record.trials[0].correct)
    assert record.curves[0].lines["clean"]
    assert (out / "report.html").read_text().startswith("<!")
    assert list((out / "robvit").glob("events.*")), "TensorBoard is installed, so it is told"
    again = robvit_(*SMALL, "--out", out, "--set", "epochs=1", "--set", "drop_path=0.1", "--set", "ema=0.9")
    assert again.exit_code == 0  # a finished run is finished
    assert Record.load(out / "record.json").model["identity"] == record.model["identity"]


def test_a_tracker_that_cannot_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no server\nat all")

    monkeypatch.setattr("accelerate.Accelerator.init_trackers", refuse)
    done = robvit_(*SMALL, "--out", tmp_path / "run", "--set", "epochs=1")
    assert "tensorboard could not start: no server; set it up" in str(done.exception)


def _alive() -> int:
    """Parameters of networks that are still in memory."""
    gc.collect()
    return sum(issubclass(type(one), torch.nn.Parameter) for one in gc.get_objects())


@pytest.mark.slow
def test_a_forecast_trains_nothing_and_gives_its_memory_back(tmp_path: Path) -> None:
    before = _alive()
    done = robvit_(*SMALL, "--out", tmp_path / "run", "--dry-run")
    assert done.exit_code == 0, done.output
    for word in ("parameters: 0.", "GFLOPs", "time: about", "memory: about", "beta: 6.0"):
        assert word in done.output
    assert not (tmp_path / "run").exists()
    assert _alive() <= before


# The recipes' own networks, on images of few patches; those of the recipes left out are small already.
LARGE = {
    "xcit-light": 32,
    "xcit-light-8": 32,
    "xcit-finetune-hires": 32,
    "xcit-finetune-cifar10": 16,
    "aas-xcit-finetune-cifar10": 16,
    "vit-cifar": 4,
    "aas-vit-cifar": 4,
    "aas-paper-pgd-at": 4,
    "aas-paper-xcit": 16,
    "xcit-thesis": 32,
    "xcit-thesis-cifar10": 16,
    "fare": 16,
    "tecoa": 16,
    "tora-imagenet": 16,
}
QUICK = ("trades", "free", "xcit-light", "tora")
# The paper's other trainings are these two with another loss, which tests/training/test_aas_at.py makes.
FORECAST = [n for n in names() if not n.startswith("aas-paper") or n in LARGE]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FORECAST],
)
def test_every_recipe_can_be_forecast_with_its_own_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robvit.training.forecast.FEW", 2)
    create = timm.create_model

    def shallow(network: str, **options: Any) -> torch.nn.Module:
        """Two blocks of it tell as much of the recipe as twelve, in a sixth of the memory."""
        return create(network, **{**options, **({} if network == "robvit_mini" else {"depth": 2})})

    monkeypatch.setattr(timm, "create_model", shallow)
    recipe = load_recipe(name)
    model = recipe.model or ("xcit-s12" if "finetune" in name or "thesis" in name else "robvit-mini")
    changes = ["pretrained=false", "batch=4", "validation=4", "workers=0", "extra_share=0", "inner.steps=1"]
    changes += [f"img_size={LARGE[name]}"] if name in LARGE else []
    given = [word for change in changes for word in ("--set", change)]
    data = ("--data", "sample", "--limit", 44 if name == "tecoa" else 24)
    done = robvit_("train", name, "--model", model, *data, *given, "--out", tmp_path / "run", "--dry-run")
    assert done.exit_code == 0, done.exception or done.output
    assert "time: about" in done.output
    assert not (tmp_path / "run").exists()


def test_recipes_are_listed_and_a_wrong_name_offers_the_nearest() -> None:
    assert "xcit-light" in robvit_("train", "recipes").output
    assert "did you mean trades" in str(robvit_("train", "tradez").exception)
    assert "names no data" in str(robvit_("train", "xcit-light").exception)


@pytest.mark.slow
def test_a_recipe_based_on_tora_trains_adapters_whatever_its_file_is_called(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    small = ("base: tora", "batch: 8", "epochs: 0.1", "warmup: 0", "validation: 8", "judge_steps: 1")
    mine.write_text("\n".join((*small, "inner: {steps: 1}")))
    out = tmp_path / "run"
    done = robvit_(
        "train", mine, "--data", "sample", "--limit", 40, "--out", out, "--set", "adapters.trades=0.3"
    )
    assert done.exit_code == 0, done.exception or done.output
    assert "trade-off 0.3" in done.output
    assert "time: about" in done.output
    record = Record.load(out / "record.json")
    assert record.machine["device"] == "cpu"
    phases = record.model["compute"]
    assert set(phases) == {"phase1-accuracy", "phase1-robustness", "phase2-0.3"}
    assert {one["precision"] for one in phases.values()} == {"fp32"}
    assert record.model["adapters"] == "adapters.safetensors"
    assert robvit.load("robvit-mini", adapters=out / "adapters.safetensors").trade_off == 0.3
    assert not (out / "model.safetensors").exists()  # the network itself is not trained


class Touchy(torch.nn.Module):
    """A network that returns NaN in low precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(768, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.body(x)
        return logits * float("nan") if torch.is_autocast_enabled("cpu") else logits


BRIEF: dict[str, Any] = {"img_size": 16, "epochs": 0.2, "batch": 8, "validation": 8, "judge_steps": 1}
BRIEF |= {"warmup": 0, "eps_warmup": 0, "ema": 0}


def test_a_training_says_in_which_precision_and_why() -> None:
    wishes = {**BRIEF, "precision": "bf16"}
    record = robvit.train("mini", model=Touchy(), data="sample", limit=40, settings=wishes)
    assert record.model["compute"]["precision"] == "fp32"
    assert any(note.startswith("PrecisionUnsound") for note in record.notes)
    assert record.machine["device"] == "cpu"


def test_a_forecast_leaves_a_module_that_was_given_as_it_was() -> None:
    net = Touchy()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    told = forecast(job_of(changed(load_recipe("mini"), BRIEF), net, "sample", limit=40))
    assert "fp32" in told["time"]
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_recipes_take_the_precisions_of_attacks_and_the_former_word() -> None:
    for word in ("fp32", "bf16/plain", "no", False):
        assert load_recipe("mini", precision=word).precision == (word or "no")
    with pytest.raises(InputError, match="precision"):
        load_recipe("mini", precision="fp8")
    done = robvit_(*SMALL, "--precision", "bf16/plain", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "precision: bf16/plain" in done.output
    assert "in bf16 with plain attention on cpu" in done.output


@pytest.mark.slow
def test_adapters_can_be_forecast_for_every_knob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robvit.training.forecast.FEW", 2)
    given = ["--data", "sample", "--limit", 24, "--out", tmp_path / "run", "--dry-run"]
    given += [word for change in ("batch=4", "validation=4", "warmup=0") for word in ("--set", change)]
    for settings, trainings in (
        (["adapters.trades=[0.1,0.9]"], "3 trainings"),
        (["adapters.trades=[0.1,0.9]", "adapters.knob=states"], "4 trainings"),
    ):
        wishes = [word for change in settings for word in ("--set", change)]
        done = robvit_("train", "tora", *given, *wishes)
        assert done.exit_code == 0, done.exception or done.output
        assert trainings in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_tora_on_imagenet_asks_for_the_folder_and_takes_it(tmp_path: Path) -> None:
    assert "names no data" in str(robvit_("train", "tora-imagenet").exception)
    for number, name in enumerate(("n01440764", "n01443537")):
        for i in range(4):
            place = tmp_path / "imagenet/train" / name / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (60 * i, 100 * number, 0)).save(place)
    small = ("batch=2", "validation=2", "img_size=32", "pretrained=false", "warmup=0")
    given = [word for change in small for word in ("--set", change)]
    data = ("--data", f"imagenet:{tmp_path / 'imagenet'}", "--model", "test_vit")
    done = robvit_("train", "tora-imagenet", *data, *given, "--dry-run")
    assert done.exit_code == 0, done.exception or done.output
    assert "learns from 6 images" in done.output


@pytest.mark.slow
def test_a_module_is_trained_in_place_and_nothing_is_left_without_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    model = robvit.load("robvit-mini")
    before, said, told = model.identity(), list[str](), list[float]()
    settings = {"batch": 16, "validation": 8, "judge_steps": 1, "inner.steps": 1, "warmup": 0, "track": []}
    record = robvit.train(
        "pgd-at",
        model=model,
        data=open_data("sample", split="train", limit=40),
        epochs=1,
        settings=settings,
        log=said.append,
        progress=lambda amount, note="": told.append(amount),
    )
    assert record.model["identity"] == model.identity() != before
    assert record.model["recipe"]["epochs"] == 1
    assert sum(told) == pytest.approx(1)
    assert any("epoch" in line for line in said)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["temp"]
    with pytest.raises(InputError, match="leave them out"):
        robvit.train("pgd-at", model=model.replace(tokens=torch.zeros(1, 2, model.width)), data="sample")


def test_every_aas_recipe_has_its_pair_and_the_vit_its_own() -> None:
    paired, plain = load_recipe("aas-vit-cifar"), load_recipe("vit-cifar")
    assert (paired.loss, paired.loss_settings["base"]) == ("aas_at", plain.loss)
    same = {
        "img_size",
        "patch_size",
        "optimizer",
        "lr",
        "schedule",
        "drops",
        "epochs",
        "clip",
        "augment",
        "inner",
    }
    assert all(getattr(paired, key) == getattr(plain, key) for key in same)


def test_repeated_augmentation_takes_every_image_thrice_once_as_it_is() -> None:
    images = open_data("sample", split="train", limit=8)
    recipe = load_recipe("mini", repeats=3, batch=6, **{"augment.flip": True})
    stream = Stream(images, recipe)
    assert stream.epoch == 4  # 24 images in batches of 6
    seen = [key for step in range(4) for key in stream.keys(step)]
    assert sorted(key[2:] for key in seen) == sorted((i, copy) for i in range(8) for copy in range(3))
    loader = stream.loader(range(1), Sharing(), 32)
    x, y = next(iter(loader))
    for place, (_, _, image, copy) in enumerate(stream.keys(0)):
        assert int(y[place]) == images.labels[image]
        if copy == 0:
            assert torch.equal(x[place], images[image][0])
    assert len({x[place].sum().item() for place in range(6)}) > 2  # copies are cropped differently
    with pytest.raises(InputError, match="multiple of 3"):
        Stream(images, load_recipe("mini", repeats=3, batch=8))
    plain = Stream(images, load_recipe("mini", batch=4)).keys(0)
    assert all(len(key) == 3 for key in plain)


def test_deits_policy_follows_its_seed_and_leaves_other_generators_alone() -> None:
    settings = Augment(randaugment=2, policy="deit")
    apply, x = transform(settings, 32), torch.rand(3, 32, 32)
    before = random.getstate(), np.random.get_state()[1].tolist()
    made = []
    for seed in (1, 1, 2, 3):
        with seeded(seed):
            made.append(apply(x))
    assert torch.equal(made[0], made[1])
    assert any(not torch.equal(made[0], other) for other in made[2:])
    assert all(one.min() >= 0 and one.max() <= 1 and one.shape == x.shape for one in made)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_augmentations_stay_in_the_box_and_follow_their_seed() -> None:
    settings = Augment(
        crop="resized", flip=True, rotate=10, jitter=0.4, randaugment=2, erase=1.0, mixup=0.8, cutmix=1.0
    )
    apply = transform(settings, 16)
    x = torch.rand(3, 40, 30)
    with seeded(5):
        one = apply(x)
    before = torch.get_rng_state()
    with seeded(5):
        again = apply(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert one.shape == (3, 16, 16)
    with seeded(6):
        assert not torch.equal(one, apply(x))
    batch, labels = torch.rand(6, 3, 16, 16), torch.arange(6) % 3
    for seed in range(6):
        mixed, probabilities = mix(batch, labels, settings, classes=3, seed=seed)
        assert float(mixed.min()) >= 0
        assert float(mixed.max()) <= 1
        torch.testing.assert_close(probabilities.sum(1), torch.ones(6))
        torch.testing.assert_close(mix(batch, labels, settings, classes=3, seed=seed)[0], mixed)
    untouched, same = mix(batch, labels, Augment(), classes=3, seed=0)
    assert untouched is batch
    assert same is labels
    for value in (0.0, 1.0):  # the edges of the box
        assert float(apply(torch.full((3, 20, 20), value)).min()) >= 0
        assert float(apply(torch.full((3, 20, 20), value)).max()) <= 1


@pytest.mark.slow
def test_patches_of_an_xcit_shrink_by_strides_with_every_weight_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = robvit.load("xcit_nano_12_p16_224", pretrained=False)
    path = tmp_path / "xcit.pt"
    torch.save(plain.net.state_dict(), path)
    small = robvit.load(str(path), arch="xcit_nano_12_p16_224", patch_size=4, img_size=32)
    strides = [m.stride for m in small.net.modules() if isinstance(m, torch.nn.Conv2d)][:4]
    assert strides == [(1, 1), (1, 1), (2, 2), (2, 2)]
    kept = small.net.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in plain.net.state_dict().items())
    assert small.features(torch.rand(1, 3, 32, 32)).shape[1] == 1 + 64
    with pytest.raises(Unsupported, match="power of two up to 16"):
        robvit.load("xcit_nano_12_p16_224", pretrained=False, patch_size=5)


@pytest.mark.slow
def test_patches_of_a_vit_shrink_by_resampling_its_kernel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = timm.create_model("test_vit", img_size=160)
    torch.save(whole.state_dict(), tmp_path / "vit.pt")
    small = robvit.load(str(tmp_path / "vit.pt"), arch="test_vit", img_size=32, patch_size=4)
    assert small.net.patch_embed.proj.weight.shape[-2:] == (4, 4)
    assert small.features(torch.rand(1, 3, 32, 32)).shape[1] == 1 + 64
    resampled = resample_patch_embed(whole.patch_embed.proj.weight.detach(), [4, 4])
    torch.testing.assert_close(small.net.patch_embed.proj.weight.detach(), resampled)
    assert torch.equal(small.net.blocks[0].mlp.fc1.weight, whole.blocks[0].mlp.fc1.weight)
