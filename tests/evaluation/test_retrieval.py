"""Retrieval: measures against hand-made lists, attacks against the model they have."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torchvision.transforms.functional import to_pil_image

import robvit
from helpers.commands import exit_code
from helpers.lora import changed_lora
from helpers.networks import small_net
from robvit.errors import InputError
from robvit.evaluation import retrieval
from robvit.evaluation.retrieval import (
    Gallery,
    average_precision,
    embed,
    evaluate_retrieval,
    flipped_bits,
    is_nearest,
    ranked,
)
from robvit.threat import Threat

PUSHED = "feature (away)"


def test_average_precision_of_lists_made_by_hand() -> None:
    lists = torch.tensor(
        [[True, False, True, False], [False, False, False, True], [True, True, False, False]]
    )
    assert average_precision(lists).tolist() == pytest.approx([(1 + 2 / 3) / 2, 1 / 4, 1])


def test_the_nearest_come_first_and_ties_in_order() -> None:
    gallery = Gallery(torch.eye(3), torch.tensor([0, 1, 2]), torch.zeros(3))
    assert ranked(torch.tensor([[0.0, 1.0, 0.5]]), gallery).tolist() == [[1, 2, 0]]
    assert ranked(torch.tensor([[1.0, 1.0, 0.0]]), gallery).tolist() == [[0, 1, 2]]


def test_a_query_is_near_its_original_or_another_image() -> None:
    gallery = Gallery(torch.eye(2), torch.tensor([0, 1]), torch.zeros(2))
    original = torch.tensor([[0.6, 0.8]] * 3)
    queries = torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.8, 0.6]])  # itself, an image of the gallery, between
    assert is_nearest(original, queries, gallery).tolist() == [True, False, True]


def test_sign_bits_are_taken_about_the_mean() -> None:
    gallery = Gallery(torch.eye(4), torch.arange(4), torch.tensor([0.5, 0.5, -0.5, -0.5]))
    clean = torch.tensor([[1.0, 0.0, 0.0, -1.0]] * 3)
    queries = torch.tensor([[0.6, 0.4, -0.4, -0.6], [0.4, 0.6, -0.6, -0.4], [0.4, 0.4, 0.4, -0.6]])
    assert flipped_bits(queries, clean, gallery).tolist() == [0, 1, 0.25]


@pytest.mark.parametrize("angle", [0.1, 1.0, 2.5])
def test_of_vectors_in_any_direction_the_angle_over_pi_flips(angle: float) -> None:
    first, second = torch.randn(2, 400, 500, generator=torch.Generator().manual_seed(0))
    turned = math.cos(angle) * first + math.sin(angle) * second
    mean = torch.linspace(-1, 1, 500)
    flipped = flipped_bits(mean + turned, mean + first, Gallery(first, torch.zeros(400), mean))
    share = angle / math.pi
    deviation = math.sqrt(share * (1 - share) / (400 * 500))
    assert abs(flipped.mean().item() - share) < 4 * deviation


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of the sample's images, twelve of each of two classes."""
    images = robvit.open_data("sample")
    for label in (0, 1):
        (folder := tmp_path / "photos" / images.classes[label]).mkdir(parents=True)
        for i in [i for i, one in enumerate(images.labels) if one == label][:12]:
            to_pil_image(images[i][0]).save(folder / f"{i}.png")
    return tmp_path / "photos"


def test_no_query_stays_in_its_gallery_however_both_are_named(photos: Path, tmp_path: Path) -> None:
    data, settings = f"folder:{photos}?test=0.25", {"steps": 1, "batch": 8}
    copies = tmp_path / "copies"
    for one in photos.rglob("*.png"):
        place = copies / one.parent.name / f"copy-{one.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(one.read_bytes())
    apart = evaluate_retrieval("robvit-mini", data, **settings)
    for gallery in (f"folder:{photos}", photos, copies):
        record = evaluate_retrieval("robvit-mini", data, gallery=gallery, **settings)
        assert record.tables[0].note.startswith("Gallery of 18 images")
        assert record.metrics["mAP, clean"] == pytest.approx(apart.metrics["mAP, clean"])


def test_queries_and_gallery_agree_by_the_names_of_classes(photos: Path, tmp_path: Path) -> None:
    settings = {"steps": 1, "batch": 8}
    wider = tmp_path / "wider"
    shutil.copytree(photos, wider)
    (wider / "aaa").mkdir()  # first by its name, so that all numbers move
    to_pil_image(torch.zeros(3, 32, 32)).save(wider / "aaa" / "black.png")
    data = f"folder:{photos}?test=0.25"
    same = evaluate_retrieval("robvit-mini", data, gallery=photos, **settings)
    moved = evaluate_retrieval("robvit-mini", data, gallery=wider, **settings)
    assert moved.trials[0].predicted == same.trials[0].predicted
    assert moved.metrics["recall@1, clean"] == same.metrics["recall@1, clean"]
    shutil.rmtree(wider / "automobile")
    with pytest.raises(InputError, match="no image of class automobile"):
        evaluate_retrieval("robvit-mini", data, gallery=wider, **settings)


