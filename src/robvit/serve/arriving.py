"""Images on their way in: each has a deadline, and all together a bound in memory.

Whoever sends slowly holds no queue slot. When the half-received ones together grow too large, the one that
has been on its way longest is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Arriving:
    """The bodies being received, oldest first, with the timeouts they are under."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds, self._most = seconds, most
        self._bodies: dict[asyncio.Timeout, bytearray] = {}

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[bytearray]:
        """A place for a body; raises TimeoutError when its time is up or others need the room."""
        data = bytearray()
        async with asyncio.timeout(self._seconds) as timeout:
            self._bodies[timeout] = data
            try:
                yield data
            finally:
                del self._bodies[timeout]

    def make_room(self) -> None:
        """Give up the oldest bodies until the others fit."""
        over = sum(map(len, self._bodies.values())) - self._most
        for timeout, data in self._bodies.items():
            if over <= 0:
                return
            over -= len(data)
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
