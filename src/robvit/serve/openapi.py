"""The service described for programs, as OpenAPI 3.1, and for people, as a page without scripts.

Both tell what may be asked and in which form it is answered; neither names the model, its classes or its
tokens.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from robvit import __version__

if TYPE_CHECKING:
    from robvit.serve.limits import Limits

RAW = "application/octet-stream"
ERRORS = {
    400: "The connection closed before the whole image was received.",
    401: "The header Authorization: Bearer ... is missing or wrong.",
    404: "The model has no classes, or the service gives no features.",
    408: "The image took too long to arrive.",
    413: "The image has more bytes than allowed.",
    415: "The body was not sent as an image.",
    421: "The service does not answer to this name.",
    422: "The body is no image that can be decoded, or a parameter is wrong.",
    429: "The queue is full; try again after the seconds of Retry-After.",
    500: "The service failed on this request.",
    503: "No queue slot is free, the worker has stopped, or the service is shutting down.",
}
OF_IMAGES = (400, 401, 404, 408, 413, 415, 421, 422, 429, 500, 503)
# Nothing is loaded from elsewhere, nothing runs, no page may show this one inside itself.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_NUMBERS = {"type": "array", "items": {"type": "number"}}


def document(
    limits: Limits,
    *,
    classes: int,
    features: bool,
    key: bool,
    defended: bool = False,
    class_token: bool = True,
) -> dict[str, Any]:
    """The OpenAPI document of a service with these limits; `key` says that requests need one.

    Behind a defence against patches, `defended`, a prediction tells whether it is disputed. A network
    without a class token gives all tokens only.
    """
    secured: dict[str, Any] = {"security": [{"key": []}]} if key else {}
    tokens = "Class and patch" if class_token else "Patch"
    paths: dict[str, Any] = {
        "/predict": {
            "post": _of_image("Classify an image", _prediction(classes, defended), limits) | secured
        },
        "/features": {"post": _of_image(f"{tokens} tokens of an image", _features(), limits) | secured},
        "/healthz": {"get": _probe("Whether the process works", "alive")},
        "/readyz": {"get": _probe("Whether a queue slot is free", "ready")},
        "/metrics": {"get": _text("Counts for Prometheus", "text/plain", 401 if key else 421) | secured},
        "/openapi.json": {"get": _text("This document", "application/json", 421)},
        "/docs": {"get": _text("This document as a page", "text/html", 421)},
    }
    part = {
        "name": "part",
        "in": "query",
        "description": "All tokens, or the class token alone." if class_token else "All tokens.",
        "schema": {"type": "string", "enum": ["all", "class"] if class_token else ["all"], "default": "all"},
    }
    paths["/features"]["post"]["parameters"] = [part]
    off = [name for name, there in (("/predict", bool(classes)), ("/features", features)) if not there]
    for name in off:
        paths[name]["post"]["description"] = "Not given by this service: it answers 404."
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    components: dict[str, Any] = {"schemas": {"Error": error}}
    if key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    about = {"title": "robvit serve", "version": __version__, "summary": "A Vision Transformer behind HTTP."}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": components}


def page(spec: dict[str, Any]) -> str:
    """The document as HTML."""
    parts = []
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(path, method, operation, key="security" in operation))
    head = f"<h1>{escape(spec['info']['title'])} {escape(spec['info']['version'])}</h1>"
    note = "<p>For programs: <a href='openapi.json'>openapi.json</a> (OpenAPI 3.1).</p>"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>robvit serve</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{STYLE}</style></head><body><main>{head}{note}{''.join(parts)}</main></body></html>"
    )


STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0}"
    "main{max-width:46rem;margin:0 auto;padding:1rem}h2{font:600 1.05rem ui-monospace,monospace;"
    "border-top:1px solid #8886;padding-top:1rem}pre,code{font:0.9rem ui-monospace,monospace}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8882;padding:.6rem;border-radius:.3rem}"
    "table{border-collapse:collapse;width:100%}td{padding:.15rem .6rem .15rem 0;vertical-align:top}"
    "td:first-child{width:2.5rem}"
)


def _operation(path: str, method: str, spec: dict[str, Any], *, key: bool) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in spec["responses"].items()
    )
    header = " -H 'Authorization: Bearer KEY'" if key else ""
    send = " -X POST -T IMAGE" if method == "post" else ""
    notes = "".join(f"<p>{escape(spec[name])}</p>" for name in ("summary", "description") if name in spec)
    body = spec.get("requestBody", {}).get("description", "")
    asked = "".join(
        f"<p><code>?{escape(one['name'])}={'|'.join(map(escape, one['schema']['enum']))}</code> "
        f"{escape(one['description'])}</p>"
        for one in spec.get("parameters", [])
    )
    call = f"<pre>curl{escape(header)}{send} http://HOST:PORT{escape(path)}</pre>"
    sent = f"<p>{escape(body)}</p>" if body else ""
    return f"<h2>{method.upper()} {escape(path)}</h2>{notes}{sent}{asked}{call}<table>{rows}</table>"


def _of_image(summary: str, answer: dict[str, Any], limits: Limits) -> dict[str, Any]:
    image = {"schema": {"type": "string", "format": "binary"}}
    most = f"{limits.max_bytes:,} bytes and {limits.max_pixels:,} pixels"
    body = {
        "required": True,
        "description": f"The bytes of one PNG, JPEG, WebP, GIF or BMP file, at most {most}.",
        "content": {"image/*": image, RAW: image},
    }
    errors = {str(status): _error(status) for status in OF_IMAGES}
    return {"summary": summary, "requestBody": body, "responses": {"200": answer, **errors}}


def _prediction(classes: int, defended: bool) -> dict[str, Any]:
    logits = _NUMBERS | ({"minItems": classes, "maxItems": classes} if classes else {})
    fields = {
        "class": {"type": "integer", "minimum": 0},
        "name": {"type": ["string", "null"]},
        "probability": {"type": "number", "minimum": 0, "maximum": 1},
        "logits": logits,
    }
    text = "The class, its name where classes have names, its probability, and all logits."
    if defended:
        fields["disputed"] = {"type": "boolean"}
        text += " It is disputed where the defence against patches has none to stand for: better abstain."
    schema = {"type": "object", "required": list(fields), "properties": fields}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _features() -> dict[str, Any]:
    shape = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    fields = {"shape": shape, "features": {"type": "array", "items": _NUMBERS}}
    schema = {"type": "object", "required": list(fields), "properties": fields}
    raw = {"schema": {"type": "string", "format": "binary"}}
    return {
        "description": f"Tokens and their shape; with Accept: {RAW} little-endian float32, shape in X-Shape.",
        "content": {"application/json": {"schema": schema}, RAW: raw},
    }


def _probe(summary: str, word: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"status": {"const": word}}, "required": ["status"]}
    answer = {"description": f'{{"status": "{word}"}}', "content": {"application/json": {"schema": schema}}}
    return {"summary": summary, "responses": {"200": answer, "503": _error(503)}}


def _text(summary: str, kind: str, status: int) -> dict[str, Any]:
    schema = {"type": "object"} if kind == "application/json" else {"type": "string"}
    answer = {"description": summary + ".", "content": {kind: {"schema": schema}}}
    return {"summary": summary, "responses": {"200": answer, str(status): _error(status)}}


def _error(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": ERRORS[status], "content": {"application/json": {"schema": schema}}}
