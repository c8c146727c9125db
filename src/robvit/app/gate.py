"""The filter before the server: known paths only, from a known host, of bounded size.

The page needs a handful of Gradio's routes. All others, among them those that serve files, fetch other
addresses or call functions past the queue, do not exist here.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from robvit.errors import InputError
from robvit.serve.hosts import host_name

if TYPE_CHECKING:
    from robvit.app.visitors import Visitors

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Server = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
UPLOAD = "/gradio_api/upload"
JOIN, LISTEN = "/gradio_api/queue/join", "/gradio_api/queue/data"
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


class Refused(Exception):
    """A request that is not let through: a status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Gate:
    """An ASGI server that lets through what the page needs and adds security headers to what goes out."""

    def __init__(
        self, app: Server, *, hosts: tuple[str, ...], max_upload: int, folder: Path, visitors: Visitors
    ) -> None:
        self.app, self.hosts, self.max_upload, self.folder = app, hosts, max_upload, folder
        self.visitors = visitors
        self._arriving = 0  # bytes of uploads that were promised and have not all come

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            most = self._check(scope)
            await self._pass_on(scope, _Counted(receive, most), send)
        except Refused as refused:
            body = refused.text.encode()
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": refused.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _pass_on(self, scope: Scope, receive: _Counted, send: Send) -> None:
        """Let a request through, as long as it has no more bytes than it may."""
        path, started = scope["path"].rstrip("/"), False

        too_large = Refused(413, f"That is too large; at most {receive.most:,} bytes are taken.")

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if receive.exceeded and not started:
                raise too_large
            started = True
            await _with_security_headers(send)(message)

        promised = _length(scope) if path == UPLOAD else 0
        self._arriving += promised
        try:
            taken: Receive = receive
            if path == JOIN and scope["method"] == "POST":
                taken = await self._take_place(scope, receive)
            with self.visitors.listening(_session(scope)) if path == LISTEN else nullcontext():
                await self.app(scope, taken, sending)
        except Exception:
            if receive.exceeded and not started:  # the server saw its visitor leave
                raise too_large from None
            raise
        finally:
            self._arriving -= promised

    async def _take_place(self, scope: Scope, receive: Receive) -> Receive:
        """Refuse who has their places in the queue already; the request once more, for the server."""
        messages, body, more = [], b"", True
        while more:
            messages.append(await receive())
            body += messages[-1].get("body", b"")
            more = messages[-1].get("more_body", False)
        try:
            session = json.loads(body)["session_hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            session = None
        if not isinstance(session, str) or not 0 < len(session) <= 64:
            raise Refused(400, "Say which visitor you are.")
        refusal = self.visitors.refusal(session, (scope.get("client") or ("",))[0])
        if refusal:
            raise Refused(429, refusal)
        self.visitors.seen(session)

        async def again() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        return again

    def _check(self, scope: Scope) -> int:
        """Refuse what the page does not need; else the bytes that the request may have."""
        path, host = scope["path"], _header(scope, b"host")
        if scope["type"] != "http" or not ALLOWED.fullmatch(path) or ".." in path:
            raise Refused(404, "There is nothing here.")
        if self.hosts and host_name(host) not in self.hosts:
            raise Refused(421, "This playground answers to its own address only.")
        if _header(scope, b"transfer-encoding"):  # a second length; who believes the other one is misled
            raise Refused(400, "Say how long the request is, and do not send it in chunks.")
        most = self.max_upload if path.rstrip("/") == UPLOAD else MAX_BYTES
        if scope["method"] == "POST":
            length = _length(scope)
            if length < 0:
                raise Refused(411, "Say how long the request is, once.")
            if length > most:
                raise Refused(413, f"That is too large; at most {most:,} bytes are taken.")
            if path.rstrip("/") == UPLOAD and _size(self.folder) + self._arriving + length > UPLOADS_BYTES:
                raise Refused(507, "Too many images were uploaded; try again in a few minutes.")
        return most


class _Counted:
    """Receives a request and ends it, as if the visitor had left, once it has more bytes than it may."""

    def __init__(self, receive: Receive, most: int) -> None:
        self.receive, self.most, self.bytes = receive, most, 0

    @property
    def exceeded(self) -> bool:
        return self.bytes > self.most

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self.receive()
        self.bytes += len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.exceeded else message


def _header(scope: Scope, name: bytes) -> str:
    """The values of a header, joined by commas as HTTP means them."""
    return ",".join(value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name)


def _length(scope: Scope) -> int:
    """The bytes that a request says it has; -1 if it does not say so, or twice."""
    length = _header(scope, b"content-length")
    return int(length) if length.isdecimal() and len(length) < 20 else -1


def _session(scope: Scope) -> str:
    found: list[str] = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])
    return found[0]


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
