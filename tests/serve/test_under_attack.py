"""The service among clients that mean harm: it answers the others, its probes, and the end of its time."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import robvit
from helpers.bombs import BOMBS, encoded, many_scans
from helpers.serving import Slow, ask, metric, png, served, until
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.serve import server as server_module
from robvit.serve.connections import BoundedConnection
from robvit.serve.hosts import answers_to
from robvit.serve.predictor import Predictor

IMAGE = png(torch.rand(3, 32, 32))
LARGE = encoded(Image.new("L", (1200, 1200)), "PNG")


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


@pytest.fixture
def connect() -> Iterator[Callable[[str, bytes], socket.socket]]:
    """Opens connections that send something, and closes them in the end."""
    with ExitStack() as stack:

        def one(address: str, sent: bytes = b"") -> socket.socket:
            host, _, port = address.removeprefix("http://").partition(":")
            sock = stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=30)))
            sock.sendall(sent)
            return sock

        yield one


Connect = Callable[..., socket.socket]


def ended(sock: socket.socket) -> bool:
    """Whether the server has closed a connection without an answer."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def bytes_left(sock: socket.socket) -> int:
    """The bytes that still come before the connection ends, however it does."""
    count = 0
    with suppress(ConnectionResetError):
        while got := sock.recv(2**20):
            count += len(got)
    return count


