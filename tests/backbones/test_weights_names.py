"""Names, local files and position embeddings: what needs no source at all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

from robvit.backbones import weights, zoo
from robvit.errors import InputError, UnknownName
from robvit.tensor_files import tensors_sha256


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(k, id=k.alias, marks=[pytest.mark.slow] if k.params > 100 else [])
        for k in (*zoo.TABLE, *zoo.UNTRAINED)
    ],
)
def test_every_name_is_one_that_timm_has(known: zoo.Known) -> None:
    with torch.device("meta"):
        net = zoo.build(known)
    count = sum(p.numel() for p in net.parameters()) / 1e6
    assert known.params == pytest.approx(count, abs=0.06)
    if known.hub:
        assert known.timm_name in timm.list_pretrained()
        assert timm.get_pretrained_cfg(known.timm_name).hf_hub_id == known.hub
    else:
        assert known.bundled or known.options or known.tuned_from


def test_a_timm_name_is_known_too() -> None:
    known = zoo.resolve("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert (known.alias, known.licence) == (known.timm_name, "apache-2.0")
    assert known.hub == "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("dinov2-smal", "dinov2-small"),
        ("vit_small_patch14_dinov2.lvd", "vit_small_patch14_dinov2.lvd142m"),
        ("vit_tiny_patch61_224", "vit_tiny_patch16_224"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, offer: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean .*{offer}"):
        weights.state_dict(name)


@pytest.mark.parametrize("name", ["net.safetensors", "net.pt", "net.pth", "net.pth.tar"])
def test_local_files(tmp_path: Path, name: str) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}
    path = tmp_path / name
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors, path)
    else:
        wrapped = {f"module.{k}": v for k, v in tensors.items()}
        torch.save({"epoch": 3, "args": argparse.Namespace(lr=1), "state_dict": {"model": wrapped}}, path)
    got, origin = weights.state_dict(str(path))
    torch.testing.assert_close(got, tensors)
    assert (origin.kind, origin.path, origin.sha256) == ("local", path, tensors_sha256(tensors))


class Hostile:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("harm",))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("evil.pt", {"state_dict": Hostile()}, "plain tensors"),
        ("list.pt", [torch.ones(1)], "expected a state dict"),
        ("empty.pt", {}, "expected a state dict"),
        ("junk.pt", b"junk", "plain tensors"),
        ("junk.safetensors", b"junk", "plain tensors"),
        ("notes.txt", b"junk", "ending in"),
    ],
)
def test_files_that_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Any, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(InputError, match=words):
        weights.state_dict(str(path))
    assert "harm" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nowhere/net.pt", "net.pt", "..\\net.pt", "./"])
def test_a_path_without_a_file_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="no file at"):
        weights.state_dict(name)
    with pytest.raises(InputError, match="got the path"):
        zoo.resolve(name)


def test_strict_loading_names_what_does_not_fit() -> None:
    net = torch.nn.Linear(2, 3)
    with pytest.raises(InputError, match=r"weights of x do not fit Linear: .*bias"):
        weights.load_strict(net, {"weight": torch.ones(3, 2)}, "x")
    with pytest.raises(InputError, match="size mismatch"):
        weights.load_strict(net, {"weight": torch.ones(2, 2), "bias": torch.ones(3)}, "x")


def cubic(length: int, side: int) -> torch.Tensor:
    """Keys's kernel, a = -0.75, at the centres of length + 0.1 cells over `side` samples: (length side)."""
    matrix = torch.zeros(length, side)
    for row in range(length):
        centre = (row + 0.5) * side / (length + 0.1) - 0.5
        for tap in range(int(centre) - 1, int(centre) + 3):
            d = abs(centre - tap)
            near, far = (1.25 * d - 2.25) * d * d + 1, ((-0.75 * d + 3.75) * d - 6) * d + 3
            matrix[row, min(max(tap, 0), side - 1)] += near if d <= 1 else far
    return matrix


def test_positions_the_hubs_way() -> None:
    side, (rows, cols) = 37, (16, 8)
    pos = torch.randn(1, 1 + side * side, 2)
    square = pos[0, 1:].reshape(side, side, 2)
    expected = torch.einsum("ri,cj,ijd->rcd", cubic(rows, side), cubic(cols, side), square)
    got = weights.hub_pos_embed(pos, (rows, cols))
    assert torch.equal(got[:, 0], pos[:, 0])
    torch.testing.assert_close(got[0, 1:].reshape(rows, cols, 2), expected, rtol=0, atol=1e-4)
    assert weights.hub_pos_embed(pos, (side, side)) is pos
    with pytest.raises(InputError, match="square"):
        weights.hub_pos_embed(pos[:, :-1], (rows, cols))
