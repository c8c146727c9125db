"""The table of names, which is read before torch, against the registries that it was made from."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import timm

from helpers.scripts import load_script
from robvit import names
from robvit.backbones import zoo
from robvit.errors import InputError, UnknownName
from robvit.evaluation import protocol
from robvit.training import recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
def test_the_table_holds_what_the_registries_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("make_names", monkeypatch)
    made = script.text()
    assert names.PACKAGE.joinpath("names.json").read_text() == made, "run `make names`"
    assert set(names.ROOMS) <= set(json.loads(made))


def test_files_in_the_package_are_found_by_name() -> None:
    assert names.files_named("evaluation/protocols") == protocol.names()
    assert names.files_named("training/recipes") == recipe.names()


def test_a_name_too_new_for_the_table_is_left_to_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "mine.py").write_text("@attack()\ndef mine(model):\n    pass\n")
    names.facts("attack")
    monkeypatch.setattr(names, "PACKAGE", tmp_path)
    names.check_name("attack", "mine")
    names.check_name("attack", "pgd")
    with pytest.raises(UnknownName, match="no attack is called 'mein'"):
        names.check_name("attack", "mein")


@pytest.mark.slow
def test_no_name_that_timm_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = "".join(file.read_text() for file in names.sources("timm", "models"))
    named = {*re.findall(r"\bdef (\w+)\(", texts), *re.findall(r"[\"']([\w.-]+)[\"']", texts)}
    own = {name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")}
    monkeypatch.delitem(sys.modules, "timm")
    for name in {*own, *timm.list_pretrained()} - named:  # a few; each reads all files
        zoo.check_name(name)
    zoo.check_name("vit_tiny_patch16_224")
    zoo.check_name("dinov2-small")


def test_timm_s_networks_are_listed_from_its_files_in_its_own_order() -> None:
    own = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")]
    assert zoo.timm_networks() == own


def test_a_network_that_a_program_registered_is_known() -> None:
    @timm.models.register_model
    def vit_of_this_test(pretrained: bool = False, **settings: object) -> None:
        return None

    zoo.check_name("vit_of_this_test")
    with pytest.raises(UnknownName, match="no model is called 'vit_of_that_test'"):
        zoo.check_name("vit_of_that_test")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dinov2-smal", "did you mean dinov2-small or"),
        ("vit_small_patch14_dinov2.lvd", "did you mean vit_small_patch14_dinov2.lvd142m or"),
        ("vit_tiny_patch61_224", "did you mean vit_tiny_patch16_224 or"),
        ("qqqq", "known: cait-s12, clip-base, .*robvit-mini"),
        ("nowhere/net.safetensors", "no file at nowhere/net.safetensors"),
    ],
)
def test_models_nobody_has_are_refused_without_timm(name: str, message: str) -> None:
    with pytest.raises((UnknownName, InputError), match=message):
        zoo.check_name(name)
