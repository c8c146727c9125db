"""`robvit serve` among hostile clients: nobody else's request is lost, late or costs memory.

    python scripts/load.py                    # make load; 2,000 honest requests, some minutes on two cores
    python scripts/load.py --count 200

First honest clients ask alone, then beside connections that send nothing, a header that never ends or an
image that never comes, and beside clients that throw bombs, one client for each format. All of it is on
loopback, the server is the command in a process of its own. The exit status is 1 if an honest request or a
health check is not answered, if the 99th percentile of waiting grows tenfold, if the memory of the server and
its decoders doubles, if it does not stop within its time, or if a kind of bomb did not reach a decoder.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import io
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.bombs import BOMBS
from robvit.decoding import NETWORK_FORMATS

SLOWER, LARGER, STOP_SECONDS = 10, 2, 35
DECODED = {"200", "422"}  # what is answered after a look at an image; who is turned away gets 429
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: %d\r\n"
OPENINGS = (
    b"",
    HEAD % 9000,
    HEAD % 9000 + b"\r\n" + bytes(100),
)  # an endless header, an endless image


@dataclass
class Seen:
    """What honest clients and health checks saw, and the memory meanwhile."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    bombs: Counter[tuple[str, str]] = field(default_factory=Counter)
    connections: int = 0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def png_bytes() -> bytes:
    held = io.BytesIO()
    Image.frombytes("RGB", (32, 32), random.randbytes(3 * 32 * 32)).save(held, "PNG")
    return held.getvalue()


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command, and the port it listens at."""
    command = [sys.executable, "-m", "robvit", "serve", "robvit-mini", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found, "the server did not start"
            yield process, int(found[1])
        finally:
            process.kill()


def ask(port: int, path: str, body: bytes | None = None) -> str:
    """The status of one request on a connection of its own, or what went wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "image/png"})
        with connection.getresponse() as reply:
            reply.read()
            return str(reply.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def memory(pid: int) -> float:
    """MiB of a process and those it started."""
    total = 0.0
    with suppress(OSError, IndexError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        everyone = [str(pid), *children]
        for thread in Path(f"/proc/{pid}/task").iterdir():
            everyone += (thread / "children").read_text().split()
        for one in set(everyone):
            with suppress(OSError, IndexError):
                pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
                total += pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return total


def honest(port: int, count: int, clients: int, pid: int, seen: Seen) -> None:
    """So many requests by so many clients, with a health check and a look at memory twice a second."""
    images = [png_bytes() for _ in range(16)]
    todo, lock, done = iter(range(count)), threading.Lock(), threading.Event()

    def client() -> None:
        while True:
            with lock:
                number = next(todo, None)
            if number is None:
                return
            start = time.monotonic()
            status = ask(port, "/predict", images[number % len(images)])
            with lock:
                seen.seconds.append(time.monotonic() - start)
                seen.statuses[status] += 1

    def watch() -> None:
        while not done.wait(0.5):
            seen.probes[ask(port, "/healthz")] += 1
            seen.memory.append(memory(pid))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    watcher = threading.Thread(target=watch)
    for thread in (*threads, watcher):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()


class Hostile:
    """Connections that wait and clients that throw bombs, until told to stop."""

    def __init__(self, port: int, connections: int, seen: Seen) -> None:
        self.port, self.seen, self.stop = port, seen, threading.Event()
        self.bombs = {name: make() for name, make in BOMBS.items()}
        self.threads = [threading.Thread(target=lambda: asyncio.run(self.crowd(connections)))]
        formats = sorted({name.partition(",")[0] for name in BOMBS})
        assert {kind.upper() for kind in formats} >= set(NETWORK_FORMATS)
        self.threads += [threading.Thread(target=self.throw, args=(kind,)) for kind in formats]

    def __enter__(self) -> Hostile:
        for thread in self.threads:
            thread.start()
        time.sleep(3)  # for all of them to be there
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    async def crowd(self, connections: int) -> None:
        await asyncio.gather(*(self.linger(OPENINGS[i % len(OPENINGS)]) for i in range(connections)))

    async def linger(self, opening: bytes) -> None:
        """Connect, send next to nothing, and connect again when thrown out."""
        while not self.stop.is_set():
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.seen.connections += 1
                writer.write(opening)
                while not self.stop.is_set() and not reader.at_eof():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1000), 1.0)
                    if opening:
                        writer.write(b"x")
                writer.close()
            await asyncio.sleep(0.2)

    def throw(self, kind: str) -> None:
        """One bomb of a format after the other, in turn; who is turned away tries again a moment later."""
        turn = itertools.cycle(name for name in self.bombs if name.partition(",")[0] == kind)
        name = next(turn)
        while not self.stop.is_set():
            status = ask(self.port, "/predict", self.bombs[name])
            if status == "ConnectionRefusedError":  # it has stopped listening
                return
            self.seen.bombs[name, status] += 1
            if status == "429":
                time.sleep(0.2)
            else:
                name = next(turn)


def row(name: str, seen: Seen, memory: float) -> str:
    lost = sum(seen.statuses.values()) - seen.statuses["200"]
    silent = sum(seen.probes.values()) - seen.probes["200"]
    waits = ", ".join(f"{seen.percentile(share):.0f}" for share in (0.5, 0.99))
    return (
        f"| {name} | {seen.statuses['200']} | {lost} | {waits} | {sum(seen.probes.values())} | {silent} "
        f"| {memory:.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="honest requests beside the hostile ones")
    parser.add_argument("--clients", type=int, default=2, help="honest clients")
    parser.add_argument("--connections", type=int, default=200, help="silent or slow ones")
    given = parser.parse_args()
    with serving() as (process, port):
        honest(port, 50, given.clients, process.pid, Seen())  # warm
        calm, beset = Seen(), Seen()
        honest(port, max(100, given.count // 5), given.clients, process.pid, calm)
        idle = memory(process.pid)
        with Hostile(port, given.connections, beset):
            honest(port, given.count, given.clients, process.pid, beset)
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(120)
            stopped = time.monotonic() - start
    print("| honest clients | answered | lost | p50, p99 ms | health checks | of them failed | memory MiB |")
    print("|---|---|---|---|---|---|---|")
    print(row("alone", calm, idle))
    print(row("among hostile ones", beset, max(beset.memory)))
    decoded = sum(count for (_, status), count in beset.bombs.items() if status in DECODED)
    print(f"\n{beset.connections} silent or slow connections, {decoded} bombs that reached a decoder:")
    for (name, status), count in sorted(beset.bombs.items()):
        print(f"  {count:5} {name}: {status}")
    print(f"stopped {stopped:.1f} s after SIGTERM, with status {process.returncode}")
    reached = {name for name, status in beset.bombs if status in DECODED}
    failed = {
        f"no decoder saw {', '.join(set(BOMBS) - reached)}": bool(set(BOMBS) - reached),
        "honest requests were lost": set(calm.statuses) | set(beset.statuses) != {"200"},
        "health checks failed": set(calm.probes) | set(beset.probes) != {"200"},
        "waiting grew tenfold": beset.percentile(0.99) >= SLOWER * calm.percentile(0.99),
        "memory doubled": max(beset.memory) >= LARGER * idle,
        "it did not stop in time": stopped > STOP_SECONDS or process.returncode != 0,
    }
    for what, true in failed.items():
        if true:
            print(f"failed: {what}")
    return int(any(failed.values()))


if __name__ == "__main__":
    sys.exit(main())
