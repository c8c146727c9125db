"""Tokens as a secret: saved for the owner alone, tied to exact weights, never shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from helpers.networks import small_net
from robvit.backbones.model import Model
from robvit.defenses.tokens import RobustTokens, UnverifiedTokens, import_published
from robvit.errors import InputError, WrongBackbone


@pytest.fixture
def model() -> Model:
    return Model(small_net("dinov2"), name="small").eval()


def test_tokens_survive_saving_and_only_the_owner_may_read(model: Model, tmp_path: Path) -> None:
    tokens = RobustTokens(torch.randn(1, 10, 48), model.fingerprint(), settings={"steps": 200})
    path = tmp_path / "tokens.safetensors"
    tokens.save(path)
    again = RobustTokens.load(path)
    assert torch.equal(again.values, tokens.values)
    assert (again.fingerprint, again.key_id, again.settings) == (
        tokens.fingerprint,
        tokens.key_id,
        tokens.settings,
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_values_are_in_no_representation(model: Model) -> None:
    tokens = RobustTokens(torch.full((1, 2, 48), 0.123456), model.fingerprint())
    assert "0.123" not in repr(tokens)
    assert "tensor" not in repr(tokens)


def test_other_weights_are_refused(model: Model) -> None:
    tokens = RobustTokens(torch.randn(1, 2, 48), model.fingerprint())
    tokens.check(model)
    with torch.no_grad():
        model.net.cls_token.add_(1e-3)
    with pytest.raises(WrongBackbone, match="exact weights"):
        tokens.check(model)
    with pytest.raises(WrongBackbone, match="width 47"):
        RobustTokens(torch.randn(1, 2, 47)).check(model)


@pytest.mark.parametrize("width", [384, 768, 1024, 1280, 1536])
def test_published_files_come_in(width: int, tmp_path: Path) -> None:
    """The published layout, at every published width: a parameter that wants gradients, in a torch zip."""
    values = torch.nn.Parameter(0.01 * torch.randn(1, 10, width))
    torch.save({"rtokens": values}, tmp_path / "small.pt")
    tokens = import_published(tmp_path / "small.pt")
    assert torch.equal(tokens.values, values)
    assert not tokens.values.requires_grad
    tokens.save(tmp_path / "small.safetensors")
    assert RobustTokens.load(tmp_path / "small.safetensors").width == width


def test_imported_tokens_are_tied_to_the_named_model(model: Model, tmp_path: Path) -> None:
    torch.save({"rtokens": torch.randn(1, 10, 48)}, tmp_path / "t.pt")
    tied, loose = import_published(tmp_path / "t.pt", model), import_published(tmp_path / "t.pt")
    tied.check(model)
    with pytest.warns(UnverifiedTokens, match="do not name their weights"):
        loose.check(model)
    torch.save({"rtokens": torch.randn(1, 10, 40)}, tmp_path / "narrow.pt")
    with pytest.raises(WrongBackbone, match="width 40"):
        import_published(tmp_path / "narrow.pt", model)


class Bomb:
    """A pickle that would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.path, "executed")


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"rtokens": Bomb(tmp_path / "trace")}, tmp_path / "bomb.pt")
    with pytest.raises(InputError, match="read safely"):
        import_published(tmp_path / "bomb.pt")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"rtokens": torch.randn(10, 48)},
        {"other": torch.randn(1, 10, 48)},
        [1],
        {"rtokens": torch.ones(1, 2, 4).long()},
    ],
)
def test_other_contents_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "t.pt")
    with pytest.raises(InputError):
        import_published(tmp_path / "t.pt")


def test_broken_files_and_values_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(InputError, match="not a token file"):
        RobustTokens.load(tmp_path / "t.safetensors")
    with pytest.raises(InputError, match="finite"):
        RobustTokens(torch.full((1, 1, 4), torch.nan))
