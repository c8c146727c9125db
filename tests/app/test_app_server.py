"""The playground's server over HTTP: many visitors, hostile ones, and what none of them may get."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from helpers.playground import BREAK, LEFT, RELEASE, ServedPlayground, playground, served
from robvit.app.session import Playground

pytestmark = pytest.mark.slow  # servers start in processes of their own
API = "/gradio_api"
PASSWORD = "correct horse battery"  # noqa: S105  of a server that lives for a test


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Playground:
    return playground(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlayground]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def address(server: ServedPlayground) -> str:
    return server.address


class Visitor:
    """Someone with a session of their own, who speaks to the server as the page does."""

    def __init__(self, address: str, name: str, password: str = "") -> None:
        self.http = httpx.Client(base_url=address, timeout=120, trust_env=False)
        self.name = name
        if password:
            self.http.post("/login", data={"username": name, "password": password})
        self.config = self.http.get("/config").json()
        self.heard = b""

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def event(self, element: str, kind: str) -> int:
        """The number of the event on the control with that id, or of the first with no id."""
        ids = {c["id"]: c["props"].get("elem_id") for c in self.config["components"]}
        html = next(c["id"] for c in self.config["components"] if c["type"] == "html")
        for event in self.config["dependencies"]:
            for target, trigger in event["targets"]:
                if trigger == kind and (ids.get(target) == element or (not element and target == html)):
                    return int(event["id"])
        raise AssertionError(f"no {kind} on {element!r}")

    def ask(self, element: str, kind: str, data: list[Any], more: Any = None) -> dict[str, Any]:
        """Send an event; the last message about it."""
        body = {
            "data": data,
            "fn_index": self.event(element, kind),
            "session_hash": self.name,
            "event_data": more,
        }
        joined = self.http.post(f"{API}/queue/join", json=body)
        self.heard += joined.content
        if joined.status_code != 200:
            return {"msg": "refused", "status": joined.status_code, **joined.json()}
        return self.wait(joined.json()["event_id"])

    def wait(self, event: str) -> dict[str, Any]:
        with self.http.stream("GET", f"{API}/queue/data", params={"session_hash": self.name}) as stream:
            for line in stream.iter_lines():
                self.heard += line.encode()
                if line.startswith("data:"):
                    message = json.loads(line[5:])
                    if message.get("event_id") == event and message["msg"] == "process_completed":
                        return dict(message)
        raise AssertionError("the server said no more")

    def upload(self, content: bytes, name: str = "mine.png") -> dict[str, Any]:
        sent = self.http.post(f"{API}/upload", files={"files": (name, content)})
        assert sent.status_code == 200
        file = {"path": sent.json()[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}
        return self.ask("upload", "upload", [file])

    def attack(self, tokens: str = "off", eps: Any = 3, steps: Any = 2) -> dict[str, Any]:
        return self.ask("attack", "click", [None, "robvit-mini", tokens, "pgd", eps, steps])


Enter = Callable[[Any], Any]


@pytest.fixture
def enter() -> Iterator[Enter]:
    """Opens what is to be closed when the test ends."""
    with ExitStack() as stack:
        yield stack.enter_context


def images(html: str) -> dict[str, np.ndarray]:
    """The downloads of a result by name."""
    found = re.findall(r"download='(\w+)\.png' href='data:image/png;base64,([^']+)'", html)
    return {name: np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for name, text in found}


def image(seed: int) -> tuple[np.ndarray, bytes]:
    """A small image that nobody else has; its middle is what the server keeps."""
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return pixels, held.getvalue()


def test_a_certificate_is_offered_where_there_is_one_and_else_the_page_says_why(address: str) -> None:
    with Visitor(address, "careful") as visitor:
        props = [component["props"] for component in visitor.config["components"]]
        (button,) = (one for one in props if one.get("elem_id") == "certificate")
        assert not button["interactive"]  # of robvit-mini, the first model
        assert any(
            "No patch certificate: the tokens of robvit-mini" in str(one.get("value")) for one in props
        )
        changed = [
            visitor.ask("model", "change", [name])["output"]["data"] for name in ("plain", "robvit-mini")
        ]
        assert [one[2]["interactive"] for one in changed] == [True, False]
        assert ["No patch certificate" in one[3] for one in changed] == [False, True]
        drawn, refused = (
            visitor.ask("certificate", "click", [None, name, "off", "pgd", 3, 2])
            for name in ("plain", "robvit-mini")
        )
    assert "behind double masking" in drawn["output"]["data"][0]
    assert not refused["success"]
    assert "share pixels" in refused["output"]["error"]


def test_twenty_visitors_at_once_get_their_own_images(address: str, play: Playground) -> None:
    got: dict[int, str] = {}

    def visit(number: int) -> None:
        with Visitor(address, f"visitor{number}") as visitor:
            if visitor.upload(image(number)[1])["success"]:
                answer = visitor.attack()
                if answer["success"]:
                    got[number] = answer["output"]["data"][0]

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(20))
    for number, html in got.items():
        mine = play.upload(image(number)[1]).tensor(32)
        shown = images(html)
        assert np.array_equal(shown["clean"], (mine[0] * 255).round().byte().permute(1, 2, 0).numpy())
        moved = np.abs(shown["adversarial"].astype(int) - shown["clean"])
        assert 0 < moved.max() <= 3


def test_a_visitor_chooses_attacks_and_reads_the_lines(address: str, enter: Enter) -> None:
    visitor = enter(Visitor(address, "alone"))
    first = images(visitor.attack()["output"]["data"][0])["clean"]
    assert visitor.ask("", "click", [], {"index": 7})["success"]
    answer = visitor.attack(tokens="known")["output"]["data"]
    assert not np.array_equal(images(answer[0])["clean"], first)
    assert "with tokens" in answer[0]
    code = visitor.ask("script", "click", [None])["output"]["data"][0]["value"]
    assert 'robvit.load("robvit-mini", tokens="tokens.safetensors")' in code


def test_tokens_never_leave_the_server(address: str, play: Playground, enter: Enter) -> None:
    visitor = enter(Visitor(address, "curious"))
    visitor.heard += json.dumps(visitor.config).encode()
    for tokens in ("secret", "known"):
        assert visitor.attack(tokens=tokens)["success"]
    hardened = play.models["robvit-mini"].hardened
    assert hardened is not None
    values = hardened.extra
    assert isinstance(values, torch.Tensor)
    raw = values.numpy().tobytes()
    for start in range(3):  # a slice of the bytes in any of the three places base64 gives it
        assert base64.b64encode(raw[start : start + 300])[4:-4] not in visitor.heard
    for value in values.flatten()[:50].tolist():
        assert f"{value:.5f}".encode() not in visitor.heard


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"eps": 10**9}, "greater than maximum value 32"),
        ({"steps": 10**9}, "greater than maximum value 100"),
        ({"eps": 2.5}, "expected a whole number, got 2.5"),
        ({"steps": "many"}, ""),
        ({"tokens": "all"}, ""),
    ],
)
def test_a_bad_order_gets_a_sentence(address: str, sent: dict[str, Any], says: str) -> None:
    with Visitor(address, "bad") as visitor:
        answer = visitor.attack(**sent)
    assert not answer["success"]
    text = json.dumps(answer)
    assert says in text
    assert "Traceback" not in text
    assert "site-packages" not in text


def test_what_breaks_inside_stays_inside(server: ServedPlayground) -> None:
    (server.folder / BREAK).touch()
    with Visitor(server.address, "unlucky") as visitor:
        answer = visitor.attack()
    (server.folder / BREAK).unlink()
    assert not answer["success"]
    assert "Something failed on the server" in json.dumps(answer)
    assert "/secret" not in json.dumps(answer)
    assert "/secret/path" in server.log


@pytest.mark.parametrize(
    "content", [b"", b"no image", b"<svg onload=alert(1)>", b"\x89PNG\r\n\x1a\n" + bytes(99)]
)
def test_a_bad_upload_gets_a_sentence(address: str, content: bytes) -> None:
    with Visitor(address, "clumsy") as visitor:
        answer = visitor.upload(content)
    assert not answer["success"]
    assert answer["output"]["title"] == "Not accepted"
    assert "Traceback" not in answer["output"]["error"]
    assert "<svg" not in answer["output"]["error"]


def test_uploads_have_a_limit(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False) as http:
        assert http.post(f"{API}/upload", files={"files": ("a.png", bytes(10_050_000))}).status_code == 413
        assert http.post(f"{API}/queue/join", content=bytes(300_000)).status_code == 413


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", "pyproject.toml"])
def test_a_made_up_upload_reads_no_file_of_the_server(address: str, path: str) -> None:
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    with Visitor(address, "thief") as visitor:
        answer = visitor.ask("upload", "upload", [file])
    assert not answer["success"]
    assert "root:" not in json.dumps(answer)


def test_the_server_serves_no_files_and_fetches_none(address: str, enter: Enter) -> None:
    visitor = enter(Visitor(address, "reader"))
    _, content = image(1)
    kept = visitor.http.post(f"{API}/upload", files={"files": ("x.png", content)}).json()[0]
    for path in (
        f"{API}/file={kept}",
        f"{API}/file=/etc/passwd",
        f"{API}/file=pyproject.toml",
        f"{API}/file=../../../../etc/passwd",
        f"{API}/file%3D/etc/passwd",
        "/file=/etc/passwd",
        f"{API}/file=http://127.0.0.1:1/",
        f"{API}/proxy=http://127.0.0.1:1/",
        "/static/../../../etc/passwd",
        "/assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        f"{API}/openapi.json",
        "/monitoring",
    ):
        assert visitor.http.get(path).status_code == 404, path
    assert visitor.http.post(f"{API}/run/predict", json={"data": []}).status_code == 404


def test_other_sites_can_not_use_a_visitors_browser(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False) as http:
        assert http.get("/", headers={"host": "evil.example"}).status_code == 421
        answer = http.get("/config", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("leaves", [True, False])
def test_who_leaves_or_stops_frees_the_machine(server: ServedPlayground, enter: Enter, leaves: bool) -> None:
    visitor = enter(Visitor(server.address, f"brief{leaves}"))
    before, number = server.log.count(LEFT), visitor.event("attack", "click")
    body = {"data": [None, "robvit-mini", "off", "apgd_t", 8, 100], "fn_index": number, "event_data": None}
    joined = visitor.http.post(f"{API}/queue/join", json={**body, "session_hash": visitor.name}).json()
    with visitor.http.stream("GET", f"{API}/queue/data", params={"session_hash": visitor.name}) as stream:
        next(line for line in stream.iter_lines() if "process_generating" in line)
        if not leaves:
            asked = {"fn_index": number, "session_hash": visitor.name, "event_id": joined["event_id"]}
            assert visitor.http.post(f"{API}/cancel", json=asked).json()["success"]
    end = time.monotonic() + 60
    while server.log.count(LEFT) == before and time.monotonic() < end:
        time.sleep(0.1)
    assert server.log.count(LEFT) == before + 1
    assert enter(Visitor(server.address, f"next{leaves}")).attack()["success"]


def test_who_never_listens_is_not_worked_for(tmp_path: Path, enter: Enter) -> None:
    with served(tmp_path, grace=0.2) as running:
        visitor = enter(Visitor(running.address, "absent"))
        body = {"data": [None, "robvit-mini", "off", "apgd_t", 8, 100], "event_data": None}
        body["fn_index"] = visitor.event("attack", "click")
        visitor.http.post(f"{API}/queue/join", json={**body, "session_hash": visitor.name}).raise_for_status()
        end = time.monotonic() + 60
        while not running.log.count(LEFT) and time.monotonic() < end:
            time.sleep(0.1)
        assert running.log.count(LEFT) == 1


def test_a_password_a_full_queue_and_nothing_left_behind(tmp_path: Path, enter: Enter) -> None:
    with served(tmp_path, held=True, password=PASSWORD, waiting=2) as running:
        stranger = enter(httpx.Client(base_url=running.address, trust_env=False))
        assert stranger.get("/config").status_code == 401
        joining = {"data": [], "fn_index": 0, "session_hash": "x"}
        assert stranger.post(f"{API}/queue/join", json=joining).status_code == 401
        assert stranger.post(f"{API}/upload", files={"files": ("a.png", b"x")}).status_code == 401
        assert stranger.post("/login", data={"username": "me", "password": "wrong"}).status_code == 400
        visitors = [enter(Visitor(running.address, f"v{i}", PASSWORD)) for i in range(6)]
        sent = visitors[0].http.post(f"{API}/upload", files={"files": ("x.png", b"x")})
        kept = Path(sent.json()[0])
        assert kept.is_file()
        body = {"data": [None, "robvit-mini", "off", "pgd", 3, 2], "event_data": None}
        body["fn_index"] = visitors[0].event("attack", "click")
        replies = [v.http.post(f"{API}/queue/join", json={**body, "session_hash": v.name}) for v in visitors]
        assert replies[0].status_code == 200
        assert replies[-1].status_code == 503
        assert "full" in replies[-1].text
        (tmp_path / RELEASE).touch()
        assert visitors[0].wait(replies[0].json()["event_id"])["success"]
    assert not kept.exists()
