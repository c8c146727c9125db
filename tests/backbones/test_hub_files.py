"""Files from the model hub: opened by our readers alone, whatever timm would do with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import timm
import timm.models._builder as builder
import torch

import robvit
from helpers.hostile_files import Harm
from robvit import revisions
from robvit.backbones import download, weights, zoo
from robvit.errors import InputError, WeightsUnavailable
from robvit.evaluation.classifiers import model_facts

CUSTOM = "vit_tiny_patch16_224.augreg_in21k"  # timm expects a file of another framework for it


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> zoo.Known:
    """A model whose file lies in the hub's cache; timm may not open it."""

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("timm opened the file")

    monkeypatch.setattr(builder, "load_state_dict", opened)
    return zoo.Known("toy", "test_vit", "vit", "CC0", 0.4, hub="timm/test_vit")


def lies_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "hub_cached", lambda known: path)


def test_code_in_a_pickle_of_the_cache_is_not_run(
    toy: zoo.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"state_dict": Harm(tmp_path / "canary")}, tmp_path / "pytorch_model.bin")
    lies_at(tmp_path / "pytorch_model.bin", monkeypatch)
    with pytest.raises(WeightsUnavailable, match="read safely"):
        weights._hub(toy)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_good_files_are_read(
    name: str, toy: zoo.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = timm.create_model("test_vit")
    save = torch.save if name.endswith("bin") else safetensors.torch.save_file
    save(net.state_dict(), tmp_path / name)
    lies_at(tmp_path / name, monkeypatch)
    found = weights._hub(toy)
    assert found is not None
    torch.testing.assert_close(found[0], net.state_dict())


@pytest.mark.slow
def test_a_network_with_a_loader_of_its_own_reads_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timm.get_pretrained_cfg(CUSTOM).custom_load
    net = timm.create_model(CUSTOM)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "model.safetensors")
    lies_at(tmp_path / "model.safetensors", monkeypatch)
    found = weights._hub(zoo.resolve(CUSTOM))
    assert found is not None
    torch.testing.assert_close(found[0], net.state_dict())


# --- revisions: commits of a repository, never a branch that moves

TOY = zoo.Known("toy", "test_vit", "vit", "CC0", 0.4, hub="timm/test_vit")
OLD, NEW = "1" * 40, "2" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A hub with two commits of a model, in whose cache every file lies as the real client leaves it.

    Called with a commit, it moves the main branch there.
    """
    cache = tmp_path / "hub"
    repository = cache / "models--timm--test_vit"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "robvit"))
    monkeypatch.setitem(zoo.ALIASES, "toy", TOY)
    monkeypatch.setattr(download, "hub_problem", lambda: "")
    tip = [OLD]

    def fetched(name: str, file: str, *, revision: str | None) -> str:
        assert (name, file) == ("timm/test_vit", "model.safetensors")
        commit = revision or tip[0]
        place = repository / "snapshots" / commit / file
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(int(commit[0]))
        safetensors.torch.save_file(timm.create_model("test_vit").state_dict(), place)
        if not revision:
            (repository / "refs").mkdir(exist_ok=True)
            (repository / "refs/main").write_text(commit)
        return str(place)

    def move(commit: str) -> None:
        """As another program would that updates what it uses."""
        tip[0] = commit
        fetched("timm/test_vit", "model.safetensors", revision=None)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetched)
    return move


def test_the_first_commit_is_told_and_meant_from_then_on(
    hub: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    first, origin = weights.state_dict("toy")
    assert origin.revision == OLD
    assert OLD in origin.source
    assert f"its main branch was at {OLD}" in (said := capfd.readouterr().err)
    assert f"elsewhere ask for toy@{OLD}" in said
    hub(NEW)
    again, origin = weights.state_dict("toy")
    assert origin.revision == OLD
    torch.testing.assert_close(again, first)
    assert not capfd.readouterr().err


def test_a_commit_can_be_chosen_and_is_recorded(hub: Callable[[str], None]) -> None:
    hub(OLD)
    model = robvit.load(f"toy@{NEW}")
    assert model_facts(model.replace(name="mine"))["hub revision"] == NEW
    assert model.fingerprint() != robvit.load("toy").fingerprint()
    assert robvit.load(f"toy@{OLD}").fingerprint() == robvit.load("toy").fingerprint()
    assert "hub revision" not in model_facts(robvit.load("robvit-mini"))


def test_a_pin_holds_whatever_the_cache_has(
    hub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(revisions.PINNED, "timm/test_vit", OLD)
    hub(NEW)
    monkeypatch.setattr(download, "hub_problem", lambda: "the hub is away")
    with pytest.raises(WeightsUnavailable, match=f"its cache holds another revision, toy@{NEW}"):
        weights.state_dict("toy")
    assert weights.state_dict(f"toy@{NEW}")[1].revision == NEW
    monkeypatch.setattr(download, "hub_problem", lambda: "")
    assert weights.state_dict("toy")[1].revision == OLD


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("dinov2-base@main", "branches and tags move"),
        (f"dinov2-base@{OLD[:-1]}", "40 hexadecimal digits"),
        (f"robvit-mini@{OLD}", "not on the model hub"),
        (f"vit_nonsense@{OLD}", "vit_nonsense"),
    ],
)
def test_what_is_no_commit_of_the_hub_is_refused(name: str, flaw: str) -> None:
    for door in (zoo.check_name, zoo.resolve):
        with pytest.raises(robvit.errors.RobvitError, match=flaw):
            door(name)


def test_pins_are_commits_of_known_repositories() -> None:
    assert set(revisions.PINNED) <= {known.hub for known in zoo.TABLE}
    assert all(revisions.COMMIT.fullmatch(commit) for commit in revisions.PINNED.values())


def test_a_damaged_table_of_revisions_is_refused(hub: Callable[[str], None], tmp_path: Path) -> None:
    for text in ("[]", '{"timm/test_vit": "main"}', "{"):
        revisions._path().parent.mkdir(exist_ok=True)
        revisions._path().write_text(text)
        with pytest.raises(InputError, match="revisions"):
            weights.state_dict("toy")
