"""The service over real HTTP on loopback: right answers to the right askers, and no collapse."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.networks import small_net
from helpers.plain_vit import ARCH, plain_vit, save_plain_vit
from helpers.serving import Slow, ask, metric, png, served, until
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.defenses.pool import TokenPool
from robvit.defenses.tokens import RobustTokens
from robvit.errors import Unsupported
from robvit.serve.batching import Batcher, Closed, QueueFull
from robvit.serve.hosts import is_loopback
from robvit.serve.predictor import Predictor, PreparedImage
from robvit.serve.server import listen
from robvit.serve.service import Service

PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return robvit.data.open_data("sample", limit=48).tensors()[0]


@pytest.fixture(scope="module")
def url(mini: Model) -> Iterator[str]:
    with served(Predictor(mini), max_bytes=20_000, max_batch=4, max_wait=0.002) as address:
        yield address


@pytest.fixture(scope="module")
def plain(images: torch.Tensor) -> Model:
    """A plain ViT of random weights, less its mean answer, so that windows dispute some of the images."""
    net: Any = plain_vit()
    model = Model(net, name="small").eval()
    with torch.no_grad():
        net.head.bias -= model(images).mean(0)
    return model


def test_a_defence_around_the_model_gives_the_predictions(plain: Model, images: torch.Tensor) -> None:
    defense = robvit.defend_patches(plain, 5)
    predictor = Predictor(plain, defense=defense.logits_and_disputed)
    answers = predictor([PreparedImage(image) for image in images[:5]])
    with torch.no_grad():
        expected = defense(images[:5])
        assert not torch.equal(expected, plain(images[:5]))
    logits = torch.stack([answer.logits for answer in answers if answer.logits is not None])
    torch.testing.assert_close(logits, expected)
    assert [answer.disputed for answer in answers] == defense.classify(images[:5]).disputed.tolist()


def test_a_defended_prediction_tells_over_http_whether_it_is_disputed(
    plain: Model, url: str, images: torch.Tensor
) -> None:
    defense = robvit.defend_patches(plain, 5)
    label, disputed = defense.classify(images)
    some = [disputed.tolist().index(wanted) for wanted in (True, False)]
    with served(Predictor(plain, defense=defense.logits_and_disputed)) as address:
        for i in some:
            said = json.loads(ask(f"{address}/predict", png(images[i]))[2])
            assert (said["class"], said["disputed"]) == (int(label[i]), bool(disputed[i]))
        assert "better abstain" in ask(f"{address}/docs")[2].decode()
        told = json.loads(ask(f"{address}/openapi.json")[2])
    answer = told["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]
    assert set(answer["schema"]["required"]) == said.keys()
    assert "disputed" not in json.loads(ask(f"{url}/predict", png(images[0]))[2])


# --- batches -----------------------------------------------------------------------------------


def test_every_asker_gets_its_own_answer_and_batches_are_bounded() -> None:
    sizes = []

    def work(images: list[int]) -> list[int]:
        sizes.append(len(images))
        return [image * image for image in images]

    batcher = Batcher(work, max_batch=5, max_wait=0.001, slots=8)
    with ThreadPoolExecutor(8) as crowd:
        answers = list(crowd.map(lambda i: batcher.submit(i).result(60), range(200)))
    batcher.close()
    assert answers == [i * i for i in range(200)]
    assert sum(sizes) == 200
    assert 1 < max(sizes) <= 5


def test_a_batch_waits_for_others_but_not_when_it_is_full() -> None:
    sizes: list[int] = []
    batcher = Batcher(
        lambda qs: [sizes.append(len(qs)) or q for q in qs], max_batch=3, max_wait=3600, slots=9
    )
    futures = [batcher.submit(i) for i in range(6)]
    assert [future.result(60) for future in futures] == list(range(6))
    assert sizes == [3, 3, 3, 3, 3, 3]
    last = batcher.submit(6)
    batcher.close()  # what was asked is answered, with no more waiting
    assert last.result(0) == 6
    with pytest.raises(Closed):
        batcher.submit(7)
    with pytest.raises(Closed), batcher.slot():
        pass


def test_slots_are_bounded_and_come_free_again() -> None:
    batcher = Batcher(list, max_batch=1, max_wait=0, slots=2)
    with batcher.slot(), batcher.slot():
        assert batcher.occupied == 2
        with pytest.raises(QueueFull), batcher.slot():
            pass
    with pytest.raises(ZeroDivisionError), batcher.slot():
        _ = 1 / 0
    assert batcher.occupied == 0
    batcher.close()


def test_a_failed_batch_is_told_to_its_askers_and_the_next_one_works() -> None:
    def work(images: list[int]) -> list[float]:
        return [1 / image for image in images]

    batcher = Batcher(work, max_batch=2, max_wait=3600, slots=8)
    bad = [batcher.submit(0), batcher.submit(1)]
    good = [batcher.submit(2), batcher.submit(4)]
    assert [future.result(60) for future in good] == [0.5, 0.25]
    for future in bad:
        with pytest.raises(ZeroDivisionError):
            future.result(60)
    assert batcher.alive
    batcher.close()


def test_what_was_given_up_is_not_worked_on() -> None:
    seen: list[int] = []
    batcher = Batcher(lambda qs: [seen.append(q) or q for q in qs], max_batch=3, max_wait=3600, slots=8)
    given_up: Future[int] = batcher.submit(1)
    assert given_up.cancel()
    batcher.submit(2)
    assert batcher.submit(3).result(60) == 3
    batcher.close()
    assert seen == [2, 3]
    with pytest.raises(CancelledError):
        given_up.result(0)


# --- answers -----------------------------------------------------------------------------------


def test_answers_are_those_of_the_model(url: str, mini: Model, images: torch.Tensor) -> None:
    x = images[:1]
    status, _, body = ask(f"{url}/predict", png(x[0]))
    said = json.loads(body)
    logits = mini(x)[0].detach()
    assert status == 200
    np.testing.assert_allclose(said["logits"], logits, atol=1e-5, rtol=0)
    assert said["class"] == int(logits.argmax())
    assert said["probability"] == pytest.approx(float(logits.softmax(0).max()), abs=1e-5)
    features = mini.features(x)[0].detach()
    said = json.loads(ask(f"{url}/features", png(x[0]))[2])
    np.testing.assert_allclose(said["features"], features, atol=1e-5, rtol=0)
    _, headers, raw = ask(f"{url}/features?part=class", png(x[0]), Accept="application/octet-stream")
    assert json.loads(headers["x-shape"]) == [1, 128]
    np.testing.assert_allclose(np.frombuffer(raw, "<f4"), features[0], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_no_answer_goes_to_the_wrong_asker(url: str, mini: Model, images: torch.Tensor) -> None:
    expected = mini(images).detach()
    apart = torch.cdist(expected, expected).fill_diagonal_(torch.inf).min()
    assert apart > 1e-2  # so a mix-up would be seen

    def one(i: int) -> float:
        status, _, body = ask(f"{url}/predict", png(images[i]))
        assert status == 200
        return float((torch.tensor(json.loads(body)["logits"]) - expected[i]).abs().max())

    with ThreadPoolExecutor(6) as clients:
        assert max(clients.map(one, range(len(images)))) < 1e-4


@pytest.mark.slow
def test_each_request_draws_its_own_tokens_and_shows_none(mini: Model, images: torch.Tensor) -> None:
    sets = tuple(RobustTokens(torch.randn(1, 4, 128), mini.fingerprint()) for _ in range(2))
    x, choices = images[:1], [mini.replace(tokens=one)(images[:1])[0].detach() for one in sets]
    drawn, said = set(), b""
    with served(Predictor(mini.replace(tokens=TokenPool(sets))), max_batch=4, max_wait=0.01) as address:
        with ThreadPoolExecutor(4) as clients:
            replies = list(clients.map(lambda _: ask(f"{address}/predict", png(x[0])), range(32)))
        said = ask(f"{address}/metrics")[2]
    for status, headers, body in replies:
        assert status == 200
        off = [float((torch.tensor(json.loads(body)["logits"]) - one).abs().max()) for one in choices]
        assert min(off) < 1e-4 < max(off)
        drawn.add(off.index(min(off)))
        said += body + str(headers).encode()
    assert drawn == {0, 1}  # all the same by chance: once in two thousand million runs
    assert not any(one.key_id.encode() in said for one in sets)


@pytest.mark.slow
def test_features_of_a_model_with_tokens_are_given_only_where_that_is_asked_for(
    mini: Model, images: torch.Tensor
) -> None:
    hardened = mini.replace(tokens=RobustTokens(torch.randn(1, 4, 128), mini.fingerprint()))
    for model, wish, gives in ((hardened, None, False), (hardened, True, True), (mini, False, False)):
        with served(Predictor(model), features=wish) as address:
            status, _, body = ask(f"{address}/features", png(images[0]))
            assert status == (200 if gives else 404)
            assert (b"no features" in body) is not gives
            assert ask(f"{address}/predict", png(images[0]))[0] == 200


@pytest.mark.slow
def test_images_of_one_batch_may_have_any_tokens(mini: Model, images: torch.Tensor) -> None:
    mark = mini.fingerprint()
    kinds = [
        RobustTokens(torch.randn(1, 4, 128), mark),
        RobustTokens(torch.randn(1, 4, 128), mark),
        RobustTokens(torch.randn(1, 2, 128), mark),
        RobustTokens(torch.randn(1, 4, 128), mark, layers=(2,)),
        RobustTokens(torch.randn(2, 4, 128), mark, layers=(0, 1)),
        RobustTokens(torch.randn(2, 4, 128), mark, layers=(0, 1)),
    ]
    asked = [(i, kinds[i % 6]) for i in range(18)]
    answers = Predictor(mini)([PreparedImage(images[i], tokens) for i, tokens in asked])
    for answer, (i, tokens) in zip(answers, asked, strict=True):
        strong = mini.replace(tokens=tokens)
        torch.testing.assert_close(answer.logits, strong(images[i : i + 1])[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(answer.features, strong.features(images[i : i + 1])[0], atol=1e-4, rtol=0)


def test_a_model_without_classes_gives_features_only() -> None:
    net = small_net("vit")
    net.reset_classifier(0)
    with served(Predictor(Model(net, name="vit").eval())) as address:
        status, _, body = ask(f"{address}/predict", b"x")
        assert (status, "no classes" in json.loads(body)["error"]) == (404, True)
        status, _, body = ask(f"{address}/features", png(torch.rand(3, 40, 50)))
        assert (status, json.loads(body)["shape"]) == (200, [5, 48])


# --- what is refused ---------------------------------------------------------------------------


def bomb() -> bytes:
    """A small PNG that promises 400 million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    header = (20_000).to_bytes(4, "big") * 2 + bytes((1, 0, 0, 0, 0))
    rows = zlib.compress(bytes(2_501 * 2_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("path", "data", "headers", "status", "says"),
    [
        ("/predict", b"not an image", {}, 422, "not an image"),
        ("/predict", b"", {}, 422, "empty"),
        ("/predict", bomb(), {}, 422, "decompression bomb"),
        ("/predict", bytes(20_001), {}, 413, "20,000 bytes"),
        ("/features", b"x", {"Content-Type": "application/json"}, 415, "application/json"),
        ("/features?part=some", png(torch.rand(3, 8, 8)), {}, 422, "all or class"),
        ("/predict", None, {}, 405, "POST an image"),
        ("/admin", None, {}, 404, "POST an image"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(
    url: str, path: str, data: bytes | None, headers: dict[str, str], status: int, says: str
) -> None:
    got, kind, body = ask(url + path, data, **headers)
    assert got == status
    assert kind["content-type"] == "application/json"
    assert says in json.loads(body)["error"]
    assert b"Traceback" not in body


def test_a_body_of_undeclared_length_is_cut_off(url: str) -> None:
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        connection.request("POST", "/predict", iter([bytes(5_000)] * 5), PNG, encode_chunked=True)
        with connection.getresponse() as reply:
            assert reply.status == 413


def test_a_image_that_does_not_come_is_not_waited_for() -> None:
    with served(Slow(), timeout=0.1) as address:
        with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)) as connection:
            connection.putrequest("POST", "/predict")
            connection.putheader("Content-Length", "100")
            connection.endheaders(b"only this")
            with connection.getresponse() as reply:
                assert reply.status == 408
                assert "0.1 seconds" in json.loads(reply.read())["error"]
        assert metric(address, "robvit_requests_in_flight") == 0


def test_when_it_is_full_others_are_told_so_and_those_inside_are_answered() -> None:
    slow = Slow()
    with served(slow, queue=2, max_batch=1) as address, ThreadPoolExecutor(2) as clients:
        inside = [clients.submit(ask, f"{address}/predict", b"x") for _ in range(2)]
        until(lambda: metric(address, "robvit_requests_in_flight") == 2)
        for _ in range(20):
            status, headers, body = ask(f"{address}/predict", bytes(300_000))
            assert (status, headers["retry-after"]) == (429, "1")
            assert "2 queue slots" in json.loads(body)["error"]
        assert ask(f"{address}/readyz")[0] == 503
        assert ask(f"{address}/healthz")[0] == 200
        slow.go.set()
        assert [json.loads(one.result(60)[2])["name"] for one in inside] == ["yes", "yes"]
        until(lambda: ask(f"{address}/readyz")[0] == 200)
        assert metric(address, 'robvit_requests_total{route="/predict",status="429"}') == 20


@pytest.mark.slow
def test_everything_is_counted(mini: Model, images: torch.Tensor) -> None:
    with served(Predictor(mini), max_batch=3, max_wait=0.001) as address:
        for image in images[:5]:
            ask(f"{address}/predict", png(image))
        ask(f"{address}/features", png(images[0]))
        ask(f"{address}/features", b"no image")
        ask(f"{address}/{'x' * 40}")
        counted = {
            'robvit_requests_total{route="/predict",status="200"}': 5,
            'robvit_requests_total{route="/features",status="200"}': 1,
            'robvit_requests_total{route="/features",status="422"}': 1,
            'robvit_requests_total{route="other",status="404"}': 1,
            "robvit_request_seconds_count": 6,
            'robvit_request_seconds_bucket{le="+Inf"}': 6,
            "robvit_batch_size_sum": 6,
            'robvit_batch_size_bucket{le="4"}': metric(address, "robvit_batch_size_count"),
            "robvit_requests_in_flight": 0,
            "robvit_queue_slots": 64,
        }
        assert {name: metric(address, name) for name in counted} == counted
        assert 0 < metric(address, "robvit_request_seconds_sum") < 60


def test_a_failure_inside_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    slow.prepare = lambda data: 1 / 0
    with served(slow) as address:
        status, _, body = ask(f"{address}/predict", b"x")
        assert (status, b"division" in body) == (500, False)
        assert "ZeroDivisionError" in caplog.text
        assert metric(address, "robvit_requests_in_flight") == 0


def test_with_a_key_only_those_who_have_it_are_answered() -> None:
    slow = Slow()
    slow.go.set()
    with served(slow, bearer="a key of sixteen") as address:
        assert ask(f"{address}/predict", b"x")[0] == 401
        assert ask(f"{address}/predict", b"x", Authorization="Bearer another key")[0] == 401
        assert ask(f"{address}/metrics")[0] == 401
        assert ask(f"{address}/healthz")[0] == 200
        assert ask(f"{address}/predict", b"x", Authorization="Bearer a key of sixteen")[0] == 200


def test_what_cannot_be_served_is_refused_before_it_listens(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("short\n")
    refused = CliRunner().invoke(app, ["serve", "robvit-mini", "--bearer-file", str(tmp_path / "key")])
    assert "16 or more" in str(refused.exception)
    assert "short" not in str(refused.exception)
    with listen("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1])
        refused = CliRunner().invoke(app, ["serve", "robvit-mini", "--port", port])
    assert "choose another --port" in str(refused.exception)
    model = Model(small_net("vit"), name="vit").eval()
    model = model.replace(head=robvit.backbones.heads.SegmentationHead(48, 3, model.fingerprint()))
    with pytest.raises(Unsupported, match="segmentation"):
        Predictor(model)


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])  # noqa: S104
def test_another_host_than_this_one_is_pointed_out(
    host: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_at: list[Any] = []
    monkeypatch.setattr("robvit.serve.server.listen", lambda _, port: listen("127.0.0.1", port))
    monkeypatch.setattr("robvit.serve.server.run", lambda service, sock: served_at.append(sock.close()))
    done = CliRunner().invoke(app, ["serve", "robvit-mini", "--host", host, "--port", "0"])
    assert done.exit_code == 0, done.output
    assert ("warning: whoever can reach" in done.output) == warned
    assert len(served_at) == 1


def test_the_command_serves_behind_double_masking(
    images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Service] = []

    def keep(service: Service, sock: Any) -> None:
        made.append(service)
        sock.close()

    monkeypatch.setattr("robvit.serve.server.run", keep)
    save_plain_vit(tmp_path / "plain.safetensors")
    words = ["serve", str(tmp_path / "plain.safetensors"), "--arch", ARCH, "--port", "0"]
    words += ["--patch", "5", "--windows", "1x4"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "defended against patches of 5 pixels a side" in done.output
    predictor = made[0]._predictor
    defense = robvit.defend_patches(predictor.model, 5, windows=(1, 4))
    answers = predictor([PreparedImage(image) for image in images[:8]])
    label, disputed = defense.classify(images[:8])
    assert [int(one.logits.argmax()) for one in answers if one.logits is not None] == label.tolist()
    assert [one.disputed for one in answers] == disputed.tolist()


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.1", "example.org")] == [False] * 4  # noqa: S104


# --- the command -------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_sigterm_everything_accepted_is_answered(
    tmp_path: Path, mini: Model, images: torch.Tensor
) -> None:
    sets = tuple(RobustTokens(torch.randn(1, 4, 128), mini.fingerprint()) for _ in range(2))
    TokenPool(sets).save(tmp_path / "pool.safetensors")
    command = [sys.executable, "-m", "robvit", "serve", "robvit-mini", "--port", "0", "--max-wait", "2000"]
    command += ["--tokens", str(tmp_path / "pool.safetensors")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"a pool of 2 sets\) at (http://127\.0\.0\.1:\d+)", first)
            assert found, first
            until(lambda: ask(f"{found[1]}/readyz")[0] == 200)
            with ThreadPoolExecutor(5) as clients:  # fewer than a batch: they wait for more
                inside = [clients.submit(ask, f"{found[1]}/predict", png(images[i])) for i in range(5)]
                until(lambda: metric(found[1], "robvit_requests_in_flight") == 5)
                process.send_signal(signal.SIGTERM)
                replies = [one.result(60) for one in inside]
            assert process.wait(60) == 0
            rest = process.stdout.read()
        finally:
            process.kill()
    expected = [mini.replace(tokens=one)(images[:5]).detach() for one in sets]
    for i, (status, _, body) in enumerate(replies):
        assert status == 200
        said = torch.tensor(json.loads(body)["logits"])
        assert min(float((said - one[i]).abs().max()) for one in expected) < 1e-4
    assert rest.splitlines()[1:] == ["stopped"]
