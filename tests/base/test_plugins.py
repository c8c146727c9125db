"""Attacks, losses and datasets of other people: by module:function, and by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import robvit
from robvit import plugins
from robvit.attacks import ATTACKS
from robvit.cli import app
from robvit.data import DATASETS
from robvit.errors import BrokenAttack, InputError, UnknownName
from robvit.evaluation.classifiers import open_classifier
from robvit.evaluation.protocol import find
from robvit.record import Record
from robvit.registry import Registry
from robvit.training import LOSSES

ATTACK = """
import torch

def nudge(model, x, y, threat, *, share: float = 1.0, seed: int = 0):
    return threat.project(x, x + share * threat.eps)

def leap(model, x, y, threat):
    return (x + 0.5).clamp(0, 1)

def climb(model, x, y, threat):
    x = x.clone().requires_grad_()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    return threat.project(x.detach(), x.detach() + threat.eps * x.grad.sign())

number = 3
"""

# A tiny distribution: what pip leaves in site-packages of a package with entry points.
PACKAGE = """
import timm
import torch
import torch.nn.functional as F
from torch import nn

import robvit


def push(model, x, y, threat, *, share: float = 1.0, seed: int = 0):
    return threat.project(x, x + share * threat.eps)


def focal(model, x, y, attack, *, gamma: float = 2.0):
    logits = model(attack(model, x, y))
    sure = logits.softmax(1).gather(1, y[:, None])[:, 0]
    return ((1 - sure) ** gamma * F.cross_entropy(logits, y, reduction="none")).mean()


def stripes(place, split, *, count: str = "12"):
    images = torch.zeros(int(count), 3, 32, 32, dtype=torch.uint8)
    labels = torch.arange(int(count)) % 10
    for image, label in zip(images, labels):
        image[:, :, int(label)::3] = 200
    return images, labels


def net():
    torch.manual_seed(0)
    shape = dict(img_size=32, patch_size=4, depth=1, embed_dim=24, num_heads=3)
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, **shape)


def model():
    return robvit.Model(net(), mean=(0.1,) * 3, std=(0.2,) * 3)


def bare():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


def function():
    return lambda x: x.flatten(1)[:, :10]


def number():
    return 3
"""
ENTRY_POINTS = """
[robvit.attacks]
push_of_a_package = {name}:push
[robvit.losses]
focal_of_a_package = {name}:focal
[robvit.datasets]
stripes_of_a_package = {name}:stripes
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of somebody's in the working folder; its name."""
    name = f"own_attacks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(ATTACK)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution that importlib.metadata finds by itself; the name of its module."""
    name = f"package_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    facts = tmp_path / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for registry in (ATTACKS, LOSSES, DATASETS):  # what another test brought stays away from this one
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        monkeypatch.setattr(registry, "brought", set(registry.brought))
    return name


