"""No telemetry: importing every part of robvit and a full run reach for no network, and need none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Ends the process at the first sign of a connection; what listens on this machine is no connection.
GUARDED = """
import os, sys
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"reached for the network: {event} {arguments[1:]}\\n".encode())
        os._exit(99)
sys.addaudithook(hook)
"""
IMPORTS = """
import importlib, pkgutil, robvit
for module in pkgutil.walk_packages(robvit.__path__, "robvit."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # an extra that is not installed
            assert not (error.name or "robvit").startswith("robvit"), error
"""
RUNS = """
from robvit.cli import main
def run(*words):
    sys.argv = ["robvit", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{words}: exit code {end.code}") from None
tokens = ["--tokens", "hard/tokens.safetensors"]
small = ["robvit-mini", "sample", "--limit", "4", "--batch", "4"]
run("robustify", *small, "--steps", "1", "--attack-steps", "1", "--out", "hard")
run("attack", *small, *tokens, "--set", "steps=1", "--out", "attack")
run("evaluate", *small, *tokens, "--protocol", "clean@1", "--out", "judged")
run("train", "standard", "--model", "robvit-mini", "--data", "sample", "--limit", "24", "--out", "trained",
    "--set", "epochs=1", "--set", "batch=8", "--set", "validation=4", "--set", "warmup=0")
run("report", "attack", "judged", "--out", "page.html")
run("models")
print("done")
"""


def python(code: str, folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """Run code in a folder, with caches and a home of its own."""
    homes = {name: str(folder / "home") for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "ROBVIT_CACHE")}
    paths = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*before, sys.executable, "-c", code],
        cwd=folder,
        env={**homes, **paths},
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_guard_sees_a_connection(tmp_path: Path) -> None:
    code = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')"
    done = python(GUARDED + code, tmp_path)
    assert done.returncode == 99, done.stderr
    assert "reached for the network" in done.stderr


@pytest.mark.slow
def test_no_import_reaches_for_the_network(tmp_path: Path) -> None:
    done = python(GUARDED + IMPORTS, tmp_path)
    assert done.returncode == 0, done.stderr


def _works(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_full_run_neither_needs_nor_seeks_a_network(tmp_path: Path) -> None:
    unshare = shutil.which("unshare") or "unshare"
    ways = ([unshare, "-n"], [unshare, "-rn"])  # the superuser's, and anybody's where that is allowed
    apart = next((way for way in ways if _works(*way, "true")), [])
    done = python(GUARDED + RUNS, tmp_path, *apart)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("done\n")
    assert (tmp_path / "page.html").is_file()
    if not apart:
        pytest.skip("it sought no network, but a machine without one needs network namespaces")