def send_for(seconds: float, sock: socket.socket, data: bytes, pause: float = 0) -> None:
    """Send the same again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sock.sendall(data)
        time.sleep(pause)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow:"],
    ids=["silent", "unfinished header"],
)
def test_probes_and_images_are_answered_beside_200_silent_connections(
    sent: bytes, mini: Model, connect: Connect
) -> None:
    with served(Predictor(mini)) as address:
        for _ in range(200):
            connect(address, sent)
        assert ask(f"{address}/healthz")[0] == 200
        assert ask(f"{address}/readyz")[0] == 200
        assert ask(f"{address}/predict", IMAGE)[0] == 200


def test_the_connection_that_waited_longest_makes_room(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "most", 5)
    slow = Slow()
    with served(slow) as address, ThreadPoolExecutor(1) as client:
        inside = client.submit(ask, f"{address}/predict", b"x")
        until(lambda: metric(address, "robvit_requests_in_flight") == 1)
        first, *rest = [connect(address) for _ in range(12)]
        assert ended(first)
        assert ask(f"{address}/healthz")[0] == 200
        rest[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert rest[-1].recv(12) == b"HTTP/1.1 200"
        slow.go.set()
        assert inside.result(30)[0] == 200


@pytest.mark.parametrize("header", [b"", b"GET /healthz HTTP/1.1\r\n"])
def test_a_header_has_a_deadline_that_drops_do_not_extend(
    header: bytes, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "header_seconds", 0.5)
    with served(Slow()) as address:
        fresh = connect(address, header)
        used = connect(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert used.recv(12) == b"HTTP/1.1 200"
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            send_for(10, fresh, b"X: y\r\n" if header else b"\r\n", pause=0.1)
        used.settimeout(10)
        while not ended(used):
            pass


def test_who_reads_no_answer_is_let_go(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "read_seconds", 0.2)
    slow = Slow()
    slow.go.set()
    slow.features = torch.zeros(5000, 1000)
    request = b"POST /features HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    with served(slow) as address:
        sock = connect(address, request + b"Accept: application/octet-stream\r\n\r\nx")
        assert sock.recv(12) == b"HTTP/1.1 200"
        time.sleep(2)
        assert bytes_left(sock) < 4 * slow.features.numel()


@pytest.mark.slow
def test_slow_images_hold_no_queue_slot(connect: Connect, mini: Model) -> None:
    slowly = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nonly this"
    with served(Predictor(mini), queue=2, timeout=2) as address:
        for _ in range(20):
            connect(address, slowly)
        for _ in range(5):
            assert ask(f"{address}/predict", IMAGE)[0] == 200
        assert ask(f"{address}/readyz")[0] == 200


@pytest.mark.slow
def test_half_received_images_share_a_bounded_room(
    connect: Connect, mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SHUTDOWN_SECONDS", 1)  # those who are not let go are open to the end
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"
    with served(Predictor(mini), max_bytes=10_000, timeout=600) as address:  # no reason to let anyone go
        first, *_ = [connect(address, head + bytes(9_000)) for _ in range(9)]
        assert first.recv(12) == b"HTTP/1.1 408"
        assert ask(f"{address}/predict", IMAGE)[0] == 200


@pytest.mark.slow
def test_bombs_of_every_format_stall_nobody(mini: Model) -> None:
    bombs = {name: make() for name, make in BOMBS.items()} | {"small, many scans": many_scans(300, 20_000)}
    with served(Predictor(mini)) as address, ThreadPoolExecutor(4) as hostile:
        ask(f"{address}/predict", IMAGE)
        thrown = [hostile.submit(ask, f"{address}/predict", data) for data in bombs.values()]
        slowest = 0.0
        while not all(one.done() for one in thrown):
            start = time.monotonic()
            assert ask(f"{address}/predict", IMAGE)[0] == 200
            slowest = max(slowest, time.monotonic() - start)
        statuses = {name: one.result()[0] for name, one in zip(bombs, thrown, strict=True)}
    assert set(statuses.values()) <= {200, 422}, statuses
    assert slowest < 5


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="stops processes as Unix does")
def test_the_end_waits_for_no_decoder_and_answers_what_was_accepted(
    mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SHUTDOWN_SECONDS", 3)
    predictor = Predictor(mini)
    with ThreadPoolExecutor(2) as clients:
        with served(predictor, max_wait=1.0) as address:
            ask(f"{address}/predict", IMAGE)
            assert predictor._decoder is not None
            assert predictor._decoder._large._process is not None
            os.kill(predictor._decoder._large._process.pid, signal.SIGSTOP)
            predictor._decoder._large._seconds = 60.0  # so long would it take if the end waited for it
            stuck = clients.submit(ask, f"{address}/predict", LARGE)
            honest = clients.submit(ask, f"{address}/predict", IMAGE)
            until(lambda: metric(address, "robvit_requests_in_flight") == 2)
            start = time.monotonic()
        assert time.monotonic() - start < 20
        assert honest.result(30)[0] == 200
        assert stuck.result(30)[0] == 503


def test_a_page_elsewhere_cannot_ask_under_its_own_name() -> None:
    slow = Slow()
    slow.go.set()
    with served(slow) as address:
        status, _, body = ask(f"{address}/predict", b"x", Host="evil.example")
        assert (status, "--allow-host" in json.loads(body)["error"]) == (421, True)
        assert ask(f"{address}/metrics", Host="evil.example")[0] == 421
        assert ask(f"{address}/healthz", Host="evil.example")[0] == 200
        assert ask(f"{address}/predict", b"x", Host="localhost:1")[0] == 200
    for header in ("127.0.0.1:8000", "LocalHost", "[::1]:8000", "127.9.9.9"):
        assert answers_to(header, "127.0.0.1"), header
    for header in ("", "192.0.2.1", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
        assert not answers_to(header, "127.0.0.1"), header
    assert answers_to("192.0.2.1:80", "0.0.0.0")  # noqa: S104  no page elsewhere has an address for a name
    assert answers_to("me.example", "0.0.0.0", ("me.example",))  # noqa: S104
    assert not answers_to("you.example", "0.0.0.0", ("me.example",))  # noqa: S104


def test_bearer_is_a_word_in_any_case() -> None:
    slow = Slow()
    slow.go.set()
    with served(slow, bearer="a key of sixteen") as address:
        for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401), ("", 401)):
            given = f"{scheme} a key of sixteen".strip()
            assert ask(f"{address}/predict", b"x", Authorization=given)[0] == status


def test_a_key_that_anyone_may_write_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 2)
    key.chmod(0o666)
    refused = CliRunner().invoke(app, ["serve", "robvit-mini", "--bearer-file", str(key)])
    assert "anyone may write" in str(refused.exception)
    assert "0123456789abcdef" not in str(refused.exception)
