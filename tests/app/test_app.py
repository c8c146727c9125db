"""The playground without its page: what it computes, what it refuses, what its gate lets through."""

from __future__ import annotations

import asyncio
import io
import math
import re
import socket
import struct
import threading
import zlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import robvit
from helpers.plain_vit import plain_vit
from helpers.playground import playground, token_file
from robvit.app import draw, gate
from robvit.app.compute import SWEEP_EPS
from robvit.app.models import KNOWN, OFF, SECRET, PlaygroundModel, playground_models
from robvit.app.request import AttackRequest, InputImage, Result, Step
from robvit.app.script import python_script
from robvit.app.session import Limits, Playground, TimeLimit, VisitorLeft
from robvit.app.visitors import Visitors
from robvit.backbones.heads import LinearHead
from robvit.backbones.trained_on import TrainedOn
from robvit.cli import app as commands
from robvit.data import open_data
from robvit.data.decode import read_image
from robvit.decoding import ImageError
from robvit.drawing.images import encoded, pixels
from robvit.errors import InputError, RobvitError, UnknownName, WrongBackbone

NAME = "test/02529"


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Playground:
    return playground(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def cat() -> InputImage:
    x, _ = open_data("sample", subset=[NAME]).tensors()
    return InputImage(encoded(pixels(x[0])), NAME, "cat")


def finished(play: Playground, request: AttackRequest) -> Result:
    *_, last = play.attack(request)
    assert isinstance(last, Result)
    return last


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["fgsm", "pgd", "gama", "apgd_ce", "square", "feature"])
def test_a_watched_attack_is_the_attack_bit_for_bit(play: Playground, cat: InputImage, attack: str) -> None:
    request = AttackRequest(cat, "robvit-mini", attack=attack, eps=4, steps=3)
    *steps, last = play.attack(request)
    assert isinstance(last, Result)
    model, x = robvit.load("robvit-mini"), cat.tensor(32)
    view, y = (model.features, None) if attack == "feature" else (model, model(x).argmax(1))
    threat = robvit.Threat("linf", 4 / 255)
    alone = robvit.attacks.run(attack, view, x, y, threat, victim=view, eight_bit=True, **request.settings)
    assert np.array_equal(last.item.adversarial, pixels(alone.adv[0]))
    assert not np.array_equal(last.item.adversarial, last.item.clean)
    assert np.abs(last.item.adversarial.astype(int) - last.item.clean).max() <= 4
    assert last.passes == (alone.forward, alone.backward)
    assert all(isinstance(s, Step) and s.passes == len(s.trace) <= s.expected for s in steps)
    assert [s.passes for s in steps] == sorted({s.passes for s in steps})
    assert all(s.trace == last.trace[: s.passes] for s in steps)


def test_the_result_says_what_the_model_says(play: Playground, cat: InputImage) -> None:
    found = finished(play, AttackRequest(cat, "robvit-mini", eps=8))
    x = cat.tensor(32)
    adv = torch.from_numpy(found.item.adversarial).permute(2, 0, 1)[None] / 255
    model = robvit.load("robvit-mini")
    with torch.no_grad():
        values, places = model(adv).softmax(1)[0].topk(5)
        near = torch.nn.functional.cosine_similarity(model.features(adv), model.features(x), dim=-1).mean()
    (prediction,) = found.predictions
    classes = play.models["robvit-mini"].classes
    assert prediction.attacked == [
        (classes[i], v) for i, v in zip(places.tolist(), values.tolist(), strict=True)
    ]
    assert prediction.cosine == (pytest.approx(1), float(near))
    assert prediction.success
    assert prediction.clean[0][0] == "cat"
    assert found.psnr == pytest.approx(10 * math.log10(1 / float((adv - x).square().mean())))
    assert found.item.attention is not None
    assert len(found.item.attention) == 2


