"""The routes: an image's bytes in, JSON out, and a status that says what went wrong.

    POST /predict     class, probability, logits, dispute    413  more bytes than allowed
    POST /features    class and patch tokens                 415  not sent as an image
    GET  /healthz     the process works                      422  not an image that can be decoded
    GET  /readyz      a queue slot is free                   429  the queue is full; try again later
    GET  /metrics     counts, for Prometheus                 503  shutting down
    GET  /openapi.json  all of this for programs             421  asked by another name
    GET  /docs        all of this for people

No answer, log or count says which tokens were drawn, or shows any of their values.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from robvit.data.decoder import DecoderBusy
from robvit.decoding import ImageError
from robvit.errors import InputError
from robvit.serve.arriving import Arriving
from robvit.serve.batching import Batcher, Closed, QueueFull
from robvit.serve.hosts import answers_to
from robvit.serve.limits import Limits, Refused
from robvit.serve.metrics import Metrics, resident_bytes
from robvit.serve.openapi import PAGE_HEADERS, RAW, document, page
from robvit.serve.predictor import ModelOutput, Predictor, PreparedImage

LATER = {"Retry-After": "1"}
LARGE_SHARE = 4  # large images may hold one queue slot in so many, so that they do not fill the queue
PROBES = ("/healthz", "/readyz")  # answered under any name and without a key; they tell nothing
log = logging.getLogger("robvit.serve")

Render = Callable[[ModelOutput, Request], Response]


class Service:
    """One model behind HTTP."""

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits,
        bearer: str = "",
        *,
        host: str = "127.0.0.1",
        allowed_hosts: tuple[str, ...] = (),
        features: bool | None = None,
    ) -> None:
        """Features may be asked for, if nothing is said only of a model without tokens, which they leak."""
        model = predictor.model
        self._gives_features = not model.hardened if features is None else features
        if model.hardened and not self._gives_features and not model.classes:
            raise InputError(
                f"{model.name} has no classes, and its features would give the tokens away; serve it with a "
                "head, or say --features if whoever asks may have the tokens"
            )
        self.limits = limits
        self._host, self._allowed_hosts = host, tuple(name.lower() for name in allowed_hosts)
        self.metrics = Metrics()
        self._predictor, self._bearer = predictor, bearer
        self._batcher: Batcher[PreparedImage, ModelOutput] = Batcher(
            self._predict, max_batch=limits.max_batch, max_wait=limits.max_wait, slots=limits.queue
        )
        # Each thread waits for another process to decode; no more wait than there are slots.
        self._preparing = ThreadPoolExecutor(limits.queue, "robvit-images")
        self._rendering = ThreadPoolExecutor(1, "robvit-answers")
        self._arriving = Arriving(limits.timeout, limits.max_bytes)
        self._gauges = {"robvit_queue_slots": float(limits.queue)}

    def app(self) -> Starlette:
        """The ASGI application."""
        model = self._predictor.model
        predict = self._model_route(self._prediction) if model.classes else self._no_classes
        tokens = partial(_features, has_class_token=model.has_class_token)
        features = self._model_route(tokens) if self._gives_features else _no_features
        routes = [
            Route("/predict", self._route("/predict", predict), methods=["POST"]),
            Route("/features", self._route("/features", features), methods=["POST"]),
            Route("/healthz", self._route("/healthz", self._health)),
            Route("/readyz", self._route("/readyz", self._ready)),
            Route("/metrics", self._route("/metrics", self._metrics_text)),
            Route("/openapi.json", self._route("/openapi.json", self._openapi)),
            Route("/docs", self._route("/docs", self._docs)),
        ]
        handlers = {HTTPException: self._unknown_route}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._predictor.open(self.limits.max_pixels, max(1, self.limits.queue // LARGE_SHARE))
        yield
        self._predictor.close()  # nobody waits for it any more: all were answered, or their time was up
        await asyncio.to_thread(self._batcher.close)
        self._preparing.shutdown(cancel_futures=True)
        self._rendering.shutdown()

    def _predict(self, images: list[PreparedImage]) -> list[ModelOutput]:
        self.metrics.observe("robvit_batch_size", len(images))
        return self._predictor(images)

    def _route(
        self, route: str, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Count what a handler answers, and turn what it refuses into JSON."""

        async def counted(request: Request) -> Response:
            request.state.body = request.stream()
            try:
                self._check_host(route, request)
                response = await handle(request)
            except Refused as refused:
                await self._arriving.rest(request)
                response = _error(refused.status, refused.text, refused.headers)
            except asyncio.CancelledError:  # by the server, when the time to end is up
                response = _error(503, "the service is shutting down", LATER)
            except ClientDisconnect:
                response = _error(400, "the connection closed before the whole image was received")
            except Exception:
                log.exception("%s failed", route)
                response = _error(500, "the service failed on this request; its log says why")
            self.metrics.request(route, response.status_code)
            return response

        return counted

    async def _unknown_route(self, request: Request, error: Exception) -> Response:
        """An unknown path, or the wrong method on a known one."""
        assert isinstance(error, HTTPException)
        self.metrics.request("other", error.status_code)
        text = "POST an image to /predict or /features; GET /healthz, /readyz, /metrics or /docs"
        return _error(error.status_code, text, dict(error.headers or {}))

    def _model_route(self, render: Render) -> Callable[[Request], Awaitable[Response]]:
        """A handler that applies the model to the image it is sent and renders the output."""

        async def handle(request: Request) -> Response:
            self._check_key(request)
            start = time.monotonic()
            try:
                self._batcher.check()
                data = await self._arriving.body(request)
                with self._batcher.slot():
                    output = await self._output(data)
                    response = await asyncio.get_running_loop().run_in_executor(
                        self._rendering, render, output, request
                    )
            except QueueFull:
                raise Refused(
                    429, f"all {self.limits.queue} queue slots are occupied; try again", LATER
                ) from None
            except DecoderBusy:
                raise Refused(429, "too many large images wait already; try again", LATER) from None
            except Closed:
                raise Refused(503, "the service is shutting down", LATER) from None
            self.metrics.observe("robvit_request_seconds", time.monotonic() - start)
            return response

        return handle

    async def _output(self, data: bytes) -> ModelOutput:
        loop = asyncio.get_running_loop()
        try:
            image = await loop.run_in_executor(self._preparing, self._predictor.prepare, data)
        except ImageError as error:
            raise Refused(422, str(error)) from None
        return await asyncio.wrap_future(self._batcher.submit(image))

    def _check_host(self, route: str, request: Request) -> None:
        header = request.headers.get("host", "")
        if route not in PROBES and not answers_to(header, self._host, self._allowed_hosts):
            raise Refused(421, "this service does not answer to that name; --allow-host adds one")

    def _check_key(self, request: Request) -> None:
        if not self._bearer:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(given.strip().encode(), self._bearer.encode())
        if scheme.lower() != "bearer" or not matches:
            raise Refused(
                401, "this needs the header Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"}
            )

    def _prediction(self, output: ModelOutput, request: Request) -> Response:
        assert output.logits is not None
        names = self._predictor.classes
        best = int(output.logits.argmax())
        answer = {
            "class": best,
            "name": names[best] if names else None,
            "probability": float(output.logits.softmax(0)[best]),
            "logits": output.logits.tolist(),
        }
        return JSONResponse(answer if output.disputed is None else answer | {"disputed": output.disputed})

    async def _no_classes(self, request: Request) -> Response:
        raise Refused(404, "this model has no classes; ask /features, or serve it with a head")

    async def _health(self, request: Request) -> Response:
        if not self._batcher.alive:
            raise Refused(503, "the worker has stopped")
        return JSONResponse({"status": "alive"})

    async def _ready(self, request: Request) -> Response:
        if self._batcher.occupied >= self.limits.queue or not self._batcher.alive:
            raise Refused(503, "no queue slot is free", LATER)
        return JSONResponse({"status": "ready"})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(self._described())

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(page(self._described()), headers=PAGE_HEADERS)

    def _described(self) -> dict[str, Any]:
        """What may be asked, for programs; it is the same for everyone, so it needs no key."""
        return document(
            self.limits,
            classes=self._predictor.model.classes,
            features=self._gives_features,
            key=bool(self._bearer),
            defended=self._predictor.defended,
            class_token=self._predictor.model.has_class_token,
        )

    async def _metrics_text(self, request: Request) -> Response:
        self._check_key(request)
        gauges = (
            self._gauges | {"robvit_requests_in_flight": float(self._batcher.occupied)} | resident_bytes()
        )
        return Response(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")


def _features(output: ModelOutput, request: Request, *, has_class_token: bool) -> Response:
    """All tokens, or with ?part=class that one; raw little-endian float32 where that is accepted."""
    part = request.query_params.get("part", "all")
    if part not in ("all", "class"):
        raise Refused(422, f"part must be all or class, got {part[:20]!r}")
    if part == "class" and not has_class_token:
        raise Refused(422, "this network has no class token; leave part out, or ask for part=all")
    features = output.features[:1] if part == "class" else output.features
    shape = list(features.shape)
    if request.headers.get("accept", "") == RAW:
        data = features.contiguous().numpy().astype("<f4").tobytes()
        return Response(data, media_type=RAW, headers={"X-Shape": json.dumps(shape)})
    return JSONResponse({"shape": shape, "features": features.tolist()})


async def _no_features(request: Request) -> Response:
    raise Refused(404, "this service gives no features; ask /predict")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
