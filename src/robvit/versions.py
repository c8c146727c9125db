"""The versions of what a result depends on; no torch."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def library_versions() -> dict[str, str]:
    """The versions that a result depends on."""
    packages = ("robvit", "torch", "timm", "numpy")
    return {"python": platform.python_version()} | {package: _installed(package) for package in packages}


@cache  # every attack asks, and each time the package's whole description would be read
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