@pytest.mark.slow
def test_tokens_change_who_is_judged_and_who_is_attacked(play: Playground, cat: InputImage) -> None:
    off, secret, known = (
        finished(play, AttackRequest(cat, "robvit-mini", tokens)) for tokens in (OFF, SECRET, KNOWN)
    )
    assert [len(found.predictions) for found in (off, secret, known)] == [1, 2, 2]
    assert np.array_equal(off.item.adversarial, secret.item.adversarial)
    assert not np.array_equal(off.item.adversarial, known.item.adversarial)
    assert off.predictions[0] == secret.predictions[0]
    hardened = play.models["robvit-mini"].hardened
    assert hardened is not None
    with torch.no_grad():
        expected = float(hardened(cat.tensor(32)).softmax(1).max())
    assert secret.predictions[1].clean[0][1] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [OFF, SECRET, KNOWN])
@pytest.mark.parametrize("attack", ["pgd", "feature"])
@pytest.mark.parametrize("uploaded", [False, True])
def test_the_python_script_makes_the_same_image(
    play: Playground,
    cat: InputImage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: str,
    attack: str,
    uploaded: bool,
) -> None:
    image = InputImage(cat.png) if uploaded else cat
    request = AttackRequest(image, "robvit-mini", tokens, attack, eps=5, steps=3)
    found = finished(play, request)
    monkeypatch.chdir(tmp_path)
    token_file(tmp_path)
    Path("clean.png").write_bytes(encoded(found.item.clean))
    exec(python_script(play.models["robvit-mini"], request), {})  # noqa: S102  our own script
    assert np.array_equal(np.asarray(Image.open("adversarial.png")), found.item.adversarial)


def test_a_certificate_is_drawn_where_tokens_have_pixels_of_their_own(
    play: Playground, cat: InputImage
) -> None:
    model = robvit.Model(plain_vit(), name="small").eval()
    names = [f"class {i}" for i in range(10)]
    own = Playground({"small": PlaygroundModel("small", model, classes=names)})
    (found,) = own.certificate(AttackRequest(cat, "small"))
    defense, x = robvit.defend_patches(model, 4), cat.tensor(32)
    label = defense.classify(x).label
    assert found.label == names[int(label)]
    assert found.certified == bool(defense.certify(x, label))
    assert found.image.shape == (32, 32, 3)
    assert "4×4 pixels" in draw.patch_map(found)
    assert own.models["small"].uncertifiable == ""
    with pytest.raises(RobvitError, match="share pixels"):
        list(play.certificate(AttackRequest(cat, "robvit-mini")))
    bare = Playground({"bare": PlaygroundModel("bare", model)})
    with pytest.raises(RobvitError, match="give it a head"):
        bare.certificate(AttackRequest(cat, "bare", attack="feature"))


@pytest.mark.slow
def test_the_sweep_is_the_attack_at_each_budget(play: Playground, cat: InputImage) -> None:
    request = AttackRequest(cat, "robvit-mini", SECRET, steps=3)
    *_, swept = play.sweep(request)
    assert list(swept.lines) == ["without tokens", "with tokens"]
    for points in swept.lines.values():
        assert [eps for eps, _ in points] == [0, *SWEEP_EPS]
    found = finished(play, replace(request, eps=8))
    expected = dict(found.predictions[1].attacked).get("cat")
    assert expected is None or dict(swept.lines["with tokens"])[8] == pytest.approx(expected)
    assert swept.lines["without tokens"][0][1] == pytest.approx(found.predictions[0].clean[0][1])
    assert swept.measure == "confidence in 'cat'"


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": "robvit-mimi"}, UnknownName, "did you mean robvit-mini"),
        ({"attack": "autoattack"}, UnknownName, "no attack on robvit-mini"),
        ({"attack": "fab"}, UnknownName, "no attack on robvit-mini"),
        ({"eps": 33}, InputError, "eps must be a whole number from 1 to 32, got 33"),
        ({"eps": 0}, InputError, "eps must be"),
        ({"steps": 10**9}, InputError, "steps must be a whole number from 1 to 100"),
        ({"model": "robvit-mini-robust", "tokens": SECRET}, InputError, "has no tokens here"),
        ({"tokens": "nonsense"}, InputError, "has no tokens here"),
    ],
)
def test_what_may_not_be_asked_for_is_refused(
    play: Playground, cat: InputImage, change: dict[str, object], error: type[RobvitError], says: str
) -> None:
    with pytest.raises(error, match=says):
        next(play.attack(replace(AttackRequest(cat, "robvit-mini"), **change)))


