"""The versions of what a result depends on; no torch."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def library_versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("robvit", "torch", "timm", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
