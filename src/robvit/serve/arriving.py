"""Images on their way in: each has a size and a deadline, and all together a bound in memory.

Whoever sends slowly holds no queue slot. When the half-received ones together grow too large, the one that
has been on its way longest is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from robvit.serve.limits import Refused
from robvit.serve.openapi import RAW

IMAGES = 8  # of the largest size, that may lie half received in memory


class Arriving:
    """The bodies being received, oldest first, with the timeouts they are under."""

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds, self._max_bytes = seconds, max_bytes
        self._bodies: dict[asyncio.Timeout, bytearray] = {}

    async def body(self, request: Request) -> bytes:
        """The image's bytes, no more than allowed and no slower."""
        kind = request.headers.get("content-type", RAW).split(";")[0].strip().lower()
        if kind != RAW and not kind.startswith("image/"):
            raise Refused(415, f"send the image's bytes as image/... or {RAW}, got {kind}")
        too_large = Refused(413, f"an image may have at most {self._max_bytes:,} bytes")
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            raise too_large
        try:
            async with self._receiving() as data:
                async for chunk in request.state.body:
                    data += chunk
                    if len(data) > self._max_bytes:
                        raise too_large
                    self._make_room()
        except TimeoutError:
            text = f"the image took more than {self._seconds:g} seconds to arrive, or others wanted room"
            raise Refused(408, text, {"Connection": "close"}) from None
        return bytes(data)

    async def rest(self, request: Request) -> None:
        """Read a little of what is still being sent: closing at once would hide the answer from it."""
        if "expect" in request.headers:
            return  # the sender waits before it sends
        left = self._max_bytes
        try:
            async with asyncio.timeout(1.0):
                async for chunk in request.state.body:
                    left -= len(chunk)
                    if left < 0:
                        return
        except (TimeoutError, ClientDisconnect):
            return

    @asynccontextmanager
    async def _receiving(self) -> AsyncIterator[bytearray]:
        """A place for a body; raises TimeoutError when its time is up or others need the room."""
        data = bytearray()
        async with asyncio.timeout(self._seconds) as timeout:
            self._bodies[timeout] = data
            try:
                yield data
            finally:
                del self._bodies[timeout]

    def _make_room(self) -> None:
        """Give up the oldest bodies until the others fit."""
        over = sum(map(len, self._bodies.values())) - IMAGES * self._max_bytes
        for timeout, data in self._bodies.items():
            if over <= 0:
                return
            over -= len(data)
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
