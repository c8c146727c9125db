"""Connections that wait for ever are ended: those that send no request, none in time, or read no answer.

Past `MOST` connections the one that has kept the server waiting longest makes room for the new one; those
being worked on stay. So whoever opens hundreds of connections closes the server to nobody, health checks
among them.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 400  # connections at once; systems commonly allow a process 1024 files
HEADER_SECONDS = 5.0  # from a connection, or the answer before, to the end of a request's header
READ_SECONDS = 20.0  # for reading an answer that did not fit into the system's buffers


class BoundedConnection(H11Protocol):
    """uvicorn's connection with deadlines."""

    most, header_seconds, read_seconds = MOST, HEADER_SECONDS, READ_SECONDS
    _header_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _since = 0.0  # when the client began to keep the server waiting

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_header()
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._header_timer, self._read_timer):
            if timer is not None:
                timer.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        if self._in_request and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_response_complete(self) -> None:
        self._await_header()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    @property
    def _in_request(self) -> bool:
        """Whether a request's header has come and it is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _worked_on(self) -> bool:
        """Whether a whole request has come and is not answered yet."""
        return self._in_request and not self.cycle.more_body

    def _await_header(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
        self._since = self.loop.time()
        self._header_timer = self.loop.call_later(self.header_seconds, self.transport.abort)

    def _make_room(self) -> None:
        """End the connection that has waited longest for a header, or else for the rest of an image."""
        waiting = [one for one in self.connections if one is not self and not one._worked_on]  # type: ignore[union-attr]
        if waiting:
            min(waiting, key=lambda one: (one._in_request, one._since)).transport.abort()  # type: ignore[union-attr]
        else:
            self.transport.abort()
