"""A service on loopback in a thread of this process, and someone who asks it."""

from __future__ import annotations

import io
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image

from helpers.networks import small_net
from robvit.backbones.model import Model
from robvit.serve.limits import Limits
from robvit.serve.predictor import ModelOutput, PreparedImage
from robvit.serve.server import listen, server
from robvit.serve.service import Service

PNG = {"Content-Type": "image/png"}
Reply = tuple[int, dict[str, str], bytes]


def ask(url: str, data: bytes | None = None, **headers: str) -> Reply:
    """Status, headers and body of a request."""
    request = urllib.request.Request(url, data, {**(PNG if data is not None else {}), **headers})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def png(image: torch.Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


@contextmanager
def served(predictor: Any, bearer: str = "", features: bool | None = None, **limits: Any) -> Iterator[str]:
    """The address of a service that runs in a thread of this process."""
    sock = listen("127.0.0.1", 0)
    running = server(Service(predictor, Limits(**limits), bearer, features=features))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        sock.close()


def until(true: Callable[[], bool]) -> None:
    """Wait for something that must come about."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def metric(url: str, name: str) -> float:
    text = ask(f"{url}/metrics")[2].decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, flags=re.MULTILINE)
    return float(found[1]) if found else 0.0


class Slow:
    """Stands in for a model that answers when it is told to."""

    model = Model(small_net("vit"), name="slow")
    classes = ("no", "yes")
    defended = False

    def __init__(self) -> None:
        self.go = threading.Event()
        self.features = torch.zeros(1, 2)

    def open(self, max_pixels: int, waiting: int) -> None:
        pass

    def close(self) -> None:
        pass

    def prepare(self, data: bytes) -> PreparedImage:
        return PreparedImage(torch.zeros(1))

    def __call__(self, images: list[PreparedImage]) -> list[ModelOutput]:
        assert self.go.wait(60)
        return [ModelOutput(self.features, torch.tensor([0.0, 1.0])) for _ in images]
