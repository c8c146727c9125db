"""Nothing that decides a result can change behind a run's back: pixels, foreign code, versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps

import robvit
from robvit import resuming
from robvit.data import open_data
from robvit.errors import InputError
from robvit.evaluation.classifiers import open_classifier
from robvit.evaluation.compare import compare
from robvit.evaluation.probe import answers_digest
from robvit.training.recipe import load_recipe

PGD = {"attack": "pgd", "settings": {"steps": 1}, "threat": robvit.Threat("linf", 4 / 255)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of two classes."""
    for i in range(12):
        place = tmp_path / "data" / ("ant" if i % 2 else "bee") / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((32, 32), 20 + 10 * i).convert("RGB").save(place)
    return tmp_path / "data"


def invert(folder: Path) -> None:
    """Other pixels under the same names."""
    for path in sorted(folder.rglob("*.png"))[:6]:
        ImageOps.invert(Image.open(path)).save(path)


class Foreign(torch.nn.Module):
    """A network from elsewhere with no weights: its code is all there is."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.sign * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack((mean, -mean), 1)


def test_pixels_have_a_digest_of_their_own(folder: Path) -> None:
    before = open_data(folder)
    names, pixels = before.digest(), before.pixels()
    assert before.take([1, 0]).pixels() != before.take([0, 1]).pixels()
    assert before.facts()["pixels"] == pixels
    invert(folder)
    after = open_data(folder)
    assert (after.digest(), after.pixels() == pixels) == (names, False)
    sample = open_data("sample", limit=4)
    assert sample.pixels() == open_data("sample", limit=4).pixels() != open_data("sample", limit=3).pixels()


def test_an_attack_on_changed_pixels_is_not_taken_up_and_not_compared(folder: Path, tmp_path: Path) -> None:
    first = robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
    again = robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
    assert compare(first, again)[0].difference == 0
    invert(folder)
    with pytest.raises(InputError, match="another run: pixels changed"):
        robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
    with pytest.raises(InputError, match="same pixels"):
        compare(first, robvit.attack(Foreign(), folder, **PGD))


def test_a_budget_with_other_digits_is_another_budget(folder: Path, tmp_path: Path) -> None:
    near = [PGD | {"threat": robvit.Threat("linf", eps)} for eps in (0.01234567, 0.01234568)]
    assert len({str(one["threat"]) for one in near}) == 1  # to people they are the same
    robvit.attack(Foreign(), folder, out=tmp_path / "out", **near[0])
    with pytest.raises(InputError, match="another run: threat"):
        robvit.attack(Foreign(), folder, out=tmp_path / "out", **near[1])


def test_changed_code_of_a_foreign_model_is_another_model(folder: Path, tmp_path: Path) -> None:
    robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
    with pytest.raises(InputError, match="another run: model changed"):
        robvit.attack(Foreign(-1.0), folder, out=tmp_path / "out", **PGD)
    assert open_classifier(Foreign()).identity == open_classifier(Foreign()).identity


def test_a_probe_tells_of_random_and_of_picky_models() -> None:
    class Random(Foreign):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.rand_like(x))

    class Picky(Foreign):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[-1] == 100
            return super().forward(x)

    assert answers_digest(Random(), None) == "random"
    assert answers_digest(Picky(), None) == "unknown"
    assert answers_digest(Picky(), 100) not in ("unknown", "random")
    net = Foreign().train()
    answers_digest(net, None)
    assert net.training


@pytest.mark.slow
def test_tokens_and_trainings_refuse_changed_pixels(folder: Path, tmp_path: Path) -> None:
    tokens: dict[str, Any] = {"count": 1, "steps": 1, "batch": 2, "attack_steps": 1, "limit": 12}
    robvit.robustify("robvit-mini", folder, out=tmp_path / "tokens", **tokens)
    short = {"epochs": 1, "batch": 4, "validation": 4, "validate_every": 1, "warmup": 0, "eps_warmup": 0}
    recipe = load_recipe("small-study", **short)
    robvit.train(recipe, model="robvit-mini", data=open_data(folder), out=tmp_path / "train")
    invert(folder)
    with pytest.raises(InputError, match="another run: pixels changed"):
        robvit.robustify("robvit-mini", folder, out=tmp_path / "tokens", **tokens)
    with pytest.raises(InputError, match="another run: pixels changed"):
        robvit.train(recipe, model="robvit-mini", data=open_data(folder), out=tmp_path / "train")


def test_another_version_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
    assert set(resuming.versions()) == {"robvit", "torch", "timm"}
    newer = {**resuming.library_versions(), "torch": "99.0"}
    monkeypatch.setattr(resuming, "library_versions", lambda: newer)
    with pytest.raises(InputError, match=r"versions\.torch was .*, is 99\.0"):
        robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)


@pytest.mark.slow
def test_a_folder_that_says_nothing_of_what_it_depends_on_is_refused(folder: Path, tmp_path: Path) -> None:
    robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
    (tmp_path / "out/shards/job.json").write_text('{"key": "abc"}')
    with pytest.raises(InputError, match="older robvit"):
        robvit.attack(Foreign(), folder, out=tmp_path / "out", **PGD)
