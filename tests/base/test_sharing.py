"""Results that are passed on: a folder each, opened again to the same thing; secrets stay unless told."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora
from robvit.backbones.heads import FeatureHead, LinearHead
from robvit.cli import app
from robvit.defenses.lora import LoRA
from robvit.defenses.pool import TokenPool
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.io import fresh
from robvit.defenses.tora.modules import Adapters
from robvit.errors import CannotShare, InputError
from robvit.places import data_without_places
from robvit.record import Curve, Finding, Record, Table
from robvit.sharing import Shareable
from robvit.tensor_files import read_tensors
from robvit.verdict import claim_of


@pytest.fixture(scope="module")
def mini() -> robvit.Model:
    return robvit.load("robvit-mini")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Record:
    out = tmp_path_factory.mktemp("judged")
    threat = robvit.Threat("linf", 2 / 255)
    return robvit.attack("robvit-mini", "sample", threat=threat, settings={"steps": 1}, limit=4, out=out)


def tokens(mini: robvit.Model, origin: str) -> RobustTokens:
    return RobustTokens(torch.ones(1, 2, mini.width), mini.fingerprint(), origin=origin, salt="ab")


def things(mini: robvit.Model) -> dict[str, Shareable]:
    head = LinearHead(2 * mini.width, 3, mini.fingerprint(), ["ape", "bee", "cat"])
    adapters = fresh(mini)
    adapters.names = [f"class {i}" for i in range(10)]
    one = tokens(mini, "seed")
    parts: dict[str, Shareable] = {"lora": changed_lora(mini), "head": head, "tokens": one}
    return parts | {"pool": TokenPool((one, tokens(mini, "imported"))), "adapters": adapters}


CLASSES: dict[str, Any] = {
    "lora": LoRA,
    "head": FeatureHead,
    "tokens": RobustTokens,
    "pool": TokenPool,
    "adapters": Adapters,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
def test_a_folder_opens_to_the_same_thing(
    kind: str, mini: robvit.Model, judged: Record, tmp_path: Path
) -> None:
    thing = things(mini)[kind]
    thing.save_pretrained(tmp_path / "mine", records=[judged])
    files = sorted(path.name for path in (tmp_path / "mine").iterdir())
    assert files == sorted(["README.md", "config.json", f"{kind}.safetensors"])
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert (config["library_name"], config["shared_as"]) == ("robvit", kind)
    assert config["fingerprint"] == mini.fingerprint()
    again = CLASSES[kind].from_pretrained(tmp_path / "mine")
    again.save_pretrained(tmp_path / "again", records=[judged])
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == config
    (old, told), (new, told_again) = (
        read_tensors(tmp_path / place / f"{kind}.safetensors", "a part") for place in ("mine", "again")
    )
    assert told == told_again  # whose order in the file is nobody's
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    part: Any = {"pool": "tokens"}.get(kind, kind)
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        loaded = robvit.load("robvit-mini", **{part: str(tmp_path / "mine")})
        if kind != "pool":  # which draws anew
            torch.testing.assert_close(loaded(x), robvit.load("robvit-mini", **{part: thing})(x))
    card = huggingface_hub.ModelCard.load(tmp_path / "mine" / "README.md")
    assert card.data.library_name == "robvit"
    for word in ("linf 2/255", "| 4 |", " to ", "## Limits", "nothing else"):
        assert word in card.text, word


def test_a_record_goes_without_the_places_of_this_machine(judged: Record, tmp_path: Path) -> None:
    judged.command = f"robvit attack {tmp_path}/net.safetensors sample --eps 2/255"
    judged.save_pretrained(tmp_path / "shared")
    text = (tmp_path / "shared" / "record.json").read_text() + (tmp_path / "shared" / "README.md").read_text()
    assert str(tmp_path) not in text
    again = Record.from_pretrained(tmp_path / "shared")
    assert again.command == "robvit attack net.safetensors sample --eps 2/255"
    assert again.trials == judged.trials
    kept = "https://host/page/x 8/255 a/b"
    places = [
        "/home/me/x.pt",
        "folder:/home/me/my pictures/x.pt",
        "~/c/x.pt",
        "../e/x.pt",
        "file:///home/me/x.pt",
    ]
    cut = data_without_places([kept, {"k": places}])
    assert cut == [kept, {"k": ["x.pt", "folder:x.pt", "x.pt", "x.pt", "file://x.pt"]}]
    assert data_without_places("imagenet:/data/net?test=0.25") == "imagenet:net?test=0.25"
    for share in ("//nas/home/me/x.pt", "folder://nas/home/me/x.pt"):
        assert "me" not in data_without_places(share)


def test_no_part_of_a_record_that_is_shown_tells_a_place(judged: Record) -> None:
    place = "/home/me/a.pt"
    shown = replace(
        judged,
        trials=[replace(trial, scenario=place, variant=f"on {place}") for trial in judged.trials],
        tables=[Table(f"Of {place}", ["theirs / ours", place], [["", place]], place)],
        curves=[Curve(f"Of {place}", "x", "y", {place: [[0.0, 1.0]]}, place)],
        claims=[claim_of(f"{place} over {place}", [True], [False])],
        findings=[Finding("a check", "green", place)],
        notes=[f"Made by {place}."],
    ).without_places()
    assert "/home" not in json.dumps(asdict(shown))
    assert shown.tables[0].columns == ["theirs / ours", "a.pt"]


@pytest.mark.parametrize("origin", ["secret", ""])
def test_secret_tokens_stay_unless_their_end_is_asked_for(
    origin: str, mini: robvit.Model, tmp_path: Path
) -> None:
    secret = tokens(mini, origin)
    for held in (secret, TokenPool((tokens(mini, "seed"), secret))):
        with pytest.raises(InputError, match="they stop being secret"):
            held.save_pretrained(tmp_path / "out")
        with pytest.raises(InputError, match="are a secret"):
            held.push_to_hub("me/out")
    assert not (tmp_path / "out").exists()
    secret.save_pretrained(tmp_path / "out", publish_secret=True)
    assert "Warning: these tokens" in (tmp_path / "out" / "README.md").read_text()
    text = (tmp_path / "out" / "README.md").read_text() + (tmp_path / "out" / "config.json").read_text()
    assert '"ab"' not in text  # the salt


# Where an upload fails, huggingface_hub leaves its temporary folder to the collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_pushing_creates_a_repository_and_uploads_the_folder(
    mini: robvit.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class Hub:
        def __init__(self, token: str | None = None) -> None:
            seen["token"] = token

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            seen.update(options)
            return type("Made", (), {"repo_id": repo_id})

        def upload_folder(self, *, repo_id: str, folder_path: Path, **options: Any) -> str:
            seen["files"] = sorted(path.name for path in Path(folder_path).iterdir())
            return f"hub/{repo_id}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Hub)
    where = changed_lora(mini).push_to_hub("me/mine", private=True, token="t")  # noqa: S106
    assert where == "hub/me/mine"
    assert seen["files"] == ["README.md", "config.json", "lora.safetensors"]
    assert (seen["private"], seen["token"]) == (True, "t")

    def down(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(Hub, "upload_folder", down)
    with pytest.raises(CannotShare, match="did not take me/mine: no network; log in"):
        changed_lora(mini).push_to_hub("me/mine")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", down)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", down)
    with pytest.raises(CannotShare, match="the hub did not give it"):
        LoRA.from_pretrained("me/nowhere")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def push(*words: object) -> Any:
    return CliRunner().invoke(app, ["push", *map(str, words)])


def test_the_command_takes_files_runs_and_networks(
    mini: robvit.Model, judged: Record, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    changed_lora(mini).save(run / "lora.safetensors")
    judged.save(run / "record.json")
    (run / "secret").write_text("never")
    done = push(run, "me/lora", "--folder", tmp_path / "one")
    assert done.exit_code == 0, done.output
    assert "next: hf upload me/lora" in done.output
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == [
        "README.md",
        "config.json",
        "lora.safetensors",
    ]
    assert "# me/lora" in (tmp_path / "one" / "README.md").read_text()
    assert robvit.push(run, "me/lora", folder=tmp_path / "same") == str(tmp_path / "same")
    cards = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("one", "same")]
    assert cards[0] == cards[1]
    done = push(run / "record.json", "me/record", "--folder", tmp_path / "two")
    assert done.exit_code == 0, done.output
    tokens(mini, "secret").save(tmp_path / "t.safetensors")
    done = push(tmp_path / "t.safetensors", "me/tokens", "--folder", tmp_path / "three")
    assert isinstance(done.exception, InputError)
    done = push(tmp_path / "t.safetensors", "me/tokens", "--folder", tmp_path / "three", "--publish-secret")
    assert done.exit_code == 0, done.output
    for wrong, message in ((tmp_path / "none", "nothing at"), (tmp_path, "holds no result")):
        assert message in str(push(wrong, "me/x", "--folder", tmp_path / "f").exception)
    assert "OWNER/NAME" in str(push(run, "../x", "--folder", tmp_path / "f").exception)


def test_nothing_that_was_in_a_folder_goes_unasked(mini: robvit.Model, tmp_path: Path) -> None:
    changed_lora(mini).save(tmp_path / "lora.safetensors")
    (own := tmp_path / "own").mkdir()
    (own / "thesis.tex").write_text("years")
    done = push(tmp_path / "lora.safetensors", "me/lora", "--folder", own)
    assert "own is not empty" in str(done.exception)
    assert (own / "thesis.tex").read_text() == "years"
    assert push(tmp_path / "lora.safetensors", "me/lora", "--folder", own, "--force").exit_code == 0


def test_a_training_without_a_config_is_not_passed_on_by_halves(judged: Record, tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    judged.save(run / "record.json")
    save_file({"a": torch.zeros(1)}, run / "model.safetensors")
    told = str(push(run, "me/net", "--folder", tmp_path / "out").exception)
    assert "holds weights without config.json" in told
    assert "--format huggingface" in told
    assert not (tmp_path / "out").exists()


def test_a_pool_on_the_hub_is_opened_as_one(
    mini: robvit.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = TokenPool((tokens(mini, "seed"), tokens(mini, "imported")))
    pool.save_pretrained(tmp_path / "pool")
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda _, name, **__: str(tmp_path / "pool" / name)
    )
    monkeypatch.setattr(TokenPool, "from_pretrained", classmethod(lambda cls, name: {"me/pool": pool}[name]))
    assert robvit.load("robvit-mini", tokens="hf:me/pool").pool is not None


def test_the_card_of_a_tuning_tells_no_place(judged: Record) -> None:
    judged.data = judged.data | {"spec": "imagenet:/home/alice/clients/pictures"}
    assert "alice" not in judged.card()


def test_a_network_is_passed_on_without_what_lies_beside_it(judged: Record, tmp_path: Path) -> None:
    net = tmp_path / "net"
    net.mkdir()
    (net / "config.json").write_text(json.dumps({"model_type": "vit", "architectures": ["ViTModel"]}))
    (net / "notes.txt").write_text("mine")
    save_file({"a": torch.zeros(1)}, net / "model.safetensors", {"fingerprint": "f00"})
    judged.save(tmp_path / "record.json")
    done = push(net, "me/net", "--folder", tmp_path / "out", "--record", tmp_path / "record.json")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["a"], torch.zeros(1))
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'robvit.load("hf:me/net")' in card
    assert "linf 2/255" in card
    save_file(
        {"a": torch.zeros(1)}, net / "model.safetensors", {"warning": "this file carries secret tokens"}
    )
    done = push(net, "me/net", "--folder", tmp_path / "other")
    assert "carries secret tokens" in str(done.exception)


def test_without_a_record_nothing_is_claimed(mini: robvit.Model) -> None:
    card = changed_lora(mini).card(name="me/lora")
    assert "nothing is claimed" in card
    assert "Nothing is known of its robustness" in card


def test_a_branch_that_moves_is_followed_once(
    mini: robvit.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    first, asked = "a" * 40, list[str | None]()
    (tmp_path / first).mkdir()
    changed_lora(mini).save(tmp_path / first / "lora.safetensors")
    (tmp_path / first / "config.json").write_text("{}")

    def fetched(repository: str | None = None, file: str = "", **options: Any) -> str:
        asked.append(options["revision"])
        return str(tmp_path / first / (file or options["filename"]))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", fetched)
    for _ in range(2):
        LoRA.from_pretrained("me/mine")
    assert set(asked[: len(asked) // 2]) == {None}
    assert set(asked[len(asked) // 2 :]) == {first}
