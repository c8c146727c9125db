"""What every test shares: a fixed seed, one thread, memory given back, a browser."""

from __future__ import annotations

import ctypes
import gc
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

torch.set_num_threads(1)  # the networks here are small; threads would only wait for each other


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _memory_given_back() -> Iterator[None]:
    """What one file of tests held is the system's again before the next one; glibc would keep it."""
    yield
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


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
