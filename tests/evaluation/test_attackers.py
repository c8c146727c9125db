"""The attackers of secret tokens: what each makes images on, and what the record then says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import robvit
from robvit.attacks import run
from robvit.backbones.model import Model
from robvit.budget import Budget
from robvit.data import ImageDataset, open_data
from robvit.errors import InputError
from robvit.evaluation.attackers import ATTACKERS
from robvit.evaluation.claims import _may_claim
from robvit.evaluation.protocol import AttackerBudget, Protocol, find
from robvit.evaluation.shards import read_shards
from robvit.evaluation.token_surrogates import FIRST_SEED, AttackerContext, LogitEnsemble, random_tokens
from robvit.record import Record, Trial
from robvit.threat import Threat

RULES: dict[str, Any] = {
    **find("rob-tokens@1").model_dump(mode="json"),
    "name": "short@1",
    "attacker_budget": {"sets": 2, "images": 8, "steps": 2, "batch": 4, "attack_steps": 1, "leak_steps": 3},
}
for entry in RULES["attacks"]:
    entry["settings"] = {"steps": 2}
COUNT = 6


@pytest.fixture(scope="module")
def hardened() -> Model:
    model = robvit.load("robvit-mini")
    values = 0.5 * torch.randn(2, 3, model.width, generator=torch.Generator().manual_seed(5))
    return model.replace(tokens=values, layers=(0, 2))  # in two layers, so that nobody forgets where they go


@pytest.fixture(scope="module")
def judged(hardened: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    out = tmp_path_factory.mktemp("levels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBVIT_CACHE", str(out / "cache"))
        rules = Protocol.model_validate(RULES)
        record = robvit.evaluate(hardened, "sample", protocol=rules, limit=COUNT, batch=4, out=out)
        again = robvit.evaluate(hardened, "sample", protocol=rules, limit=COUNT, batch=4, out=out)
    assert [(t.correct, t.forward) for t in again.trials] == [(t.correct, t.forward) for t in record.trials]
    assert again.metrics == record.metrics
    return record, out


def scenario(record: Record, attacker: str) -> list[Any]:
    return [t for t in record.trials if t.attacker == attacker and not t.control and t.attack != "clean"]


def test_every_attacker_is_in_the_protocol_for_tokens() -> None:
    ladder = find("rob-tokens@2")
    assert {entry.attacker for entry in ladder.attacks} == set(ATTACKERS.names)
    assert ladder.subset.count >= 200
    queries = {e.attacker: e.settings["steps"] for e in ladder.attacks if e.attack == "square"}
    assert queries == {"black-box": 1000}
    parts = [find(f"rob-levels-{part}@1") for part in ("known", "layer", "guess", "blind", "black-box")]
    assert {entry.attacker for part in parts for entry in part.attacks} == set(ATTACKERS.names)


@pytest.mark.parametrize(
    ("attacker", "labels", "shapes"),
    [
        ("guess-layer", ["tokens before block 1", "tokens before block 2", "tokens before block 3"], 3),
        ("guess-count", ["4 tokens", "1 tokens"], 2),
        ("guess-recipe", ["tokens of another recipe"], 1),
        ("guess-all", ["guessed tokens before block 1"], 3),
    ],
)
def test_who_guesses_learns_other_tokens_than_the_real_ones(
    attacker: str,
    labels: list[str],
    shapes: int,
    hardened: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    context = context_of(hardened, tmp_path, images=4, steps=1, batch=4, attack_steps=1)
    made = ATTACKERS[attacker](context)
    assert [one.label for one in made][: len(labels)] == labels
    alone = [one.net for one in made if isinstance(one.net, Model)]
    assert len(alone) == shapes
    assert len(made) == shapes + (shapes > 1)  # and all together
    for model in alone:
        assert model.extra is not None
        if attacker in ("guess-layer", "guess-all"):
            assert model.layers != hardened.layers
        if attacker in ("guess-count", "guess-all"):
            assert model.extra.shape[1] != context.secret.shape[1]
    assert ATTACKERS.info(attacker).models(context.budget) == (2 * shapes if shapes > 1 else 1)


@pytest.mark.slow
def test_who_has_no_tokens_attacks_the_public_model_to_the_end(
    judged: tuple[Record, Path], hardened: Model
) -> None:
    record, out = judged
    images = open_data("sample", limit=COUNT)
    x, y = images.tensors()
    bare = hardened.replace(tokens=None)
    parts = [
        run("pgd", bare, a, b, Threat("linf", 3 / 255), victim=hardened, steps=2, seed=0, eight_bit=True).adv
        for a, b in zip(x.split(4), y.split(4), strict=True)
    ]
    kept = torch.cat([s.adv for s in read_shards(out / "shards" / "01-pgd-0-0", 2)])
    assert torch.equal(kept, (torch.cat(parts) * 255).round().to(torch.uint8))
    (trial,) = scenario(record, "no-tokens")
    adv = kept.float() / 255
    with torch.no_grad():
        assert trial.predicted == hardened(adv).argmax(1).tolist()
        for control, tokens in (("no tokens", None), ("random tokens", random_tokens(hardened.extra))):
            clean, attacked = (t for t in record.trials if t.scenario == control)
            twin = hardened.replace(tokens=tokens, layers=hardened.layers)
            assert clean.control
            assert attacked.control
            assert clean.predicted == twin(x).argmax(1).tolist()
            assert attacked.predicted == twin(adv).argmax(1).tolist()
        after, original = hardened.features(adv), bare.features(x)
        cosine = F.cosine_similarity(after, original, dim=-1).mean()
        own = F.cosine_similarity(after, hardened.features(x), dim=-1).mean()
    where = "trained tokens, attacker has no tokens, pgd on the public model"
    assert record.metrics[f"cosine with the original features, {where}"] == pytest.approx(
        float(cosine), abs=1e-5
    )
    assert record.metrics[f"cosine with its own clean features, {where}"] == pytest.approx(
        float(own), abs=1e-5
    )


def test_who_trains_tokens_attacks_each_set_and_all(judged: tuple[Record, Path]) -> None:
    record, _ = judged
    trials = scenario(record, "own-tokens")
    assert [t.surrogate for t in trials] == ["own tokens 1", "own tokens 2", "own tokens together"]
    worst = [all(t.correct[i] for t in trials) for i in range(COUNT)]
    clean = next(t for t in record.trials if t.scenario == trials[0].scenario)
    assert record.still_correct(trials[0].scenario) == [
        a and b for a, b in zip(worst, clean.correct, strict=True)
    ]


def test_images_that_controls_see_are_all_attacked_and_others_if_the_model_gets_them_right(
    judged: tuple[Record, Path],
) -> None:
    record, out = judged
    jobs = {
        name: json.loads((out / scenario(record, name)[0].shards / "job.json").read_text())["facts"]
        for name in ("no-tokens", "own-tokens", "leak")
    }
    assert {name: facts.get("leave_wrong", False) for name, facts in jobs.items()} == {
        "no-tokens": False,
        "own-tokens": True,
        "leak": True,
    }


def test_models_together_are_the_mean_of_their_logits(hardened: Model) -> None:
    x = torch.rand(2, 3, 32, 32)
    pair = [hardened, hardened.replace(tokens=None)]
    torch.testing.assert_close(LogitEnsemble(pair)(x), (pair[0](x) + pair[1](x)) / 2)


def test_random_tokens_have_the_mean_length_of_the_real_ones() -> None:
    real = torch.randn(1, 4, 8)
    noise = random_tokens(real)
    torch.testing.assert_close(noise.norm(dim=-1), real.norm(dim=-1).mean().expand(1, 4))
    assert F.cosine_similarity(noise, real, dim=-1).abs().max() < 0.99


def context_of(hardened: Model, folder: Path, **budget: int) -> AttackerContext:
    def public(count: int) -> ImageDataset:
        return open_data("sample", split="train", limit=count)

    return AttackerContext(hardened, public, Threat("linf", 3 / 255), AttackerBudget(**budget), folder)


def test_own_tokens_go_where_the_real_ones_go(
    hardened: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    context = context_of(hardened, tmp_path, sets=2, images=4, steps=1, batch=4, attack_steps=1)
    first, second, _ = (surrogate.net for surrogate in ATTACKERS["own-tokens"](context))
    assert isinstance(first, Model)
    assert isinstance(second, Model)
    assert first.layers == second.layers == hardened.layers
    assert first.extra is not None
    assert second.extra is not None
    assert first.extra.shape == context.secret.shape
    assert not torch.equal(first.extra, second.extra)


@pytest.mark.slow
def test_tokens_are_recovered_from_features(hardened: Model, tmp_path: Path) -> None:
    context = context_of(hardened, tmp_path, images=4, batch=4, leak_steps=50)
    (surrogate,) = ATTACKERS["leak"](context)
    far, near = (
        1 - context.metrics[f"leak: cosine of {name} with hardened features"]
        for name in ("public", "recovered")
    )
    assert near < far / 2
    assert isinstance(surrogate.net, Model)
    with torch.no_grad():
        x = context.public(4).tensors()[0]
        shown = F.cosine_similarity(surrogate.net.features(x), hardened.features(x), dim=-1).mean()
    assert near == pytest.approx(1 - float(shown), abs=1e-6)
    assert (tmp_path / "recovered.safetensors").stat().st_mode & 0o077 == 0


def test_the_headline_is_the_worst_of_all_attackers_and_never_of_controls(
    judged: tuple[Record, Path],
) -> None:
    record, _ = judged
    own = [t for t in record.trials if not t.control]
    worst = sum(all(t.correct[i] for t in own) for i in range(COUNT)) / COUNT
    assert record.headline().share == worst == record.robust_accuracy()
    assert worst <= min(record.robust_accuracy(t.scenario) for t in own)
    text = " ".join(record.notes)
    assert "only this may be claimed without a word about secrets" in text
    assert "never see the real ones" in text
    (levels,) = record.tables
    assert [row[1] for row in levels.rows] == [
        "no-tokens",
        "black-box",
        "own-tokens",
        "leak",
        "white-box",
        "control",
        "control",
    ]
    assert record.model["tokens"] == 3


def test_no_secret_stands_in_the_record(judged: tuple[Record, Path], hardened: Model, tmp_path: Path) -> None:
    record, _ = judged
    record.save(tmp_path / "record.json")
    text = (tmp_path / "record.json").read_text()
    assert hardened.extra is not None
    for value in hardened.extra.flatten()[:50].tolist():
        assert f"{value:.5f}" not in text


def test_attackers_never_learn_from_judged_images_nor_with_the_defenders_seed(hardened: Model) -> None:
    rules = Protocol.model_validate({**RULES, "controls": [], "attacks": [RULES["attacks"][2]]})
    images = open_data("sample", limit=COUNT)
    with pytest.raises(InputError, match="give public="):
        robvit.evaluate(hardened, images, protocol=rules)
    with pytest.raises(InputError, match="may not learn from judged images"):
        robvit.evaluate(hardened, images, protocol=rules, public=images)
    assert FIRST_SEED > 100
    assert json.dumps(RULES)  # a protocol is plain data


def test_what_a_defender_may_claim_follows_from_the_images() -> None:
    threat = Budget("linf", 3 / 255)

    def trial(scenario: str, right: int, **fields: Any) -> Trial:
        correct = [True] * right + [False] * (20 - right)
        return Trial("pgd", threat, {}, correct, [0] * 20, [0.0] * 20, scenario=scenario, **fields)

    trials = [
        trial("no tokens", 0, control=True),
        trial("one", 10, attacker="no-tokens"),
        trial("another", 3, attacker="own-tokens"),
    ]
    first, second = _may_claim(Record("evaluate", {}, {"count": 20}, trials))
    assert first == "A defender may claim that tokens help where the attacker has no tokens."
    assert second.startswith(
        "Nothing may be claimed over a model without tokens where the attacker trains tokens "
        "(no effect larger than 30.5 points): McNemar, 5 %; 20 images can tell"
    )
    assert _may_claim(Record("evaluate", {}, {"count": 20}, trials[1:])) == []