def test_an_order_ends_with_its_time(play: Playground, cat: InputImage) -> None:
    hasty = Playground(play.models, Limits(seconds=0))
    for stream in (hasty.attack, hasty.sweep):
        with pytest.raises(TimeLimit, match="try fewer steps"):
            list(stream(AttackRequest(cat, "robvit-mini", steps=100)))
    assert not hasty.lock.locked()


def test_an_order_ends_with_its_visitor(play: Playground, cat: InputImage) -> None:
    going = play.attack(AttackRequest(cat, "robvit-mini", attack="apgd_t", steps=100))
    assert isinstance(next(going), Step)
    assert play.lock.locked()
    assert isinstance(going, Generator)
    going.close()
    assert play.lock.acquire(timeout=30)
    play.lock.release()


@pytest.mark.slow
def test_orders_at_once_are_answered_as_alone(play: Playground) -> None:
    x, _ = open_data("sample", limit=6).tensors()
    requests = [AttackRequest(InputImage(encoded(pixels(one))), "robvit-mini", steps=3) for one in x]
    alone = [finished(play, request) for request in requests]
    together: dict[int, Result] = {}
    threads = [
        threading.Thread(target=lambda i=i, request=request: together.update({i: finished(play, request)}))
        for i, request in enumerate(requests)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, one in enumerate(alone):
        assert together[i].predictions == one.predictions
        for mine, theirs in zip(together[i].item.attention, one.item.attention, strict=True):
            assert np.array_equal(mine, theirs)


def bomb(width: int, height: int) -> bytes:
    """A small PNG file whose header promises many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_uploads_are_bounded_before_they_are_decoded(play: Playground) -> None:
    with pytest.raises(ImageError, match="not an image in any of the formats"):
        play.upload(b"<svg onload=alert(1)>")
    with pytest.raises(ImageError, match="empty"):
        play.upload(b"")
    with pytest.raises(ImageError, match=r"10\.0 MB, at most 10 MB"):
        play.upload(bytes(10_000_001))
    with pytest.raises(ImageError, match="decompression bomb: 6000 x 5000"):
        play.upload(bomb(6000, 5000))


def test_an_upload_becomes_a_bounded_square(play: Playground) -> None:
    held = io.BytesIO()
    Image.new("RGBA", (1500, 900), (10, 200, 30, 255)).save(held, "WEBP", lossless=True)
    kept = play.upload(held.getvalue())
    pixels = read_image(kept.png)
    assert pixels.shape == (3, 448, 448)
    assert pixels[:, 0, 0].tolist() == [10, 200, 30]
    assert kept.name == ""
    assert kept.tensor(112).shape == (1, 3, 112, 112)


def test_tokens_and_heads_go_to_their_model(tmp_path: Path) -> None:
    with patch("robvit.app.models.on_disk", return_value=""):
        found = playground_models(token_file(tmp_path))
        assert [s.name for s in found.values() if s.hardened is not None] == ["robvit-mini"]
        assert "hardly help" in found["robvit-mini-robust"].note
        assert found["robvit-mini"].note == ""
        strange = tmp_path / "strange.safetensors"
        robvit.RobustTokens(torch.zeros(1, 2, 128), "f" * 64).save(strange)
        with pytest.raises(WrongBackbone, match="none of the models here has"):
            playground_models(strange)


def test_what_a_demo_left_for_other_models_or_sizes_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mini = robvit.load("robvit-mini")
    head = LinearHead(2 * mini.width, 2, mini.fingerprint(), ["cat", "dog"])
    head.trained_on = TrainedOn((64, 64))
    head.save(tmp_path / "head.safetensors")
    robvit.RobustTokens(torch.zeros(1, 2, 768), "f" * 64).save(tmp_path / "tokens.safetensors")
    with patch("robvit.app.models.on_disk", return_value=""):
        found = playground_models(demo=tmp_path, log=print)
        assert all(model.hardened is None and "airplane" in model.classes for model in found.values())
        head_line, tokens_line = sorted(capsys.readouterr().out.splitlines())
        assert re.match("the demo's head.safetensors is left out: .* 64x64 pixels", head_line)
        assert re.match("the demo's tokens.safetensors is left out: .* none of the models", tokens_line)
        with pytest.raises(InputError, match="64x64 pixels"):
            playground_models(head=tmp_path / "head.safetensors")
        token_file(tmp_path)
        assert playground_models(demo=tmp_path)["robvit-mini"].hardened is not None


@pytest.mark.weights
def test_dinov2_without_a_head_shows_features(cat: InputImage) -> None:
    found = playground_models()
    play = Playground(found)
    model = found["dinov2-small"]
    assert model.attacks == ["feature"]
    assert "`robvit demo` makes them" in model.note
    last = finished(play, AttackRequest(cat, "dinov2-small", attack="feature", steps=3))
    assert last.predictions[0].clean == []
    assert last.predictions[0].cosine[1] < 0.9
    tuned = found["dinov2-small-robust"]
    assert "takes the classifier of dinov2-small" in tuned.note
    held = finished(play, AttackRequest(cat, tuned.name, attack="feature", steps=3, eps=3))
    assert held.predictions[0].cosine[1] > last.predictions[0].cosine[1]


@pytest.mark.weights
def test_the_tuned_network_takes_the_classifier_of_the_original() -> None:
    found = playground_models(
        head=Path(__file__).parents[2] / "results" / "cifar10-112-head" / "head.safetensors"
    )
    for name in ("dinov2-small", "dinov2-small-robust"):
        assert found[name].classes[0] == "airplane"
        assert "pgd" in found[name].attacks
    assert found["dinov2-small-robust"].note == ""


JOINING = b'{"session_hash": "me"}'


class Door:
    """A gate with nothing behind it, and what it says to a request."""

    def __init__(self, folder: Path, hosts: tuple[str, ...] = gate.LOOPBACK) -> None:
        self.places: list[tuple[str, str]] = []
        self.visitors = Visitors(lambda: self.places, waiting=10)
        self.gate = gate.Gate(
            self.inside, hosts=hosts, max_upload=1000, folder=folder, visitors=self.visitors
        )

    async def inside(self, scope: object, receive: gate.Receive, send: gate.Send) -> None:
        self.heard = b""
        if scope["method"] == "POST":
            while (message := await receive())["type"] == "http.request":
                self.heard += message["body"]
                if not message["more_body"]:
                    break
            else:
                raise ConnectionError("the visitor left")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def ask(
        self,
        path: str,
        method: str = "GET",
        host: str = "localhost:7860",
        body: tuple[bytes, ...] = (JOINING,),
        client: str = "127.0.0.1",
        **more: str,
    ) -> int:
        sent: list[dict[str, Any]] = []
        pieces = [{"type": "http.request", "body": piece, "more_body": True} for piece in body]
        pieces[-1]["more_body"] = False

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        async def receive() -> dict[str, object]:
            return pieces.pop(0)

        headers = [(b"host", host.encode())] + [(k.encode(), v.encode()) for k, v in more.items()]
        scope = {"type": "http", "path": path, "method": method, "headers": headers, "query_string": b""}
        asyncio.run(self.gate({**scope, "client": (client, 1)}, receive, send))
        self.headers = dict(sent[0]["headers"])
        return int(sent[0]["status"])


def test_the_gate_knows_few_addresses_and_hosts(tmp_path: Path) -> None:
    door = Door(tmp_path)
    for path in ("/", "/config", "/assets/index-x.js", "/gradio_api/queue/join", "/gradio_api/heartbeat/ab1"):
        assert door.ask(path) == 200, path
        assert b"default-src 'self'" in door.headers[b"content-security-policy"]
    for path in (
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/x",
        "/file=x",
        "/gradio_api/proxy=http://a.b",
        "/gradio_api/run/predict",
        "/gradio_api/call/x",
        "/gradio_api/component_server",
        "/docs",
        "/gradio_api/vibe-edit",
        "/assets/../../x",
        "/assets/%2e%2e/x",
        "/monitoring",
        "/assets/x\n",
    ):
        assert door.ask(path) == 404, path
    assert door.ask("/", host="evil.example") == 421
    assert door.ask("/", host="[::1]:7860") == 200
    assert Door(tmp_path, hosts=()).ask("/", host="lab.example") == 200


def test_the_gate_bounds_what_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(tmp_path)
    length = "content-length"
    assert door.ask("/gradio_api/upload", "POST", **{length: "1000"}) == 200
    assert door.ask("/gradio_api/upload", "POST", **{length: "1001"}) == 413
    assert door.ask("/gradio_api/upload/", "POST", **{length: "1001"}) == 413
    assert door.ask("/gradio_api/queue/join", "POST", **{length: "200001"}) == 413
    assert door.ask("/gradio_api/queue/join", "POST") == 411
    assert door.ask("/gradio_api/queue/join", "POST", **{length: "-5"}) == 411
    monkeypatch.setattr(gate, "UPLOADS_BYTES", 1500)
    (tmp_path / "kept.png").write_bytes(bytes(600))
    assert door.ask("/gradio_api/upload", "POST", **{length: "1000"}) == 507
    assert door.ask("/gradio_api/upload", "POST", **{length: "900"}) == 200


def test_the_gate_counts_bytes_itself_and_refuses_a_second_length(tmp_path: Path) -> None:
    door, upload = Door(tmp_path), "/gradio_api/upload"
    said = {"content-length": "10"}
    assert door.ask(upload, "POST", body=(bytes(500), bytes(500)), **said) == 200
    assert door.heard == bytes(1000)
    assert door.ask(upload, "POST", body=(bytes(500), bytes(501)), **said) == 413
    assert door.ask(upload, "POST", **said, **{"transfer-encoding": "chunked"}) == 400
    assert door.ask(upload, "POST", **{"transfer-encoding": "chunked"}) == 400
    assert door.ask(upload, "POST", **said, **{"Content-Length": "10"}) == 411


def test_nobody_fills_the_queue_alone(tmp_path: Path) -> None:
    door, said = Door(tmp_path), {"content-length": "22"}

    def join(session: bytes = b'"me"', client: str = "192.0.2.7") -> int:
        body = b'{"session_hash": %s}' % session
        return door.ask("/gradio_api/queue/join", "POST", body=(body[:5], body[5:]), client=client, **said)

    assert join() == 200
    assert door.heard == JOINING
    door.places = [("me", "192.0.2.7")] * 3
    assert join() == 429
    assert join(b'"you"') == 200
    door.places += [("you", "192.0.2.7")] * 2
    assert join(b'"another"') == 429  # five of ten places
    assert join(b'"another"', client="192.0.2.8") == 200
    assert join(b'"another"', client="127.0.0.1") == 200  # a proxy, or a room full of people at one machine
    for nobody in (b"null", b'""', b"7", b'"' + b"x" * 65 + b'"', b"["):
        assert join(nobody) == 400


def test_work_that_nobody_listens_to_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    visitors, ended = Visitors(list, waiting=1), []

    def work() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            ended.append(True)

    with pytest.raises(VisitorLeft):
        next(visitors.while_listening("nobody", work()))
    with visitors.listening("someone"):
        assert list(visitors.while_listening("someone", work())) == [0, 1, 2]
    updates = visitors.while_listening("someone", work())
    assert next(updates) == 0  # who lost the connection a moment ago may come back
    monkeypatch.setattr("robvit.app.visitors.GRACE", -1.0)
    with pytest.raises(VisitorLeft):
        next(updates)
    assert ended == [True, True]  # work that never began has nothing to end


def test_the_command_refuses_what_is_not_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refused(*words: str) -> str:
        outcome = CliRunner().invoke(commands, ["app", *words])
        assert isinstance(outcome.exception, RobvitError)
        return str(outcome.exception)

    Path("short").write_text("secret\n")
    Path("empty").write_text("\n")
    assert "at least 12 characters, got 6" in refused("--password-file", "short")
    assert "is empty" in refused("--password-file", "empty")
    assert "cannot read a password" in refused("--password-file", "missing")
    assert "192.0.2.1 can be reached from outside" in refused("--host", "192.0.2.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused("--port", str(port))
    assert "--password " not in CliRunner().invoke(commands, ["app", "--help"]).output


@pytest.mark.slow
def test_without_gradio_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "robvit.app.server", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)
    outcome = CliRunner().invoke(commands, ["app"])
    assert "pip install 'robvit[app]'" in str(outcome.exception)
