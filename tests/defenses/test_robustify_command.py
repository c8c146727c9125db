"""`robvit robustify` and `robvit tokens rotate` as a person uses them."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import robvit
from helpers.docs_blocks import found_command
from helpers.lora import changed_lora
from robvit.backbones.heads import load_head
from robvit.budget import Budget
from robvit.cli import app
from robvit.defenses.pool import TokenPool
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.tokens import RobustTokens
from robvit.record import Record
from robvit.training.tuning import LEARNING_RATES, Tuning

SMALL = ("robustify", "robvit-mini", "sample", "--limit", "32", "--attack-steps", "2", "--batch", "4")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))


def robvit_(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
def test_a_seed_left_out_is_secret_and_kept(tmp_path: Path) -> None:
    outs = [tmp_path / "a", tmp_path / "b"]
    for out in outs:
        assert robvit_(*SMALL, "--steps", 1, "--out", out).exit_code == 0
    first, second = (RobustTokens.load(out / "tokens.safetensors") for out in outs)
    assert not torch.equal(first.values, second.values)
    for out, tokens in zip(outs, (first, second), strict=True):
        assert stat.S_IMODE((out / "secret").stat().st_mode) == 0o600
        kept = json.loads((out / "secret").read_text())
        assert all(len(bytes.fromhex(one)) * 8 >= 128 for one in kept.values())
        assert len(set(kept.values())) == 3
        assert tokens.origin == "secret"
        assert "seed" not in tokens.settings
        shown = robvit_("tokens", "show", out / "tokens.safetensors").output
        record = (out / "record.json").read_text() + (out / "report.html").read_text()
        assert not any(one in shown + record for one in (*kept.values(), tokens.salt))
    again = robvit_(*SMALL, "--steps", 1, "--out", outs[0])
    assert again.exit_code == 0, again.output
    assert torch.equal(RobustTokens.load(outs[0] / "tokens.safetensors").values, first.values)


@pytest.mark.slow
def test_every_option_reaches_the_recipe(tmp_path: Path) -> None:
    options = ("--count", 3, "--lr", 0.5, "--layers", "0,2", "--steps", 1, "--seed", 9, "--start", 0.1)
    attacks = ("--attack", "feature", "--attack", "feature@1/255", "--adaptive", "--inner-steps", 1)
    done = robvit_(*SMALL, *options, *attacks, "--adaptive-share", 0.5, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    recipe = TokenRecipe.from_settings(RobustTokens.load(tmp_path / "tokens.safetensors").settings)
    assert (recipe.count, recipe.lr, recipe.layers, recipe.seed, recipe.start) == (3, 0.5, (0, 2), 9, 0.1)
    assert [round(attack.threat.eps * 255) for attack in recipe.attacks] == [8, 1]
    assert recipe.attack.settings == {"steps": 2}
    assert recipe.adaptive is not None
    assert (recipe.adaptive.steps, recipe.adaptive.share) == (1, 0.5)
    deep = robvit_(*SMALL, "--preset", "deep", "--steps", 1, "--out", tmp_path / "deep")
    assert deep.exit_code == 0, deep.output
    recipe = TokenRecipe.from_settings(RobustTokens.load(tmp_path / "deep" / "tokens.safetensors").settings)
    assert (recipe.lr, recipe.layers, recipe.steps) == (5e-3, (0, 1, 2, 3), 1)
    assert recipe.attack.settings == {"steps": 2, "psnr": None}
    for wrong, why in (
        (("--layers", "0,x"), "layers must be"),
        (("--preset", "best"), "preset must be paper"),
        (("--pool", 2, "--task", 1), "one set of tokens"),
        (("--layers", "99"), "rising numbers"),
    ):
        assert why in str(robvit_(*SMALL, *wrong, "--out", tmp_path / "x").exception)


@pytest.mark.slow
def test_the_result_folder_holds_curve_and_report_and_no_secret(tmp_path: Path) -> None:
    done = robvit_(*SMALL, "--steps", 26, "--pool", 2, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    pool = TokenPool.load(tmp_path / "out" / "pool.safetensors")
    secrets = [*(tmp_path / "out").glob("state*"), tmp_path / "out" / "pool.safetensors"]
    assert len(secrets) > 1
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets} == {0o600}
    record = Record.load(tmp_path / "out" / "record.json")
    (curve,) = record.curves
    for line, figure in (
        ("clean, set 1", "hardened cosine, clean, set 1"),
        ("attacked, set 2", "hardened cosine under attack, set 2"),
    ):
        assert [step for step, _ in curve.lines[line]] == [24]
        assert record.metrics[figure] == curve.lines[line][-1][1]
        assert all(round(value, 2) == value for _, value in curve.lines[line])
    baseline = record.metrics["un-hardened cosine under attack, set 1"]
    assert curve.lines["un-hardened, attacked"] == [[24, baseline], [24, baseline]]
    assert record.model["secret"] is True
    for one in pool:
        assert one.key_id in done.output
        values = [f"{value:.5f}" for value in one.values.flatten()[:50].abs().tolist()]
        for text in (
            done.output,
            *((tmp_path / "out" / n).read_text() for n in ("record.json", "report.html")),
        ):
            assert not any(value in text for value in values if len(set(value)) > 4)


@pytest.mark.slow
def test_a_head_learns_along_and_is_written(tmp_path: Path) -> None:
    head = tmp_path / "head.safetensors"
    assert robvit_("train", "head", "robvit-mini", "sample", "--limit", 40, "--out", head).exit_code == 0
    options = ("--head", head, "--task", 1, "--attack", "pgd@4/255", "--adaptive", "--inner-steps", 1)
    done = robvit_(*SMALL, *options, "--steps", 2, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    learned = load_head(tmp_path / "out" / "head.safetensors")
    assert not torch.equal(learned.linear.weight, load_head(head).linear.weight)
    tokens = tmp_path / "out" / "tokens.safetensors"
    robvit.load("robvit-mini", tokens=tokens, head=tmp_path / "out" / "head.safetensors")


@pytest.mark.slow
def test_rotation_issues_new_tokens_and_tells_what_carries_over(tmp_path: Path) -> None:
    old, out = tmp_path / "old" / "tokens.safetensors", tmp_path / "new"
    assert robvit_(*SMALL, "--steps", 2, "--layers", "0,1", "--out", old.parent).exit_code == 0
    head = tmp_path / "head.safetensors"
    assert robvit_("train", "head", "robvit-mini", "sample", "--limit", 40, "--out", head).exit_code == 0
    rotate = ("tokens", "rotate", old, "robvit-mini", "sample", "--limit", 32, "--judge", 8)
    done = robvit_(*rotate, "--head", head, "--out", out)
    assert done.exit_code == 0, done.output
    before, after = (RobustTokens.load(file) for file in (old, out / "tokens.safetensors"))
    assert after.layers == before.layers == (0, 1)
    assert not torch.equal(before.values, after.values)
    assert after.origin == "secret"
    assert stat.S_IMODE((out / "tokens.safetensors").stat().st_mode) == 0o600
    table = {(row[0], row[1]): row[2:] for row in Record.load(out / "record.json").tables[0].rows}
    assert len(table) == 9
    assert table["clean", "no tokens"][0] == pytest.approx(1, abs=1e-5)
    attacked = "attacked with old tokens"
    assert table[attacked, "old tokens"][0] < table["clean", "old tokens"][0]
    assert all(0 <= accuracy <= 1 for _, accuracy in table.values())
    refused = robvit_(*rotate, "--bound", 0.9999999, "--out", tmp_path / "refused")
    assert "below the bound" in str(refused.exception)
    assert not (tmp_path / "refused" / "tokens.safetensors").exists()


@pytest.mark.slow
def test_tokens_for_a_tuned_network_are_learned_and_rotated_on_it(tmp_path: Path) -> None:
    mini, lora = robvit.load("robvit-mini"), tmp_path / "lora.safetensors"
    changed_lora(mini).save(lora)
    done = robvit_(*SMALL, "--lora", lora, "--steps", 1, "--out", tmp_path / "old")
    assert done.exit_code == 0, done.output
    assert f"--lora {lora}" in done.output.partition("next: ")[2]
    old = tmp_path / "old" / "tokens.safetensors"
    tuned = robvit.load("robvit-mini", lora=lora, tokens=old)
    assert RobustTokens.load(old).fingerprint == tuned.fingerprint() != mini.fingerprint()
    rotate = ("tokens", "rotate", old, "robvit-mini", "sample", "--limit", 16, "--judge", 4, "--bound", -1)
    again = robvit_(*rotate, "--lora", lora, "--out", tmp_path / "new")
    assert again.exit_code == 0, again.output
    robvit.load("robvit-mini", lora=lora, tokens=tmp_path / "new" / "tokens.safetensors")


def test_the_help_states_the_defaults_of_every_method() -> None:
    _, command, _ = found_command(["robustify"])
    told = {parameter.name: getattr(parameter, "help", "") for parameter in command.params}
    tokens, tuning = TokenRecipe(), Tuning()
    for name in ("steps", "batch"):
        assert f"{getattr(tokens, name)}, lora, full: {getattr(tuning, name)}." in told[name]
    assert (
        f"{tokens.attack.threat.budget.amount}, lora, full: {Budget('linf', tuning.eps).amount}."
        in told["eps"]
    )
    assert f"full: of the inner attack, {tuning.attack_steps}, more beyond 2/255." in told["inner_steps"]
    assert [float(rate) for rate in re.findall(r"1e-\d", told["lr"])] == [tokens.lr, LEARNING_RATES["full"]]
    assert LEARNING_RATES["lora"] == tokens.lr


@pytest.mark.slow
def test_left_to_itself_it_attacks_half_as_many_images_as_it_draws(tmp_path: Path) -> None:
    small = ("robustify", "robvit-mini", "sample", "--steps", 2, "--batch", 4, "--attack-steps", 1)
    assert robvit_(*small, "--out", tmp_path / "a").exit_code == 0
    assert Record.load(tmp_path / "a" / "record.json").data["count"] == 4
    assert robvit_(*small, "--limit", 6, "--out", tmp_path / "b").exit_code == 0
    assert Record.load(tmp_path / "b" / "record.json").data["count"] == 6
