"""`robvit serve` under load: throughput, latency, mix-ups and memory, and what happens when it is full.

    python benchmarks/serving.py                                            # robvit-mini, a pool of two sets
    python benchmarks/serving.py --model dinov2-small --img-size 112 --count 60

The server is the command, in a process of its own on loopback; the clients are real HTTP connections that
stay open. Every answer is compared with what the model itself says of that image. Both rounds end after
a number of answers or of seconds, whichever comes first.
"""

from __future__ import annotations

import argparse
import http.client
import io
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

import robvit
from robvit.defenses.pool import TokenPool
from robvit.defenses.tokens import RobustTokens

CLOSE = 1e-3  # of the largest feature; answers of other images or other tokens are far beyond
PART = "/features?part=class"


@dataclass
class Seen:
    """What the clients saw in one round."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    mixed: int = 0
    memory: list[float] = field(default_factory=list)
    took: float = 0.0


def main() -> None:
    args = arguments()
    model = robvit.load(args.model, img_size=args.img_size)
    images, _ = robvit.data.open_data("sample", limit=args.images, size=model.input_size[0]).tensors()
    sets = tuple(
        RobustTokens(0.1 * torch.randn(1, 10, model.width), model.fingerprint()) for _ in range(args.sets)
    )
    expected = answers(model, sets, images)
    bodies = [png(image) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        TokenPool(sets).save(Path(folder) / "pool.safetensors")
        options = ["--tokens", f"{folder}/pool.safetensors", "--queue", str(args.queue)]
        options += ["--max-batch", str(args.max_batch), "--port", "0"]
        options += ["--img-size", str(args.img_size)] if args.img_size else []
        with serving(args.model, options) as place:
            load(place, bodies, expected, clients=args.clients, count=2 * args.clients, seconds=args.seconds)
            calm = load(place, bodies, expected, clients=args.clients, count=args.count, seconds=args.seconds)
            crowd = load(
                place, bodies, expected, clients=3 * args.queue, count=args.count, seconds=args.seconds
            )
            batches = metric(place, "robvit_batch_size_sum") / metric(place, "robvit_batch_size_count")
    tell(f"{args.clients} clients, {args.queue} queue slots", calm)
    tell(f"{3 * args.queue} clients, {args.queue} queue slots", crowd)
    print(f"images in a pass, on average: {batches:.1f}")
    wrong = [seen for seen in (calm, crowd) if seen.mixed or set(seen.statuses) - {200, 429}]
    sys.exit(1 if wrong or set(calm.statuses) != {200} else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="robvit-mini")
    parser.add_argument("--img-size", type=int)
    parser.add_argument("--count", type=int, default=600, help="answers in each round, after which it ends")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which a round ends anyway")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--queue", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--sets", type=int, default=2)
    return parser.parse_args()


@torch.no_grad()
def answers(model: robvit.Model, sets: tuple[RobustTokens, ...], x: torch.Tensor) -> torch.Tensor:
    """Class tokens (S n D) of every image under every set."""
    return torch.stack([model.replace(tokens=one).features(x)[:, 0] for one in sets])


def png(image: torch.Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


@contextmanager
def serving(model: str, options: list[str]) -> Iterator[str]:
    """Host and port of a server that is asked to stop at the end, and must say that it did."""
    command = [sys.executable, "-m", "robvit", "serve", model, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://(\S+)", line)
            assert found, line
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def load(
    place: str, bodies: list[bytes], expected: torch.Tensor, *, clients: int, count: int, seconds: float
) -> Seen:
    """Let clients ask one image after the other until the count or the time is reached."""
    seen, lock, turns = Seen(), threading.Lock(), itertools.count()
    start = time.monotonic()
    seen.memory.append(metric(place, "robvit_resident_bytes"))

    def client() -> None:
        with closing(http.client.HTTPConnection(place, timeout=60)) as connection:
            while seen.statuses[200] < count and time.monotonic() - start < seconds:
                which = next(turns) % len(bodies)
                status, body, took = ask(connection, bodies[which])
                with lock:
                    seen.statuses[status] += 1
                    if status == 200:
                        seen.seconds.append(took)
                        seen.mixed += not right(body, expected[:, which])
                if status == 429:
                    time.sleep(0.05)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        seen.memory.append(metric(place, "robvit_resident_bytes"))
    seen.took = time.monotonic() - start
    return seen


def ask(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes, float]:
    """Status, body and seconds of a request; 0 where there was no answer."""
    start = time.monotonic()
    try:
        connection.request("POST", PART, body, {"Content-Type": "image/png"})
        reply = connection.getresponse()
        return reply.status, reply.read(), time.monotonic() - start
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0, b"", 0.0


def right(body: bytes, expected: torch.Tensor) -> bool:
    """Whether an answer is this image's, under any of the sets: expected (S D)."""
    off = (torch.tensor(json.loads(body)["features"]) - expected).abs().amax(1)
    return bool(off.min() < CLOSE * expected.abs().max())


def metric(place: str, name: str) -> float:
    with closing(http.client.HTTPConnection(place, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        found = re.search(rf"^{name} (\S+)$", connection.getresponse().read().decode(), flags=re.MULTILINE)
    return float(found[1]) if found else float("nan")


def tell(what: str, seen: Seen) -> None:
    took = sorted(seen.seconds) or [float("nan")]
    at = {share: 1000 * took[min(len(took) - 1, int(share * len(took)))] for share in (0.5, 0.95, 0.99)}
    print(f"{what}: {sum(seen.statuses.values())} requests in {seen.took:.1f} s")
    print(f"  by status {dict(sorted(seen.statuses.items()))}, mixed up {seen.mixed}")
    print(f"  {seen.statuses[200] / seen.took:.1f} answers a second; ", end="")
    print("milliseconds " + ", ".join(f"p{share * 100:.0f} {value:.0f}" for share, value in at.items()))
    memory = [value / 2**20 for value in seen.memory]
    print(
        f"  memory {memory[0]:.0f} MiB at the start, {max(memory):.0f} at most, {memory[-1]:.0f} at the end"
    )


if __name__ == "__main__":
    main()