def done(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.slow
def test_an_installed_package_offers_attacks_losses_and_data(package: str, tmp_path: Path) -> None:
    assert "push_of_a_package" in done("attacks")
    assert "stripes_of_a_package" in done("data", "list")
    data = "stripes_of_a_package?count=4"
    done("attack", "robvit-mini", data, "--attack", "push_of_a_package", "--out", "runs/attack")
    record = Record.load(tmp_path / "runs" / "attack" / "record.json")
    assert record.attacks()[0].attack == "push_of_a_package"
    assert sorted(record.data["labels"]) == [0, 1, 2, 3]
    protocol = "name: own@1\nabout: own\nthreat: {norm: linf, eps: 8/255}\n"
    protocol += "attacks: [{attack: push_of_a_package}]\n"
    (tmp_path / "own.yaml").write_text(protocol)
    assert find("own.yaml").attacks[0].attack == "push_of_a_package"
    with pytest.raises(UnknownName, match="option of stripes_of_a_package"):
        robvit.data.open_data("stripes_of_a_package?size=4")


@pytest.mark.slow
def test_a_loss_of_somebodys_trains_from_the_command_line(package: str, tmp_path: Path) -> None:
    own = ((f"{package}:focal", f"{package}:stripes?count=40"), ("focal_of_a_package", "sample"))
    for number, (loss, data) in enumerate(own):
        words = [
            "--set",
            "loss_settings.gamma=1.0",
            "--set",
            "epochs=0.1",
            "--set",
            "warmup=0",
            "--set",
            "batch=8",
        ]
        words += [
            "--set",
            "inner.steps=1",
            "--limit",
            "40",
            "--set",
            "validation=8",
            "--set",
            "judge_steps=1",
        ]
        done("train", "mini", "--data", data, "--loss", loss, *words, "--out", f"runs/{number}")
        recipe = Record.load(tmp_path / "runs" / str(number) / "record.json").model["recipe"]
        assert recipe["loss"] == loss
    with pytest.raises(UnknownName, match="no training loss is called 'focale'"):
        CliRunner().invoke(app, ["train", "mini", "--loss", "focale"], catch_exceptions=False)


def test_data_of_somebodys_is_opened_by_module_and_function(package: str) -> None:
    images = robvit.data.open_data(f"{package}:stripes?count=6", limit=4)
    assert len(images) == 4
    assert images[0][0].shape == (3, 32, 32)
    assert robvit.data.open_data(f"{package}:stripes?corruption=fog:3").corruption == "fog:3"
    with pytest.raises(UnknownName, match=r"no option of .* is called 'cuont'; did you mean count"):
        robvit.data.open_data(f"{package}:stripes?cuont=3")


def test_a_model_of_somebodys_is_one_model_wherever_it_is_named(package: str) -> None:
    x = torch.rand(2, 3, 32, 32)
    for function, mean in (("net", 0.5), ("model", 0.1)):  # timm's own statistics, or those given
        name = f"{package}:{function}"
        loaded, judged = robvit.load(name), open_classifier(name)
        assert loaded.name == judged.name == name
        assert loaded.mean.flatten().tolist() == pytest.approx([mean] * 3)
        assert torch.equal(loaded(x), judged.net(x))
        assert loaded.identity() == judged.identity
    assert open_classifier(f"{package}:function").net(x).shape == (2, 10)
    assert open_classifier(f"{package}:bare").net(x).shape == (2, 10)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("bare", {}, r"nothing tells how .* robvit.Model\(net, mean"),
        ("function", {}, "must return a network"),
        ("number", {}, "must return a network"),
        ("net", {"num_classes": 5}, "num_classes is for networks that robvit builds"),
        ("model", {"img_size": 64}, "for 32 pixels, not for 64"),
    ],
)
def test_what_is_no_network_is_refused(package: str, function: str, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        robvit.load(f"{package}:{function}", **options)


@pytest.mark.slow
def test_a_model_of_somebodys_goes_through_every_command(package: str) -> None:
    name, few = f"{package}:model", ("--limit", "4")
    done("attack", name, "sample", *few, "--set", "steps=1", "--out", "runs/attack")
    done(
        "doctor",
        name,
        "sample",
        "--limit",
        "30",
        "--check",
        "softmax_output",
        "--steps",
        "4",
        "--out",
        "runs/doctor",
    )
    done("train", "head", name, "sample", "--limit", "20", "--out", "head.safetensors")
    done("attack", name, "sample", *few, "--head", "head.safetensors", "--set", "steps=1", "--out", "runs/h")
    done("explain", name, "sample:0", "--figure", "perturbation", "--set", "steps=1", "--out", "runs/explain")
    done("certify", name, "sample", *few, "--patch", "4", "--out", "runs/certify")
    done("export", name, "--format", "torch", "--out", "model.pt2")
    done("robustify", name, "sample", "--steps", "1", "--attack-steps", "1", "--limit", "16")
    words = [
        "--set",
        "epochs=0.1",
        "--set",
        "warmup=0",
        "--set",
        "batch=8",
        "--set",
        "inner.steps=1",
        "--set",
        "validation=8",
    ]
    done("train", "mini", "--model", name, "--data", "sample", "--limit", "40", *words, "--out", "runs/t")
    trained = robvit.load("runs/t/model.safetensors", arch=name)
    assert trained.classes == 10
    assert trained.fingerprint() != robvit.load(name).fingerprint()


def test_an_attack_of_somebodys_runs_from_the_command_line(mine: str, tmp_path: Path) -> None:
    words = ["--attack", f"{mine}:nudge", "--set", "share=0.5", "--limit", "2", "--out", "runs"]
    done = CliRunner().invoke(app, ["attack", "robvit-mini", "sample", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    (trial,) = [t for t in Record.load(tmp_path / "runs" / "record.json").trials if t.kind == "attack"]
    assert trial.attack == f"{mine}:nudge"
    assert trial.settings["share"] == 0.5
    assert max(trial.distance) <= 8 / 255 + 1e-6


def test_an_attack_of_somebodys_has_gradients(mine: str) -> None:
    """As PyTorch has them unless told otherwise, so that attacks written elsewhere run as they are."""
    model = open_classifier("robvit-mini").net
    x, y = robvit.open_data("sample", limit=4).tensors()
    threat = robvit.Threat("linf", 8 / 255)
    ours = robvit.attacks.run("fgsm", model, x, y, threat).adv
    assert torch.equal(robvit.attacks.run(f"{mine}:climb", model, x, y, threat).adv, ours)


def test_an_attack_of_somebodys_is_checked_too(mine: str) -> None:
    x = torch.rand(2, 3, 32, 32)
    model = robvit.load("robvit-mini")
    with pytest.raises(BrokenAttack):
        robvit.attacks.run(
            f"{mine}:leap", model, x, torch.tensor([0, 1]), robvit.Threat("linf", 8 / 255), victim=model
        )


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nowhere_at_all:nudge", InputError, "there is no module nowhere_at_all"),
        ("{mine}:nothing", InputError, "has no nothing"),
        ("{mine}:number", InputError, "must be a function to be a attack|must be a function"),
        ("pgdd", UnknownName, "did you mean pgd"),
    ],
)
def test_what_is_not_there_is_refused(mine: str, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ATTACKS.entry(name.format(mine=mine))


def test_a_package_offers_an_attack_by_an_entry_point(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    offered = EntryPoints([EntryPoint("shove", f"{mine}:nudge", "robvit.attacks")])
    monkeypatch.setattr(plugins, "entry_points", lambda **which: offered.select(**which))
    assert CliRunner().invoke(app, ["attack", "robvit-mini", "--attack", "shov"]).exception is not None
    adv = robvit.attacks.run(
        "shove", robvit.load("robvit-mini"), torch.rand(2, 3, 32, 32), None, robvit.Threat("linf", 2 / 255)
    ).adv
    assert adv.shape == (2, 3, 32, 32)
    assert ATTACKS.info("shove").defaults == {"share": 1.0, "seed": 0}


@pytest.mark.parametrize(
    ("registry", "body", "takes"),
    [
        (LOSSES, "def odd(model, x, y): pass", "model, x, y, attack"),
        (ATTACKS, "def odd(model, x, y, eps, steps): pass", "model, x, y, threat"),
        (DATASETS, "def odd(): pass", "place, split"),
    ],
)
def test_a_function_that_takes_something_else_is_refused_before_any_work(
    registry: Registry[Any, Any], body: str, takes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"odd_{registry.kind.split()[-1]}_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=rf"odd must take \({takes}\) .*; it takes \("):
        registry.entry(f"{name}:odd")