def test_without_a_class_token_the_mean_patch_is_looked_up() -> None:
    model = robvit.Model(small_net("swin")).eval()
    images = robvit.open_data("sample", limit=4, size=32)
    patches = model.tokens(images.tensors()[0]).patch
    torch.testing.assert_close(embed(model, images.tensors()[0]), F.normalize(patches.mean(1), dim=-1))
    threat = Threat("linf", 8 / 255)
    record = evaluate_retrieval(model, images, gallery="sample", gallery_limit=60, threat=threat, steps=3)
    assert record.metrics["bits, clean"] == 0 < record.metrics[f"bits, {PUSHED}"]
    assert record.metrics["original, clean"] == 1


def test_lora_factors_are_judged_and_attacked(tmp_path: Path) -> None:
    plain = robvit.load("robvit-mini")
    factors = changed_lora(plain)
    factors.save(tmp_path / "lora.safetensors")
    words = ["--limit", 4, "--gallery-limit", 40, "--steps", 2, "--eps", "8/255", "--out", tmp_path / "out"]
    words += ["--lora", tmp_path / "lora.safetensors"]
    assert exit_code("evaluate", "robvit-mini", "sample", "--task", "retrieval", *words) == 0
    typed = robvit.Record.load(tmp_path / "out" / "record.json").metrics
    settings = {"limit": 4, "gallery_limit": 40, "steps": 2, "threat": Threat("linf", 8 / 255)}
    tuned, untouched = (
        evaluate_retrieval(model, "sample", **settings).metrics for model in (factors.merge(plain), plain)
    )
    assert typed == tuned != untouched
    assert tuned["bits, clean"] == 0 < tuned[f"bits, {PUSHED}"] != untouched[f"bits, {PUSHED}"]


def test_model_and_images_go_to_the_device_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        """Ends the run where it embeds its first images: a device without numbers has no answers."""

    def stop(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise Stop(x.device.type, *{parameter.device.type for parameter in model.parameters()})

    monkeypatch.setattr(retrieval, "processes", lambda: SimpleNamespace(device=torch.device("meta")))
    monkeypatch.setattr(retrieval, "embedding", stop)
    with pytest.raises(Stop) as stopped:
        evaluate_retrieval("robvit-mini", "sample", limit=4, gallery_limit=40)
    assert stopped.value.args == ("meta", "meta")


@pytest.mark.slow
def test_attacks_on_embeddings_do_what_they_say(tmp_path: Path) -> None:
    settings = {"threat": Threat("linf", 16 / 255), "steps": 10, "limit": 8, "gallery_limit": 60, "batch": 4}
    record = evaluate_retrieval("robvit-mini", "sample", out=tmp_path, **settings)
    metrics = record.metrics
    assert metrics[f"recall@1, {PUSHED}"] < metrics["recall@1, clean"]
    assert metrics["collided, feature (collision)"] > 0.5
    copied, pushed = (metrics[f"bits, {name}"] for name in ("a copy in JPEG", PUSHED))
    assert metrics["bits, clean"] == 0 < copied < pushed
    found = [metrics[f"original, {name}"] for name in ("clean", "a copy in JPEG", PUSHED)]
    assert found[0] == 1 >= found[1] > found[2]
    clean, *_ = record.tables[0].rows
    told = dict(zip(record.tables[0].columns, clean, strict=True))
    assert told["from"] < told["recall@1, %"] == 100 * metrics["recall@1, clean"] <= told["to"]
    assert told["recall@5, %"] == 100 * metrics["recall@5, clean"]
    assert all(trial.threat is None or max(trial.distance) <= 16 / 255 + 1e-6 for trial in record.trials)
    sorted(tmp_path.rglob("part-*.json"))[1].unlink()
    again = evaluate_retrieval("robvit-mini", "sample", out=tmp_path, **settings)
    assert again.metrics == metrics
    assert robvit.Record.load(tmp_path / "record.json").tables == record.tables


@pytest.mark.slow
def test_secret_tokens_meet_who_has_them_and_who_has_not() -> None:
    model = robvit.load("robvit-mini")
    values = torch.randn(1, 4, model.width, generator=torch.Generator().manual_seed(0))
    learned_from = tuple(robvit.open_data("sample", limit=3).names)
    hardened = model.replace(
        tokens=robvit.RobustTokens(values, model.fingerprint(), learned_from=learned_from)
    )
    record = evaluate_retrieval(
        hardened, "sample", limit=4, gallery_limit=40, steps=3, threat=Threat("linf", 8 / 255)
    )
    assert "tokens were learned from 3 of these 4 images" in record.notes[-1]
    assert [(trial.attack, trial.variant, trial.surrogate) for trial in record.trials] == [
        ("clean", "", ""),
        *(("feature", goal, "") for goal in ("away", "collision")),
        *(("feature", goal, "the public model") for goal in ("away", "collision")),
    ]
    known, unknown = (record.metrics[f"bits, {PUSHED}{who}"] for who in ("", ", without its tokens"))
    assert 0 < unknown != known > 0  # random tokens help nobody, but other images are made without them


def test_a_gallery_of_one_class_is_refused() -> None:
    gallery = robvit.open_data("sample", split="train", limit=20)
    one = gallery.take([i for i, label in enumerate(gallery.labels) if label == gallery.labels[0]])
    queries = robvit.open_data("sample", limit=20)
    with pytest.raises(InputError, match="gallery has no image of class"):
        evaluate_retrieval("robvit-mini", queries, gallery=one)
    same = queries.take([i for i, label in enumerate(queries.labels) if label == gallery.labels[0]])
    with pytest.raises(InputError, match="two classes or more"):
        evaluate_retrieval("robvit-mini", same, gallery=one)
