"""What every test shares: a fixed seed, one thread, memory given back, a browser."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import typer.main
import typer.testing

if sys.platform == "linux":
    import resource

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(1)  # the networks here are small; threads would only wait for each other

# Typer makes all commands anew for each one that is run, which takes longer than most of them do.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Memory:
    """Gives back to the system what tests held; glibc would keep it."""

    GROWTH = 200e6  # bytes between two times; looking for garbage takes a while

    def __init__(self) -> None:
        self.floor = 0.0

    def give_back(self) -> None:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
            self.floor = self.resident()

    def has_grown(self) -> bool:
        return sys.platform == "linux" and self.resident() > self.floor + self.GROWTH

    def resident(self) -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


MEMORY = Memory()


def pytest_collection_finish() -> None:
    """What was imported stays: going through half a million objects each time took a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _memory_given_back() -> Iterator[None]:
    """What one file of tests held is free before the next one."""
    yield
    MEMORY.give_back()


@pytest.fixture(autouse=True)
def _memory_watched() -> Iterator[None]:
    """And what one test held, if it was much."""
    yield
    if MEMORY.has_grown():
        MEMORY.give_back()


PEAKS: list[int] = []  # bytes that each process of the tests held at most


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.unfreeze()
    if sys.platform != "linux":
        return
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peak"] = peak
    else:
        PEAKS.append(peak)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_testnodedown(node: Any) -> None:
    PEAKS.append(getattr(node, "workeroutput", {}).get("peak", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The test processes shall stay below two gigabytes."""
    if PEAKS:
        terminalreporter.write_line(f"the largest test process held {max(PEAKS) / 1e9:.2f} GB at most")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; a test that needs it fails where it is missing."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "the browser tests need Chromium: apt-get install chromium"
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()
