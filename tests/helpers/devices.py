"""Where a model's images are, without a second device to try: the first pass is stopped and tells."""

from __future__ import annotations

import pytest
import torch

from robvit.backbones.model import Model


class Stopped(Exception):
    """The first pass was asked for; nothing is computed."""


def seen_devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets the kind of device of the images that a model is asked about."""
    seen: list[str] = []

    def stop(self: Model, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device.type)
        raise Stopped

    for way in ("forward", "features"):
        monkeypatch.setattr(Model, way, stop)
    monkeypatch.setattr(Model, "identity", lambda self: "none")  # no checksum of what has no values
    return seen
