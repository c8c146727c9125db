"""Secret tokens stay where they belong: every output of every command is searched for them.

A command that is in neither of the two tables here fails the first test, so a new one cannot be forgotten.
"""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image

import robvit
from robvit.cli import app, main
from robvit.defenses.tokens import RobustTokens
from robvit.errors import RobvitError
from robvit.tensor_files import read_tensors

PROTOCOL = """
name: secrets@1
about: every attacker there is, each at its smallest
threat: {norm: linf, eps: 4/255}
attacks:
  - {attack: pgd, attacker: no-tokens, settings: {steps: 1}}
  - {attack: pgd, attacker: own-tokens, settings: {steps: 1}}
  - {attack: pgd, attacker: leak, settings: {steps: 1}}
  - {attack: pgd, attacker: white-box, settings: {steps: 1}}
controls: [no tokens, random tokens]
features: true
attacker_budget: {sets: 2, images: 4, steps: 1, batch: 2, attack_steps: 1, leak_steps: 2}
"""
MINI = "robvit-mini"
SMALL = [MINI, "sample", "--limit", "4", "--batch", "4"]
LEARN = ["--limit", "8", "--steps", "2", "--attack-steps", "1"]
SEED = "271828182845904"

# Command: what to run, T being the tokens, D a finished attack, E a finished evaluation; and the files that
# may hold tokens, because they are meant to.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "robustify": (
        [MINI, "sample", *LEARN, "--count", "2", "--pool", "2", "--seed", SEED],
        ["pool.safetensors", "state-0.safetensors", "state-1.safetensors"],
    ),
    "attack": ([*SMALL, "--tokens", "T", "--set", "steps=1"], []),
    "evaluate": (
        [*SMALL, "--tokens", "T", "--protocol", "secrets.yaml"],
        [
            "attackers/own-tokens-1.safetensors",
            "attackers/own-tokens-2.safetensors",
            "attackers/recovered.safetensors",
        ],
    ),
    "certify": ([*SMALL, "--tokens", "T", "--l2", "0.1", "--samples", "2"], []),
    "doctor": ([*SMALL, "--tokens", "T", "--steps", "4", "--restarts", "2", "--queries", "9"], []),
    "explain": (
        [
            MINI,
            "sample:0",
            "--tokens",
            "T",
            "--set",
            "steps=1",
            "--figure",
            "attention",
            "--figure",
            "activations",
            "--figure",
            "massive",
        ],
        [],
    ),
    "demo": (
        [
            "--model",
            MINI,
            "--head",
            "20",
            "--learn",
            "16",
            "--steps",
            "1",
            "--judge",
            "2",
            "--attack-steps",
            "1",
        ],
        ["tokens.safetensors", "state.safetensors"],
    ),
    "reproduce": (
        [
            "rob-fig5",
            "--model",
            MINI,
            "--images",
            "2",
            "--set",
            "count=2",
            "--set",
            "steps=1",
            "--set",
            "learn=4",
        ],
        ["tokens.safetensors", "tokens.state"],
    ),
    "report": (["D"], []),
    "compare": (["E", "E"], []),
    "curve": ([*SMALL, "--tokens", "T", "--set", "steps=1", "--set", "rounds=1"], []),
    "verify": (["E", MINI, "--tokens", "T"], []),
    "export": ([MINI, "--tokens", "T", "--with-secret", "--format", "timm", "--limit", "2"], [""]),
    "check": ([*SMALL, "--tokens", "T"], []),
    "table": (["E"], []),
    "tokens show": (["T"], []),
    "tokens import": (["published.pt"], [""]),
    "tokens rotate": (
        ["T", MINI, "sample", "--limit", "10", "--judge", "2", "--steps", "1", "--bound", "-1"],
        ["tokens.safetensors", "state.safetensors"],
    ),
    "tokens bake": ([MINI, "T", "--with-secret"], [""]),
    "train head": ([MINI, "sample", "--limit", "20", "--tokens", "T"], []),
}
# What is asked of the commands that answer requests; tests/test_app_server.py attacks through the second.
SERVERS = {"serve": ["metrics", "healthz", "readyz", "predict", "features"], "app": ["", "config"]}
# Commands that never meet tokens, but for `push`, which refuses secret ones: tests/base/test_sharing.py.
WITHOUT = {
    "bake",
    "card",
    "challenge",
    "heads import",
    "models",
    "push",
    "review",
    "attacks",
    "sign",
    "weights list",
    "weights get",
    "weights verify",
    "data list",
    "data cifar10",
    "data cifar100",
    "data show",
    "train recipes",
    "train recipe",
}
NO_OUT = {"compare", "table", "tokens show", "verify"}  # commands that write nothing


def commands() -> dict[str, Any]:
    """Every command by the words that call it."""
    found = {}

    def walk(group: Any, words: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                walk(command, (*words, name))
            else:
                found[" ".join((*words, name))] = command

    walk(typer.main.get_command(app), ())
    return found


def test_every_command_is_searched_or_never_meets_tokens() -> None:
    there = commands()
    assert there.keys() == RUNS.keys() | SERVERS.keys() | WITHOUT
    for name in WITHOUT:
        assert "tokens" not in {parameter.name for parameter in there[name].params}, name


@dataclass
class Needles:
    """What to search for: tokens as bytes of four types, in hexadecimal, base 64 and decimal, and seeds."""

    parts: dict[bytes, str] = field(default_factory=dict)
    shown: list[re.Pattern[bytes]] = field(default_factory=list)

    def add(self, values: torch.Tensor, where: str) -> None:
        flat = values.flatten().double()
        for start in (0, len(flat) // 2, len(flat) - 16):
            some = flat[start : start + 16]
            for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                raw = some.to(kind).view(torch.uint8).numpy().tobytes()
                turned = b"".join(struct.pack(">d", v) for v in some.tolist()[:4])
                for data in (raw[:16], turned[:16], raw.hex().encode()[:32], raw.hex().upper().encode()[:32]):
                    self.parts[data] = f"{kind} of {where}"
                for shift in range(3):  # base 64 has three alignments
                    coded = base64.b64encode(raw[shift : shift + 18])
                    for text in (coded, base64.urlsafe_b64encode(raw[shift : shift + 18])):
                        self.parts[text[:20]] = f"base 64 of {where}"
            for value in some.float().tolist()[:6]:
                self.parts[f"{abs(value):.17f}".encode()[:10]] = f"decimals of {where}"
            for form in (".4f", ".4e"):  # as torch prints them
                a, b = (re.escape(format(value, form)) for value in some.tolist()[:2])
                self.shown.append(re.compile(rf"{a},\s+{b}".encode()))

    def found_in(self, data: bytes) -> list[str]:
        seen = [name for part, name in self.parts.items() if part in data]
        return seen + ["printed values" for pattern in self.shown if pattern.search(data)]


@dataclass
class Place:
    """A folder with tokens, a finished attack and a finished evaluation."""

    folder: Path
    tokens: Path

    def needles(self) -> Needles:
        """Of all tokens that lie anywhere here."""
        found = Needles()
        kept = [json.loads(path.read_text()) for path in self.folder.rglob("secret")]
        for part in [SEED, *(part for secret in kept for part in secret.values())]:
            found.parts[part.encode()] = "what tokens grew from"
            if part != SEED:
                found.parts[bytes.fromhex(part)] = "what tokens grew from"
        for path in [*self.folder.rglob("*.safetensors"), *self.folder.rglob("*.state")]:
            tensors, facts = read_tensors(path, "a file")
            if facts.get("format", "").startswith("robvit-token") or "tokens first" in tensors:
                about = json.loads(facts.get("about", "{}"))
                for one in about if isinstance(about, list) else [about]:
                    found.parts |= {one["salt"].encode(): "a salt"} if one.get("salt") else {}
                for name in tensors.keys() - {"tokens first", "tokens second"}:  # Adam's moments
                    found.add(tensors[name], f"{name} of {path.name}")
        return found


def run(*words: str | Path) -> None:
    """Run a command; it must end well."""
    sys.argv = ["robvit", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        if end.code and (words[0], end.code) != ("doctor", 1):  # which has found something
            pytest.fail(f"exit code {end.code}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("secrets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBVIT_CACHE", str(folder / "cache"))
        patch.setattr(sys, "argv", [])
        patch.chdir(folder)
        (folder / "secrets.yaml").write_text(PROTOCOL)
        run("robustify", MINI, "sample", *LEARN, "--out", folder / "first")
        tokens = folder / "first/tokens.safetensors"
        run("attack", *SMALL, "--tokens", tokens, "--set", "steps=1", "--out", folder / "attack")
        run(
            "evaluate", *SMALL, "--tokens", tokens, "--out", folder / "evaluate", "--protocol", "secrets.yaml"
        )
        torch.save({"rtokens": RobustTokens.load(tokens).values}, folder / "published.pt")
        (folder / "published.pt").chmod(0o600)
        yield Place(folder, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
def test_no_output_of_a_command_holds_tokens(
    command: str, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, meant = RUNS[command]
    stand = {"T": place.tokens, "D": place.folder / "attack", "E": place.folder / "evaluate"}
    out = place.folder / command.replace(" ", "-")
    before = {path: path.stat().st_mtime_ns for path in place.folder.rglob("*") if path.is_file()}
    capfd.readouterr()
    run(
        *command.split(),
        *(stand.get(word, word) for word in arguments),
        *([] if command in NO_OUT else ["--out", out]),
    )
    said = "".join(capfd.readouterr())
    needles = place.needles()
    assert needles.found_in(said.encode()) == []
    holders = {out / name if name else out for name in meant}
    assert all(path.exists() for path in holders)
    changed = [
        path
        for path in place.folder.rglob("*")
        if path.is_file() and path.stat().st_mtime_ns != before.get(path)
    ]
    assert command in NO_OUT or changed
    for path in changed:
        if path in holders or path.name == "secret":
            assert path.stat().st_mode & 0o777 == 0o600, path
        else:
            assert needles.found_in(path.read_bytes()) == [], path


@pytest.mark.slow
def test_the_search_finds_what_it_looks_for(place: Place) -> None:
    values = RobustTokens.load(place.tokens).values
    needles = place.needles()
    raw = values.numpy().tobytes()
    texts = (
        raw,
        values.half().numpy().tobytes(),
        raw.hex().encode(),
        b"xx" + base64.b64encode(raw),
        base64.b64encode(b"a" + raw),
        json.dumps(values.tolist()).encode(),
        str(values).encode(),
        str(values.numpy().astype(float).tolist()).encode(),
        (place.folder / "first/secret").read_bytes(),
    )
    for data in texts:
        assert needles.found_in(data), data[:80]
    assert needles.found_in(torch.randn(values.shape).numpy().tobytes() + raw[:8]) == []
    assert needles.found_in(place.tokens.read_bytes())


@pytest.mark.slow
def test_errors_and_representations_hold_no_tokens(place: Place, tmp_path: Path) -> None:
    tokens = RobustTokens.load(place.tokens)
    strong = robvit.load(MINI, tokens=tokens)
    told = [repr(tokens), str(tokens), repr(strong), repr(strong.state_dict().keys())]
    other = RobustTokens(tokens.values[:, :, :8])
    for wrong in (
        lambda: robvit.load("robvit-mini-robust", tokens=tokens),
        lambda: robvit.load(MINI, tokens=other),
        lambda: RobustTokens(tokens.values.flatten()),
        lambda: RobustTokens(tokens.values / 0),
        lambda: strong(torch.zeros(1, 3, 7, 7)),
        lambda: run("export", MINI, "--tokens", place.tokens, "--out", tmp_path / "x.onnx"),
        lambda: run("tokens", "bake", MINI, place.tokens, "--out", tmp_path / "x.safetensors"),
    ):
        try:
            wrong()
        except (RobvitError, RuntimeError, pytest.fail.Exception):
            told.append(traceback.format_exc())
        else:
            pytest.fail("this must fail")
    assert place.needles().found_in("\n".join(told).encode()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", SERVERS)
def test_answers_and_the_process_list_hold_no_tokens(command: str, place: Place) -> None:
    pytest.importorskip({"serve": "uvicorn", "app": "gradio"}[command])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    what = [MINI] if command == "serve" else ["--demo", place.folder / "none"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robvit", command, *what, "--tokens", place.tokens, "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    heard = ""
    try:
        while f"http://127.0.0.1:{port}" not in heard:
            heard += (line := process.stdout.readline())
            assert line, heard
        data = b"".join(Path(f"/proc/{process.pid}/{what}").read_bytes() for what in ("cmdline", "environ"))
        image = io.BytesIO()
        Image.new("RGB", (32, 32), "teal").save(image, "PNG")
        for path in SERVERS[command]:
            posted = [image.getvalue(), b"junk"] if path in ("predict", "features") else [None]
            data += b"".join(answer(f"http://127.0.0.1:{port}/{path}", body) for body in posted)
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert len(data) > 1000
    assert place.needles().found_in(data + heard.encode() + rest.encode()) == []


def answer(address: str, body: bytes | None) -> bytes:
    """Headers and body of an answer, be it yes or no."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=60) as reply:  # noqa: S310
            return str(reply.headers).encode() + reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return str(error.headers).encode() + error.read()
