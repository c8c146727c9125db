"""The filter before the server: known paths only, from a known host, of bounded size.

The page needs a handful of Gradio's routes. All others, among them those that serve files, fetch other
addresses or call functions past the queue, do not exist here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from robvit.errors import InputError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Server = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
UPLOAD = "/gradio_api/upload"
ALLOWED = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json|robots\.txt|login|logout)/?"
    r"|/(assets|static|svelte)/[\w./@-]+"
    r"|/gradio_api/(queue/(join|data)|upload|upload_progress|cancel|reset|startup-events|login_check|app_id"
    r"|token|user|theme\.css|heartbeat/\w+)/?"
)
MAX_BYTES = 200_000  # of anything that is no upload
UPLOADS_BYTES = 500_000_000  # of all uploads that are stored at once
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "frame-ancestors 'none'; form-action 'self'; base-uri 'self'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def check_address(host: str, port: int, password: str) -> None:
    """Refuse to be reachable from outside without a password, or to listen where that is not possible."""
    if host not in LOOPBACK and not password:
        raise InputError(
            f"{host} can be reached from outside, so visitors need a password: give --password-file, "
            "or stay on 127.0.0.1"
        )
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port}: {error}; choose another --port") from None


class Gate:
    """An ASGI server that lets through what the page needs and adds security headers to what goes out."""

    def __init__(self, app: Server, *, hosts: tuple[str, ...], max_upload: int, folder: Path) -> None:
        self.app, self.hosts, self.max_upload, self.folder = app, hosts, max_upload, folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, _with_security_headers(send))
            return
        status, text = refusal
        body = text.encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is not let through: a status and a sentence, or None."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        path = scope["path"]
        if scope["type"] != "http" or not ALLOWED.fullmatch(path) or ".." in path:
            return 404, "There is nothing here."
        if self.hosts and _name(headers.get("host", "")) not in self.hosts:
            return 421, "This playground answers to its own address only."
        if scope["method"] == "POST":
            length = headers.get("content-length", "")
            most = self.max_upload if path.rstrip("/") == UPLOAD else MAX_BYTES
            if not length.isdecimal():
                return 411, "Say how long the request is."
            if int(length) > most:
                return 413, f"That is too large; at most {most:,} bytes are taken."
            if path.rstrip("/") == UPLOAD and _size(self.folder) + int(length) > UPLOADS_BYTES:
                return 507, "Too many images were uploaded; try again in a few minutes."
        return None


def _name(host: str) -> str:
    """The host's name without its port."""
    return host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]


def _size(folder: Path) -> int:
    """The bytes in a folder from which old files may vanish meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def _with_security_headers(send: Send) -> Send:
    """Send with headers that keep the browser from asking anyone else."""

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_with_headers
