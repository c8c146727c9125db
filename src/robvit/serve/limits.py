"""What a request, and all together, may ask for, and how one that asks for more is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one request, and all together, may ask for."""

    max_bytes: int = 10_000_000
    max_pixels: int = 25_000_000
    max_batch: int = 16
    max_wait: float = 0.005  # seconds a batch waits for more
    queue: int = 64  # requests accepted and not answered yet
    timeout: float = 10.0  # seconds to send an image


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers
