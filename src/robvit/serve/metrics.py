"""What the service counts, in the text format that Prometheus reads."""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)

HELP = {
    "robvit_requests_total": ("counter", "Requests answered, by route and status."),
    "robvit_request_seconds": ("histogram", "From a request to its answer, where an image was answered."),
    "robvit_batch_size": ("histogram", "Images in one pass of the model."),
    "robvit_requests_in_flight": ("gauge", "Requests accepted and not answered yet: occupied queue slots."),
    "robvit_queue_slots": ("gauge", "Queue slots; when all are occupied, requests get 429."),
    "robvit_resident_bytes": ("gauge", "Memory of the process."),
}


@dataclass
class Histogram:
    """Counts of values up to each bound, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        lines, sum_so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {sum_so_far}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {sum_so_far}"]


class Metrics:
    """Counters and histograms, safe to change from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._histograms = {
            "robvit_request_seconds": Histogram(SECONDS),
            "robvit_batch_size": Histogram(SIZES),
        }

    def request(self, route: str, status: int) -> None:
        """Count an answer; the route is one of ours, so that callers cannot make new rows."""
        with self._lock:
            self._requests[route, status] += 1

    def observe(self, name: str, value: float) -> None:
        with self._lock:
            self._histograms[name].add(value)

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything counted so far, with the present values of gauges."""
        with self._lock:
            rows = {
                "robvit_requests_total": [
                    f'robvit_requests_total{{route="{route}",status="{status}"}} {count}'
                    for (route, status), count in sorted(self._requests.items())
                ]
            }
            rows |= {name: held.lines(name) for name, held in self._histograms.items()}
        rows |= {name: [f"{name} {value:g}"] for name, value in gauges.items()}
        lines = []
        for name, values in rows.items():
            kind, meaning = HELP[name]
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *values]
        return "\n".join(lines) + "\n"


def resident_bytes() -> dict[str, float]:
    """The memory of this process as a gauge, where the system tells it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"robvit_resident_bytes": float(pages * mmap.PAGESIZE)}
