"""Retrieval: measures against hand-made lists, attacks against the model they have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import robvit
from robvit.errors import InputError
from robvit.evaluation.retrieval import (
    Gallery,
    average_precision,
    evaluate_retrieval,
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
    hardened = model.replace(tokens=robvit.RobustTokens(values, model.fingerprint()))
    record = evaluate_retrieval(
        hardened, "sample", limit=4, gallery_limit=40, steps=3, threat=Threat("linf", 8 / 255)
    )
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
