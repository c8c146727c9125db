"""Listening: a socket, uvicorn on it, and a graceful shutdown that answers what was accepted."""

from __future__ import annotations

import signal
import socket

import uvicorn

from robvit.errors import InputError
from robvit.serve.connections import BoundedConnection
from robvit.serve.service import Service

SHUTDOWN_SECONDS = 30  # seconds that accepted requests have after the signal to stop


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError(f"cannot listen at {host} port {port}: {error}; choose another --port") from None


def server(service: Service) -> uvicorn.Server:
    """The service in uvicorn, told to be quiet, with connections that cannot pile up."""
    return uvicorn.Server(
        uvicorn.Config(
            service.app(),
            http=BoundedConnection,
            loop="asyncio",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )


def run(service: Service, sock: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; then take no more, answer what was accepted, and return."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn hears them first, then raises them once more
    server(service).run(sockets=[sock])
