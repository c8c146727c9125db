"""The studies of robustness tokens run, and what they print follows from what they measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import robvit
import robvit.studies.rob.common as rob_common
import robvit.studies.rob.tables as rob_tables
from helpers.studies import check_tables
from robvit.attention import watch
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.tokens import RobustTokens
from robvit.errors import DataError, InputError
from robvit.explanation.figures.activations import largest_activations

QUICK: dict[str, Any] = {"model": "robvit-mini", "steps": 2, "learn": 16}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rob-table1", {"head": 40, "scenes": 4, "images": 4}),
        ("rob-table2", {"head": 40, "scenes": 4, "images": 4, "attack_steps": 2}),
        ("rob-table3", {"images": 4}),
        ("rob-table4", {"head": 40, "images": 4, "attack_steps": 2, "targets": 2, "queries": 5}),
        ("rob-fig3", {"scenes": 4, "images": 4, "attack_steps": 2}),
        ("rob-fig4", {"counts": (1, 3)}),
        ("rob-fig5", {}),
        ("rob-fig6", {"images": 4}),
        ("rob-leak", {"images": 4, "answers": (1, 4), "leak_steps": 3}),
    ],
)
def test_each_study_of_tokens_runs_on_the_bundled_model(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    record = robvit.reproduce(name, out=tmp_path / "out", **QUICK, **settings)
    check_tables(record, tmp_path)


@pytest.mark.slow
def test_a_table_says_what_its_trials_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[AttackSetting] = []

    def attack_features(model: Any, images: Any, attack: AttackSetting, label: str) -> Any:
        used.append(attack)
        return rob_common.attack_features(model, images, attack, label)

    monkeypatch.setattr(rob_tables, "attack_features", attack_features)
    settings: dict[str, Any] = {"head": 40, "scenes": 4, "images": 8, "attack_steps": 2, "eps": 8 / 255}
    record = robvit.reproduce("rob-table2", out=tmp_path, **QUICK, **settings)
    rows = {row[0]: row[1:] for row in record.tables[0].rows}
    attacked = [t for t in record.trials if t.scenario == "no tokens" and t.attack == "pgd"]
    assert rows["accuracy under PGD-2, %"][0] == 100 * sum(attacked[0].correct) / 8
    assert [attack.steps for attack in used] == [2]  # the features are attacked in as many steps
    assert {t.scenario for t in record.trials if t.control} == {"no tokens", "random tokens"}
    scenarios = {t.scenario for t in record.trials}
    assert {"random tokens", "tokens", "tokens, attacker knows them"} <= scenarios


@pytest.mark.slow
def test_the_choices_of_the_published_code_are_taken_apart(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.safetensors")
    model = robvit.load("robvit-mini", pos_embed="hub")
    tokens = RobustTokens(0.01 * torch.randn(1, 4, model.width), model.fingerprint())
    tokens.save(file)
    with pytest.raises(InputError, match="which tokens"):
        robvit.reproduce("rob-choices", model="robvit-mini", images=2)
    record = robvit.reproduce(
        "rob-choices",
        model="robvit-mini",
        images=3,
        few=2,
        img_size=32,
        tokens=file,
    )
    rows = record.tables[0].rows
    assert [row[1] for row in rows] == [50_000, 3, 2, 2, 2, 2, 2, 2, 2]
    assert len({row[0] for row in rows}) == 8  # the published choices stand there twice


def test_the_largest_activation_leaves_extra_tokens_out() -> None:
    model = robvit.load("robvit-mini")
    x = torch.rand(2, 3, 32, 32)
    bare = largest_activations(model, x)
    assert bare.shape == (2, 4)
    with watch(model, residual=True) as seen, torch.no_grad():
        model(x)
    assert torch.equal(bare[:, 3], seen.residual[3].abs().amax(dim=(1, 2)))
    huge = model.replace(tokens=1e4 * torch.ones(1, 2, model.width))
    assert float(largest_activations(huge, x).max()) < 1e4


def test_segmentation_without_masks_is_refused(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    RobustTokens(torch.randn(1, 2, model.width), model.fingerprint()).save(tmp_path / "tokens.safetensors")
    with pytest.raises(DataError, match="sample has labels; name a set such as shapes"):
        robvit.reproduce(
            "rob-fig3",
            model="robvit-mini",
            tokens=str(tmp_path / "tokens.safetensors"),
            segmentation_data="sample",
            scenes=2,
        )
