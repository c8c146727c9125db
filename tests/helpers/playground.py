"""A playground on the bundled models, one of them with tokens of no use; the server has a plain ViT too.

Run as a script it serves: tests take Gradio into a process of its own, because it leaves event loops open.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from timm.models.vision_transformer import VisionTransformer

import robvit
from robvit.app.models import PlaygroundModel, playground_models
from robvit.app.request import AttackRequest, Result, Step
from robvit.app.session import Limits, Playground
from robvit.app.visitors import GRACE
from robvit.data.cifar import CIFAR10_CLASSES

RELEASE, BREAK = "release", "break"  # files by which a test speaks to its server
LEFT = "a visitor left early"  # what the server says of it


def token_file(folder: Path) -> Path:
    """Random tokens for robvit-mini."""
    model = robvit.load("robvit-mini")
    values = torch.randn(1, 4, model.width, generator=torch.Generator().manual_seed(5))
    path = folder / "tokens.safetensors"
    robvit.RobustTokens(values, model.fingerprint()).save(path)
    return path


def playground(folder: Path, **limits: float) -> Playground:
    """The models as on a machine without DINOv2."""
    with patch("robvit.app.models.on_disk", return_value=""):
        return Playground(playground_models(token_file(folder)), Limits(**limits))


@dataclass(frozen=True)
class ServedPlayground:
    """A server that runs, and what it wrote to its standard error so far."""

    address: str
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def served(
    folder: Path, *, held: bool = False, password: str = "", grace: float = GRACE, **limits: float
) -> Iterator[ServedPlayground]:
    """A playground in a process of its own; `held` makes requests wait until the file `release` is there.

    `grace` is how many seconds a visitor may take to listen.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = json.dumps(
        {"port": port, "password": password, "held": held, "grace": grace, "limits": limits}
    )
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-W", "ignore", __file__, str(folder), settings]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, (folder / "log").read_text()
            yield ServedPlayground(address, folder)
        finally:
            process.terminate()
            process.wait(timeout=60)
            process.stdout.close()


def main() -> None:
    import signal

    from robvit.app.server import opened

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    play = playground(folder, **settings["limits"])
    net = VisionTransformer(img_size=32, patch_size=4, embed_dim=16, depth=1, num_heads=1, num_classes=10)
    play.models["plain"] = PlaygroundModel("plain", robvit.Model(net).eval(), classes=list(CIFAR10_CLASSES))
    genuine = Playground.attack

    def attack(self: Playground, request: AttackRequest) -> Iterator[Step | Result]:
        if (folder / BREAK).exists():
            raise KeyError("/secret/path/of/the/server")
        try:
            yield from genuine(self, request)
        except GeneratorExit:
            print(LEFT, file=sys.stderr, flush=True)
            raise

    def wait() -> None:
        while not (folder / RELEASE).exists():
            threading.Event().wait(0.1)
        play.lock.release()

    if settings["held"]:
        play.lock.acquire()
        threading.Thread(target=wait, daemon=True).start()
    with (
        patch.object(Playground, "attack", attack),
        patch("robvit.app.visitors.GRACE", settings["grace"]),
        opened(play, port=settings["port"], password=settings["password"]) as address,
    ):
        print(address, flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
