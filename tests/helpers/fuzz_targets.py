"""What `scripts/fuzz.py` feeds: each target has good examples and something that reads a damaged one."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

import robvit
from helpers.fuzz_files import FILES, YAMLS
from helpers.report_samples import rich_record
from helpers.serving import served
from robvit.data import open_data, read_image
from robvit.data.decoder import Decoder
from robvit.decoding import FORMATS, NETWORK_FORMATS, ImageError
from robvit.errors import RobvitError
from robvit.evaluation.compare import compare, differences, open_record
from robvit.evaluation.verify import verify
from robvit.loading import load
from robvit.report.html import write_report
from robvit.serve.predictor import Predictor
from robvit.specs import parse_spec

SOURCE = str(Path(robvit.__file__).parents[1])
CLI = Path(__file__).with_name("fuzz_cli.py")


class Finding(Exception):
    """Something that must not happen, seen from outside."""


@dataclass(frozen=True)
class Target:
    """`good` gives an example for a kind of damage, `feed` reads what has become of it."""

    name: str
    damage: tuple[str, ...]
    good: Callable[[str, random.Random], Any]
    feed: Callable[[Any], object]
    close: Callable[[], object] = field(default=lambda: None)


def targets(folder: Path) -> list[Target]:
    """Everything that reads what others wrote."""
    files = [_file(folder, kind) for kind in FILES]
    yamls = [_yaml(folder, kind) for kind in YAMLS]
    return [*files, _record(folder), *yamls, _spec(), *_images(), _cli(folder), _http()]


def _file(folder: Path, kind: str) -> Target:
    name, write, read = FILES[kind]
    path = folder / f"{kind.replace(' ', '-')}-{name}"
    write(path)
    data = path.read_bytes()

    def feed(content: bytes) -> None:
        path.write_bytes(content)
        read(path)

    damage = ("bytes", "header") if name.endswith("safetensors") else ("bytes",)
    return Target(f"{kind} file", damage, lambda kind, rng: data, feed)


def _record(folder: Path) -> Target:
    content, path = asdict(rich_record(count=4)), folder / "strange.json"

    def feed(values: Any) -> None:
        path.write_text(json.dumps(values))
        record = open_record(path)
        write_report(record, folder / "report.html")
        compare(record, record)
        differences(record, record)
        record.table()
        record.card(name="x")
        verify(path)

    return Target("record, values", ("values",), lambda kind, rng: content, feed)


def _yaml(folder: Path, kind: str) -> Target:
    room, name, read = YAMLS[kind]
    text, path = resources.files(room).joinpath(name).read_bytes(), folder / f"{kind}.yaml"
    content = yaml.safe_load(text)

    def feed(damaged: Any) -> None:
        path.write_bytes(damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode())
        read(path)

    return Target(
        f"{kind} YAML", ("bytes", "values"), lambda kind, rng: text if kind == "bytes" else content, feed
    )


def _spec() -> Target:
    specs = ("sample", "sample?corruption=fog:3", "folder:x?y=1", "masks:x?void=11", "shapes", "./x", "~x/y")

    def feed(damaged: bytes) -> None:
        text = damaged.decode("utf-8", "surrogateescape")
        parse_spec(text, {"sample": [], "masks": ["void"], "shapes": [], "folder": []})
        if text.startswith(("sample", "./", "masks")):
            open_data(text, limit=1)

    return Target("data spec", ("bytes",), lambda kind, rng: rng.choice(specs).encode(), feed)


def _images() -> list[Target]:
    decoder = Decoder(max_pixels=10**6, seconds=20)
    plain = Image.radial_gradient("L").resize((24, 24)).convert("RGB")
    kinds: dict[str, tuple[dict[str, Any], ...]] = {name: ({},) for name in FORMATS}
    kinds |= {"JPEG": ({}, {"progressive": True, "exif": _exif()})}
    kinds["PNG"] = ({}, {"exif": _exif()})
    good: dict[str, list[bytes]] = {name: [] for name in FORMATS}
    for name, options in kinds.items():
        for option in options:
            for mode in ("RGB", "L", "P") if name != "WEBP" else ("RGB", "RGBA"):
                held = io.BytesIO()
                if mode == "P" and name in ("JPEG", "PPM"):
                    continue
                plain.convert(mode).save(held, name, **option)
                good[name].append(held.getvalue())

    def network(data: bytes) -> None:
        try:
            decoder.decode(data, 8, "crop")
        except ImageError as error:
            if "broke on it" in str(error) or "seconds to decode" in str(error):
                raise Finding(str(error)) from error
            raise

    def local(data: bytes) -> None:
        read_image(data, max_pixels=10**6)

    def chosen(formats: tuple[str, ...]) -> Callable[[str, random.Random], bytes]:
        return lambda kind, rng: rng.choice(good[rng.choice(formats)])

    return [
        Target("image from the network", ("bytes",), chosen(NETWORK_FORMATS), network, decoder.close),
        Target("image file", ("bytes",), chosen(FORMATS), local),
    ]


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "a camera"
    return exif


def _cli(folder: Path) -> Target:
    """Arguments, in a process where torch cannot be loaded: what comes before it must refuse or pass."""
    room = folder / "cli"
    room.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(CLI)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=room,
        env={
            **os.environ,
            "HOME": str(room),
            "ROBVIT_CACHE": str(room),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": SOURCE,
        },
    )
    assert process.stdin is not None
    assert process.stdout is not None
    examples, numbers = json.loads(process.stdout.readline()), itertools.count()

    def feed(arguments: Any) -> None:
        words = [str(word) for word in arguments] if isinstance(arguments, list) else [str(arguments)]
        number = next(numbers)
        process.stdin.write(json.dumps([number, words]) + "\n")
        process.stdin.flush()
        answered, answer = -1, {}
        while answered != number:  # one that came too late may still be under way
            answered, answer = json.loads(process.stdout.readline() or f'[{number}, {{"found": "it ended"}}]')
        if "found" in answer:
            raise Finding(f"{words}\n{answer['found']}")
        if "refused" in answer:
            raise RobvitError(answer["refused"])

    def close() -> None:
        process.stdin.close()
        process.stdout.close()
        process.wait()

    return Target("command line", ("values",), lambda kind, rng: rng.choice(examples), feed, close)


def _http() -> Target:
    """Requests to a service of robvit-mini: an answer or an ended connection, and a service that lives."""
    stack = ExitStack()
    address = stack.enter_context(served(Predictor(load("robvit-mini")), timeout=0.2, max_bytes=50_000))
    host, _, port = address.removeprefix("http://").partition(":")
    held = io.BytesIO()
    Image.radial_gradient("L").resize((24, 24)).save(held, "PNG")
    image = held.getvalue()
    head = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nConnection: close\r\n"
    length = b"Content-Length: %d\r\n\r\n" % len(image)
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(image) + image + b"\r\n0\r\n\r\n"
    requests = [
        head % b"predict" + length + image,
        head % b"features?part=class" + b"Accept: application/octet-stream\r\n" + length + image,
        head % b"predict" + chunks,
        head % b"predict" + b"Expect: 100-continue\r\n" + length + image,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n",
    ]

    def answer(request: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            try:
                return sock.recv(12)
            except ConnectionResetError:
                return b""

    def feed(request: bytes) -> None:
        said = answer(request)
        if said and (not said.startswith(b"HTTP/1.1 ") or said.startswith(b"HTTP/1.1 5")):
            raise Finding(f"answered {said!r}")
        if answer(requests[4]) != b"HTTP/1.1 200":
            raise Finding("the health check fails afterwards")
        if said[9:10] != b"2":
            raise RobvitError(repr(said))

    return Target("HTTP request", ("bytes",), lambda kind, rng: rng.choice(requests), feed, stack.close)
