"""The description of the service: exactly its routes, answers as told, and a page without scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import robvit
from helpers.networks import small_net
from helpers.serving import ask, png, served
from robvit.backbones.model import Model
from robvit.defenses.tokens import RobustTokens
from robvit.serve.limits import Limits
from robvit.serve.openapi import document, page
from robvit.serve.predictor import Predictor
from robvit.serve.service import Service

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


def fits(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a value is of a schema, as far as this document's words go."""
    if "$ref" in schema:
        return fits(value, whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]], whole)
    if "const" in schema:
        return bool(value == schema["const"])
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "number": (int, float),
        "null": type(None),
    }
    told = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not isinstance(value, tuple(kind for one in told for kind in _several(kinds[one]))):
        return False
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        there = set(schema.get("required", ())) <= value.keys()
        return there and all(fits(value[name], inner[name], whole) for name in inner if name in value)
    if isinstance(value, list):
        size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
        return size and all(fits(one, schema["items"], whole) for one in value)
    return True


def _several(kinds: Any) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


@pytest.mark.parametrize("key", ["", "0123456789abcdef"])
def test_the_paths_are_exactly_the_routes(mini: Model, key: str) -> None:
    service = Service(Predictor(mini), Limits(), key)
    told = document(Limits(), classes=10, features=True, key=bool(key))
    routes: Any = service.app().routes
    assert [route.path for route in routes] == list(told["paths"])
    for route in routes:
        methods = {one.upper() for one in told["paths"][route.path]}
        assert methods == route.methods - {"HEAD"}
    secured = {path for path, one in told["paths"].items() if "security" in next(iter(one.values()))}
    assert secured == ({"/predict", "/features", "/metrics"} if key else set())


def test_answers_have_the_told_form(mini: Model) -> None:
    image = png(torch.rand(3, 32, 32))
    with served(Predictor(mini), max_bytes=20_000) as url:
        status, _, body = ask(f"{url}/openapi.json")
        assert status == 200
        told = json.loads(body)
        assert re.fullmatch(r"3\.1\.\d", told["openapi"])
        assert {"title", "version"} <= told["info"].keys()
        for path, data, wanted in (
            ("/predict", image, 200),
            ("/features?part=class", image, 200),
            ("/features?part=none", image, 422),
            ("/predict", b"no image", 422),
            ("/predict", b"x" * 20_001, 413),
            ("/healthz", None, 200),
            ("/readyz", None, 200),
        ):
            status, _, body = ask(url + path, data)
            assert status == wanted
            operation = next(iter(told["paths"][path.partition("?")[0]].values()))
            schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            assert fits(json.loads(body), schema, told), (path, body[:200])
    assert not fits(
        {"status": "dead"}, {"type": "object", "properties": {"status": {"const": "alive"}}}, told
    )


def test_a_class_token_is_offered_only_where_there_is_one(mini: Model) -> None:
    image = png(torch.rand(3, 32, 32))
    for model, offered, wanted in (
        (mini, ["all", "class"], 200),
        (Model(small_net("siglip"), name="sig"), ["all"], 422),
    ):
        with served(Predictor(model)) as url:
            told = json.loads(ask(f"{url}/openapi.json")[2])["paths"]["/features"]["post"]
            assert told["parameters"][0]["schema"]["enum"] == offered
            status, _, body = ask(f"{url}/features?part=class", image)
            assert status == wanted
            assert ("no class token" in json.loads(body).get("error", "")) == (wanted == 422)
            assert ask(f"{url}/features?part=all", image)[0] == 200


def test_the_page_runs_nothing_loads_nothing_and_names_no_model(mini: Model) -> None:
    hardened = mini.replace(tokens=RobustTokens(torch.zeros(1, 2, mini.width), origin="seed"))
    with served(Predictor(hardened)) as url:
        status, headers, body = ask(f"{url}/docs")
        other, _, _ = ask(f"{url}/docs", Host="evil.example")
    text = body.decode()
    assert (status, other) == (200, 421)
    assert headers["content-type"].startswith("text/html")
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|javascript:|https?://(?!HOST)|<link|<img|@import|url\(", text)
    assert "robvit-mini" not in text
    assert "Not given by this service" in text  # features of a model with tokens
    for path in ("/predict", "/features", "/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert path in text


def test_text_from_settings_is_escaped() -> None:
    told = document(Limits(), classes=2, features=True, key=True)
    told["info"]["title"] = "<script>alert(1)</script>"
    assert "<script>" not in page(told)


def test_the_image_for_containers_is_what_the_documentation_says() -> None:
    lines = [line.strip() for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()]
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    known = {
        "ARG",
        "FROM",
        "RUN",
        "COPY",
        "ENV",
        "USER",
        "WORKDIR",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert {step[0] for step in steps} <= known
    assert [step[0] for step in steps if step[0] in ("ENTRYPOINT", "CMD")] == ["ENTRYPOINT", "CMD"]
    by = {name: [step[1] for step in steps if step[0] == name] for name in known}
    entry, command = json.loads(by["ENTRYPOINT"][0]), json.loads(by["CMD"][0])
    assert entry[:2] == ["robvit", "serve"]
    assert command[0] == "robvit-mini"  # bundled: it starts without a network
    assert by["USER"][-1].partition(":")[0] not in ("root", "0")
    for copied in by["COPY"]:
        *sources, _ = [word for word in copied.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() or copied.startswith("--from") for source in sources)
    installed = " ".join(by["RUN"])
    assert "-c constraints.txt" in installed
    assert "[serve]" in installed
    port = by["EXPOSE"][0]
    assert port in " ".join(entry + command)
    assert f":{port}/healthz" in by["HEALTHCHECK"][0]
    assert "curl" not in by["HEALTHCHECK"][0]  # there is none in a slim image
